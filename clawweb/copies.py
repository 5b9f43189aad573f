"""Copies of the SQLite database, beside it: one a day, and one before every migration.

PostgreSQL has its operator's. `manage.py backup` holds the versions as well.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from django.db import connection

from clawweb import disk

KEPT = 5
DAY = 86_400.0


class NoRoom(OSError):
    """The disk is too full for a copy; the message says how full."""


def daily(var: Path) -> Path | None:
    """The day's copy; None where it is there already. Raises NoRoom."""
    found = _copies(var)
    is_due = not found or time.time() - found[-1].stat().st_mtime >= DAY
    return copy(var) if is_due else None


def copy(var: Path) -> Path | None:
    """A consistent copy in `var`/backups, of which the newest KEPT stay. Raises NoRoom."""
    if connection.vendor != "sqlite":
        return None
    source = Path(connection.settings_dict["NAME"])
    folder = var / "backups"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for killed in folder.glob("clawweb-*.partial"):  # first: it may be what has filled the disk
        killed.unlink(missing_ok=True)
    free = disk.free_bytes()
    if free - source.stat().st_size < disk.reserve_bytes():
        raise NoRoom(f"no room for a copy of the database: {free // disk.MIB} MB are free")
    target = folder / f"clawweb-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.sqlite3"
    partial = target.with_suffix(".partial")
    copy_sqlite(source, partial)
    partial.rename(target)
    for old in _copies(var)[:-KEPT]:
        old.unlink()
    return target


def copy_sqlite(source: Path, target: Path) -> None:
    """A consistent copy, for our eyes only, of a database that may be in use."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
    target.chmod(0o600)


def _copies(var: Path) -> list[Path]:
    return sorted((var / "backups").glob("clawweb-*.sqlite3"))
