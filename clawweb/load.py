"""How much of the machine a process takes. What cannot be measured is absent, never 0."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any

import psutil

MIB = 2**20
GPU_QUERY = ("utilization.gpu", "memory.used", "memory.total")
PATIENCE_SECONDS = 3.0


class Meter:
    """Reads the load of this process and its children, since it was read before."""

    def __init__(self, *, with_gpus: bool = False) -> None:
        self.process = psutil.Process()
        self.with_gpus = with_gpus
        self.before: tuple[float, float] | None = None

    def read(self) -> dict[str, Any]:
        """`cpu` (share of one core, from the second reading on), `rss` (bytes), and `gpus`: of each
        card `use` (share), `used` and `total` (bytes)."""
        found: dict[str, Any] = {}
        now, seconds, memory = time.monotonic(), 0.0, 0
        own = self.process.cpu_times()
        seconds += own.children_user + own.children_system  # of those that have ended
        for process in (self.process, *self.process.children(recursive=True)):
            try:
                times = process.cpu_times()
                memory += process.memory_info().rss
            except psutil.Error:  # it ended in between
                continue
            seconds += times.user + times.system
        if self.before is not None and now > self.before[0] and seconds >= self.before[1]:
            found["cpu"] = round((seconds - self.before[1]) / (now - self.before[0]), 3)
        self.before = now, seconds
        found["rss"] = memory
        if self.with_gpus and (cards := gpus()):
            found["gpus"] = cards
        return found


def gpus() -> list[dict[str, float]]:
    """What nvidia-smi says of each card; nothing where there is none, or it does not answer."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = [
        "nvidia-smi", f"--query-gpu={','.join(GPU_QUERY)}", "--format=csv,noheader,nounits",
    ]  # fmt: skip
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [read_gpu(line) for line in said.splitlines() if line.strip()]


def read_gpu(line: str) -> dict[str, float]:
    """One card's line: per cent and MiB to a share and bytes. `[N/A]` is left out."""
    scales = {"use": 0.01, "used": float(MIB), "total": float(MIB)}
    found = {}
    for (name, scale), text in zip(scales.items(), line.split(","), strict=False):
        try:
            found[name] = float(text) * scale
        except ValueError:
            continue
    return found
