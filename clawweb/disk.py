"""Room on the disk of the data folder: what is big does not start without it, what is small does.

A chat, a rating, a settled sample are a few kilobytes, and the reserve is theirs.
"""

from __future__ import annotations

import errno
import shutil
import time
from pathlib import Path

from django.utils.translation import gettext as _

from clawweb.config import config

MIB = 1 << 20
SCRATCH_SECONDS = 24 * 3600  # no backup takes so long
# How those who write for us say it: Python and the system, safetensors, SQLite, PostgreSQL.
_FULL = ("No space left on device", "os error 28", "disk is full", "DiskFull")


def free_bytes(folder: Path | None = None) -> int:
    """Of the disk that the data folder lies on, or another one."""
    return shutil.disk_usage(folder or config().var).free


def reserve_bytes() -> int:
    return config().disk_free_mib * MIB


def is_low() -> bool:
    """Whether less is free than must stay free."""
    return free_bytes() < reserve_bytes()


def shortage() -> str:
    """Why nothing big may start now, in words; empty while there is room."""
    if not is_low():
        return ""
    return _(
        "The disk of this installation is almost full (%(free)s MB free, %(least)s MB must stay "
        "free). Chats and ratings go on; this waits until there is room."
    ) % {"free": free_bytes() // MIB, "least": config().disk_free_mib}


def not_saved() -> str:
    """What is said to whom a write failed for want of room."""
    return _(
        "The disk of this installation is full, so this was not saved. What was saved before is "
        "kept. Try again later, and tell your admin."
    )


def is_full(error: BaseException | None) -> bool:
    """Whether it was raised, at last, because a disk had no room left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(words in f"{type(error).__name__} {error}" for words in _FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def remove_scratch() -> None:
    """The database's copy of a backup or a restore that was killed a day ago: nobody's any more."""
    for folder in (*config().var.glob(".backup-*"), *config().var.glob(".restore-*")):
        if folder.is_dir() and folder.stat().st_mtime < time.time() - SCRATCH_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
