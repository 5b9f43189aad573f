"""Inside vLLM on a CPU: a process that waits for another sleeps, so that the other has the core.

vLLM's engine and its worker hand each other batches through shared memory, and who waits looks
again and again whether something is there, until nothing came for a second (`SpinCondition`). With
many cores that is quick. On two of them the engine, which waits whenever the worker computes,
keeps a whole core from the trainer and the web. vLLM knows how to sleep until it is told, too; here
it always does. `--distributed-executor-backend` names the executor, so that the engine imports
this; the worker does by `cpu_worker`.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.device_communicators import shm_broadcast
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

LOOKS_MS = 20  # a notice may be lost (who sends keeps one at most): so long at most is slept


class SleepsAtOnce(shm_broadcast.SpinCondition):
    """The condition, with no time for looking again and again."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **(named | {"busy_loop_s": 0.0}))

    def wait(self, timeout_ms: int | None = None) -> None:
        super().wait(LOOKS_MS if timeout_ms is None else min(timeout_ms, LOOKS_MS))


shm_broadcast.SpinCondition = SleepsAtOnce  # type: ignore[misc]  # what its queues look up


class PatientExecutor(MultiprocExecutor):
    """What the option names. It is vLLM's own."""
