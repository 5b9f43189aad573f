"""The real processes: they start, come back when killed, and leave nothing when they end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from clawweb.config import ROOT
from clawweb.stack import guard
from clawweb.stack.parts import cores, training_cores
from tests.realstack import Stack, new_stack

pytestmark = pytest.mark.stack


@pytest.fixture
def own_stack() -> Iterator[Stack]:
    """Not started; for tests that end it their own way."""
    stack = new_stack()
    yield stack
    stack.stop()
    guard.kill_marked(f"{stack.var}:", exact=False)
    shutil.rmtree(stack.var, ignore_errors=True)


def living(stack: Stack) -> list[int]:
    return guard.marked(f"{stack.var}:", exact=False)


def wait_until_gone(stack: Stack, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while pids := living(stack):
        assert time.monotonic() < deadline, f"still there: {pids}"
        time.sleep(0.1)


def test_the_pages_and_the_model_answer(stack: Stack) -> None:
    assert httpx.get(f"{stack.url}/livez").status_code == 200
    assert httpx.get(f"{stack.config.vllm}/health").status_code == 200


def test_the_queue_is_a_private_socket_and_no_port(stack: Stack) -> None:
    if stack.config.redis_url:
        pytest.skip("this Redis is not ours to guard")
    path = stack.var / "run" / "valkey.sock"
    assert path.is_socket()
    assert path.stat().st_mode & 0o777 == 0o700
    assert stack.var.stat().st_mode & 0o777 == 0o700


def test_the_trainer_gives_way_to_the_model_server(stack: Stack) -> None:
    trainer = psutil.Process(stack.pid("worker-gpu"))
    assert trainer.nice() == psutil.Process(stack.pid("vllm")).nice() + 10
    assert trainer.environ()["OMP_WAIT_POLICY"] == "passive"
    if not stack.config.has_gpu:
        assert trainer.cpu_affinity() == (training_cores(stack.config) or cores())


def test_vllm_refuses_who_has_no_key(stack: Stack) -> None:
    assert httpx.get(f"{stack.config.vllm}/v1/models").status_code == 401


def test_a_second_start_on_the_same_data_is_refused(stack: Stack) -> None:
    second = subprocess.run(
        [sys.executable, "manage.py", "up"],
        cwd=ROOT,
        env=stack.env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert second.returncode == 1
    assert "runs already" in second.stdout
    assert httpx.get(f"{stack.url}/livez").status_code == 200


def test_sigterm_while_vllm_starts_leaves_nothing(own_stack: Stack) -> None:
    own_stack.launch("--parts", "valkey,vllm")
    mark = f"{own_stack.var}:vllm"
    deadline = time.monotonic() + 60
    while not guard.marked(mark):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(3)
    started = time.monotonic()
    own_stack.stop()
    assert time.monotonic() - started < 15
    assert living(own_stack) == []
    assert not list((own_stack.var / "run").glob("*.sock"))


def test_a_killed_up_takes_its_parts_with_it_and_can_be_started_again(own_stack: Stack) -> None:
    own_stack.start("--parts", "valkey,web")
    assert own_stack.process
    own_stack.process.kill()
    own_stack.process.wait()
    wait_until_gone(own_stack, 60)
    own_stack.start("--parts", "valkey,web")
    assert httpx.get(f"{own_stack.url}/livez").status_code == 200


def test_what_a_killed_supervisord_leaves_is_ended_by_the_next_start(own_stack: Stack) -> None:
    own_stack.start("--parts", "valkey,web")
    supervisord = own_stack.supervisor.call("getPID")
    os.kill(supervisord, signal.SIGKILL)
    assert own_stack.process
    assert own_stack.process.wait(60) == 1
    assert "clawweb stopped: supervisord ended by itself" in own_stack.output.read_text()
    assert living(own_stack) == []
    own_stack.start("--parts", "valkey,web")
    assert httpx.get(f"{own_stack.url}/livez").status_code == 200
