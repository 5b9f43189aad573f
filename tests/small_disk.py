"""A disk of a few megabytes that may be filled: a real one, where this user may mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A folder with a limit that the kernel keeps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ballast = path / "ballast"

    def fill(self, *, but: int = 0) -> None:
        """Leave `but` bytes and no more, as exactly as blocks allow."""
        stat = os.statvfs(self.path)
        blocks = stat.f_bavail - but // stat.f_frsize
        self.ballast.touch()
        if blocks > 0:
            with self.ballast.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, blocks * stat.f_frsize)

    def empty(self) -> None:
        self.ballast.unlink(missing_ok=True)


@contextmanager
def mounted(path: Path, *, mib: int) -> Iterator[SmallDisk | None]:
    """A disk of this size at `path` while inside; None where nothing may be mounted."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def small_disk_at(path: Path, *, mib: int) -> Iterator[SmallDisk]:
    """The same for a test, which is skipped, loudly, where nothing may be mounted."""
    with mounted(path, mib=mib) as disk:
        if disk is None:
            pytest.skip("no disk can be filled here: this user may not mount one")
        yield disk
