"""What goes wrong: parts killed or held still, the database locked, tasks twice, a full disk."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import httpx
import psycopg

from clawweb.config import ROOT
from clawweb.disk import MIB
from tests.loop.person import query
from tests.realstack import Stack
from tests.small_disk import SmallDisk

LIGHT = ("web", "generator", "worker-light", "worker-gpu", "worker-judge", "beat", "valkey")
LEASED = ("generator", "worker-gpu")  # work under a lease, in one process each
LIGHT_SECONDS, VLLM_SECONDS = 60.0, 180.0  # by when a killed part answers again
LOCKED_SECONDS = 6.0
HELD_SECONDS = 20.0  # longer than the leases of replies (15 s) and, in this stack, of jobs (12 s)
FULL_SECONDS = 15.0
KILLS_SHARE = 2 / 3
VLLM_SHARE = 0.075  # 15 of 200: it takes a minute or two to come back
OTHERS = (*(f"{part} held still" for part in LEASED), "database locked", "delivered twice")
DISK = "disk filled"
RESTARTED = "database restarted"  # PostgreSQL's; the seed draws none
ALL = (*LIGHT, "vllm", *OTHERS, DISK, RESTARTED)

TWICE = """
import django; django.setup()
from clawweb import tasks
from clawweb.models import TrainingJob
for job in TrainingJob.objects.order_by("-id")[:3]:
    for task in (tasks.run_training_job, tasks.deploy):
        for _ in range(2):
            task.apply_async(args=(job.public_id,), retry=False)
"""


class Broken(Exception):
    """A promise that was seen to be broken while the fault lasted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The system, and the disk of its data folder where that is one of its own."""

    stack: Stack
    disk: SmallDisk | None


def killed(stack: Stack, part: str) -> float:
    """Seconds until the part's successor answers."""
    limit = VLLM_SECONDS if part == "vllm" else LIGHT_SECONDS
    return stack.kill_and_wait(part, timeout=4 * limit)


def held_still(stack: Stack, part: str) -> float:
    """Its leases run out while it lives, and it wakes up to find its work another's. Seconds until
    it answers from then on."""
    pid = stack.pid(part)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(HELD_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    return stack.wait_until_ready(part, timeout=4 * LIGHT_SECONDS)


def locked(stack: Stack) -> float:
    """Somebody else holds the write lock for a while."""
    path = stack.config.var / "clawweb.sqlite3"
    with closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        time.sleep(LOCKED_SECONDS)
        database.execute("ROLLBACK")
    return LOCKED_SECONDS


def server_crashed(stack: Stack) -> None:
    """PostgreSQL loses all connections, reads its log and begins anew, as after a power cut: it
    does so whenever one of its processes is killed. Back when it answers again."""
    started, url = time.monotonic(), stack.config.database_url
    if not url:
        raise ValueError(f"{RESTARTED!r} is for PostgreSQL")
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        connection.execute("SELECT 1")
    while not answers(url):
        if time.monotonic() - started > LIGHT_SECONDS:
            raise Broken("the database did not come back")
        time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False


def restarted(stack: Stack) -> float:
    """The same; seconds until the web server finds all well that was well before."""
    well, started = well_parts(stack), time.monotonic()
    server_crashed(stack)
    while missing := well - well_parts(stack):
        if time.monotonic() - started > LIGHT_SECONDS:
            raise Broken(f"a minute after the database died: {', '.join(sorted(missing))}")
        time.sleep(0.1)
    return time.monotonic() - started


def delivered_twice(stack: Stack) -> float:
    """The newest jobs' tasks again, and once more."""
    started = time.monotonic()
    env = {**stack.env, "DJANGO_SETTINGS_MODULE": "clawweb.settings", "PYTHONPATH": str(ROOT)}
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", TWICE], cwd=ROOT, env=env, timeout=60, check=False)
    return time.monotonic() - started


def filled(target: Target) -> float:
    """The disk to half of its reserve, for a while. Seconds until the system says so; meanwhile no
    job may begin."""
    if target.disk is None:
        return 0.0  # nobody may mount one here
    stack, started = target.stack, time.monotonic()
    target.disk.fill(but=stack.config.disk_free_mib * MIB // 2)
    try:
        while not is_said_to_be_low(stack):
            if time.monotonic() - started > LIGHT_SECONDS:
                return LIGHT_SECONDS + 1
            time.sleep(0.2)
        seconds = time.monotonic() - started
        time.sleep(1)  # who looked before it was full may still begin
        begun = jobs_begun(stack)
        time.sleep(FULL_SECONDS)
        if jobs_begun(stack) != begun:
            raise Broken("a job began on a disk that was almost full")
        return seconds
    finally:
        target.disk.empty()


def is_said_to_be_low(stack: Stack) -> bool:
    return parts_of(stack).get("disk", "").startswith("low")


def well_parts(stack: Stack) -> set[str]:
    return {name for name, words in parts_of(stack).items() if words == "ok"}


def parts_of(stack: Stack) -> dict[str, str]:
    """What /readyz says of each; nothing while nobody answers."""
    try:
        answer = httpx.get(f"{stack.url}/readyz", timeout=10, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return {}
    parts: dict[str, str] = answer["parts"]
    return parts


def jobs_begun(stack: Stack) -> int:
    return len(query(stack, "SELECT 1 FROM clawweb_event WHERE kind = 'started'"))


def acts(target: Target) -> dict[str, Callable[[], float]]:
    """Every fault by its name; each gives the seconds until the system had recovered."""
    stack = target.stack
    return {
        **{part: partial(killed, stack, part) for part in (*LIGHT, "vllm")},
        **{f"{part} held still": partial(held_still, stack, part) for part in LEASED},
        "database locked": partial(locked, stack),
        RESTARTED: partial(restarted, stack),
        "delivered twice": partial(delivered_twice, stack),
        DISK: partial(filled, target),
    }


def drawn(chance: random.Random, count: int, *, only_kills: bool = False) -> list[str]:
    """Names of faults. Kills are likelier than the rest. vLLM takes long, so it is rationed; it
    dies once at least, after all others if chance spared it."""
    names: list[str] = []
    left = max(1, int(count * VLLM_SHARE))
    for number in range(count):
        last = number == count - 1 and "vllm" not in names
        part = "vllm" if last else chance.choice([*LIGHT, *(["vllm"] if left else [])])
        is_kill = last or chance.random() < KILLS_SHARE or only_kills
        names.append(part if is_kill else chance.choice((*OTHERS, DISK)))
        left -= names[-1] == "vllm"
    return names
