"""What the parts of a running system take of the machine, over time."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import psutil

from clawweb.stack import guard
from clawweb.stack.supervisor import pid_in
from tests.realstack import Stack

MIB = 2**20
Sample = dict[str, Any]


class Watch(threading.Thread):
    """Reads resident (RSS) and proportional (PSS) bytes and CPU seconds of each part."""

    def __init__(self, stack: Stack, *, every: float = 5.0) -> None:
        super().__init__(name="watch", daemon=True)
        self.stack = stack
        self.every = every
        self.started = time.monotonic()
        self.samples: list[Sample] = []
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            self.samples.append(self.read())
            self.enough.wait(self.every)

    def read(self) -> Sample:
        """`at` in seconds, then each part's `rss` and `pss` in MiB and `cpu` in seconds."""
        parts = {part.name: self._part(part.name) for part in self.stack.supervisor.parts}
        return {"at": round(time.monotonic() - self.started, 1), **parts}

    def _part(self, name: str) -> dict[str, float]:
        found = {"rss": 0.0, "pss": 0.0, "cpu": 0.0}
        for process in processes_of(self.stack, name):
            with contextlib.suppress(psutil.Error):  # it ended in between
                memory = process.memory_full_info()
                found["rss"] += memory.rss / MIB
                found["pss"] += memory.pss / MIB
                found["cpu"] += sum(process.cpu_times()[:2])
        return {key: round(value, 2) for key, value in found.items()}

    def end(self) -> list[Sample]:
        self.enough.set()
        self.join(30)
        return self.samples


def processes_of(stack: Stack, part: str) -> list[psutil.Process]:
    """The part's own, whatever it has forked; not its guard."""
    first = pid_in(stack.var / "run" / f"{part}.pid")
    found = []
    for pid in {*guard.marked(f"{stack.var}:{part}"), *([first] if first else [])}:
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return found
