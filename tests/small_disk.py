"""A disk of a few megabytes that a test may fill: a real one, where this user may mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BLOCK = 4096


class SmallDisk:
    """A folder with a limit that the kernel keeps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ballast = path / "ballast"

    def fill(self, *, but: int = 0) -> None:
        """Leave `but` bytes, rounded down to blocks, and not one more."""
        stat = os.statvfs(self.path)
        room = stat.f_bavail * stat.f_frsize
        self.ballast.touch()
        if room > but:
            with self.ballast.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, (room - but) // BLOCK * BLOCK)

    def empty(self) -> None:
        self.ballast.unlink(missing_ok=True)


@contextmanager
def small_disk_at(path: Path, *, mib: int) -> Iterator[SmallDisk]:
    """Mounted at `path` while inside; skips the test, loudly, where nothing may be mounted."""
    path.mkdir(parents=True, exist_ok=True)
    size = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)]
    done = subprocess.run(size, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk to fill: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
