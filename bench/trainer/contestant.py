"""What every contestant shares: the batch, and how it talks to run.py. Knows no TRL, and of torch
only a GPU's clock and memory.

A contestant is a process of its own. It says one line of JSON when it is ready, does one update (or
all of a job's) for each line it is sent, and answers each with its time, memory and loss.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to compute and on what. `rows` are the batch's replies, in order."""

    loss: str  # "kto", "apo_zero_unpaired" or "opd"
    variant: str
    device: str  # "cpu" or "cuda"; on that one the frozen weights are in bf16
    precision: str  # of products: "fp32" or "bf16"
    base: Path
    adapter: Path  # where all start from
    updates: int  # in all, a multiple of `job`
    job: int  # so many updates follow on one another, on the same batch, and are timed as one
    rows: list[dict[str, Any]]
    settings: dict[str, float]


def task() -> Task:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loss", required=True)
    parser.add_argument("--variant", default="")
    parser.add_argument("--device", required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--batch", type=Path, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--job", type=int, default=1)
    args = vars(parser.parse_args())
    batch = json.loads(args.pop("batch").read_text(encoding="utf-8"))
    return Task(**args, rows=batch["rows"], settings=batch["settings"])


@dataclass
class Desk:
    """The line to run.py. Whatever libraries print goes to stderr instead."""

    device: str
    job: int  # updates that are answered as one, with the last one's loss
    out: Any = field(init=False)
    loaded_mib: float = 0.0
    left: int = 0  # of the job under way
    seconds: float = 0.0  # of it so far, wall
    cpu_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    @property
    def gpu(self) -> Any:
        """What torch knows of the GPU; None on a CPU."""
        if self.device == "cpu":
            return None
        import torch

        return torch.cuda

    def loaded(self) -> None:
        """The base model is in memory, nothing else: from here on memory is counted."""
        if self.gpu:
            self.loaded_mib = self.gpu.memory_allocated() / MIB
            self.gpu.reset_peak_memory_stats()
            return
        self.loaded_mib = _status_mib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew

    def ready(self) -> None:
        self._say(loaded_mib=self.loaded_mib)

    def wait(self) -> None:
        """Before each update: to be told to, where it is a job's first."""
        if self.left:
            return
        if not sys.stdin.readline():
            raise SystemExit(0)
        self.left, self.seconds, self.cpu_seconds = self.job, 0.0, 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        self.start()
        yield
        self.stop()

    def start(self) -> None:
        self._caught_up()
        self.seconds -= time.perf_counter()
        self.cpu_seconds -= time.process_time()

    def stop(self) -> None:
        self._caught_up()
        self.seconds += time.perf_counter()
        self.cpu_seconds += time.process_time()

    def _caught_up(self) -> None:
        if self.gpu:  # which works on while the program has gone on
            self.gpu.synchronize()

    def done(self, *, loss: float, grad_norm: float) -> None:
        self.left -= 1
        if self.left:
            return
        self._say(
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            loss=loss,
            grad_norm=grad_norm,
            peak_mib=self.gpu.max_memory_allocated() / MIB if self.gpu else _status_mib("VmHWM"),
        )

    def _say(self, **facts: float) -> None:
        self.out.write(json.dumps(facts) + "\n")
        self.out.flush()


def _status_mib(name: str) -> float:
    """A line of this process's status, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024
