"""vLLM's own queue between its processes: who waits at it sleeps, and wakes for what comes."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest import mock

import pytest

from tests.rollouts.inside_vllm import inside_vllm

LATER = 0.6  # seconds until the second message comes


@pytest.fixture(scope="module")
def waiting() -> Any:
    return inside_vllm("cpu_waiting")


def waited(queues: Any) -> tuple[float, float]:
    """(seconds, of the processor's) that a reader spends on waiting for its second message."""
    writer = queues.MessageQueue(1, 1)
    reader = queues.MessageQueue.create_from_handle(writer.export_handle(), 0)
    ready = threading.Thread(target=reader.wait_until_ready)
    ready.start()
    writer.wait_until_ready()
    ready.join()
    writer.enqueue("first")
    assert reader.dequeue(timeout=10) == "first"
    threading.Timer(LATER, writer.enqueue, ["second"]).start()
    began, worked = time.monotonic(), time.thread_time()
    assert reader.dequeue(timeout=10) == "second"
    return time.monotonic() - began, time.thread_time() - worked


def test_who_waits_sleeps_and_wakes_when_something_comes(waiting: Any) -> None:
    with mock.patch.object(waiting, "LOOKS_MS", 60_000):  # only what comes can wake it
        seconds, worked = waited(waiting.shm_broadcast)
    assert LATER / 2 < seconds < LATER + 2
    assert worked < seconds / 10


def test_a_notice_that_is_lost_costs_a_moment(waiting: Any) -> None:
    with mock.patch.object(waiting.SleepsAtOnce, "notify", return_value=None):
        seconds, worked = waited(waiting.shm_broadcast)
    assert LATER / 2 < seconds < LATER + 2  # vLLM would look again after five
    assert worked < seconds / 10


def test_vllm_itself_still_looks_again_and_again(waiting: Any) -> None:
    """When this fails vLLM has mended it, and `cpu_waiting` can go."""
    queues = waiting.shm_broadcast
    with mock.patch.object(queues, "SpinCondition", waiting.SleepsAtOnce.__base__):
        began = time.process_time()
        waited(queues)
    # It steps back for whoever else wants the core, so on a busy machine it gets less than all.
    assert time.process_time() - began > LATER / 5
