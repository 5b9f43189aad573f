"""What goes wrong: parts killed, the database locked, tasks delivered twice."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing

from clawweb.config import ROOT
from tests.realstack import Stack

LIGHT = ("web", "generator", "worker-light", "worker-gpu", "beat", "valkey")
LIGHT_SECONDS, VLLM_SECONDS = 60.0, 180.0  # by when a killed part answers again
LOCKED_SECONDS = 6.0
Fault = tuple[str, Callable[[], float]]

TWICE = """
import django; django.setup()
from clawweb import tasks
from clawweb.models import TrainingJob
for job in TrainingJob.objects.order_by("-id")[:3]:
    for task in (tasks.run_training_job, tasks.deploy):
        for _ in range(2):
            task.apply_async(args=(job.public_id,), retry=False)
"""


def killed(stack: Stack, part: str) -> float:
    """Seconds until the part's successor answers."""
    limit = VLLM_SECONDS if part == "vllm" else LIGHT_SECONDS
    return stack.kill_and_wait(part, timeout=4 * limit)


def locked(stack: Stack) -> float:
    """Somebody else holds the write lock for a while."""
    path = stack.config.var / "clawweb.sqlite3"
    with closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        time.sleep(LOCKED_SECONDS)
        database.execute("ROLLBACK")
    return LOCKED_SECONDS


def delivered_twice(stack: Stack) -> float:
    """The newest jobs' tasks again, and once more."""
    started = time.monotonic()
    env = {**stack.env, "DJANGO_SETTINGS_MODULE": "clawweb.settings", "PYTHONPATH": str(ROOT)}
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", TWICE], cwd=ROOT, env=env, timeout=60, check=False)
    return time.monotonic() - started


def drawn(stack: Stack, chance: random.Random, *, vllm_left: int) -> Fault:
    """The next fault. Parts are likelier than the rest; vLLM takes long, so it is rationed."""
    parts = [*LIGHT, *(["vllm"] if vllm_left else [])]
    part = chance.choice(parts)
    return chance.choices(
        [
            (part, lambda: killed(stack, part)),
            ("database locked", lambda: locked(stack)),
            ("delivered twice", lambda: delivered_twice(stack)),
        ],
        weights=[8, 1, 1],
    )[0]
