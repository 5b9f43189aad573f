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


class NoCopy(OSError):
    """The disk is too full for one, or the database damaged; the message says which."""


def daily(var: Path) -> Path | None:
    """The day's copy; None where it is there already. Raises NoCopy."""
    found = _copies(var)
    is_due = not found or time.time() - found[-1].stat().st_mtime >= DAY
    return copy(var) if is_due else None


def copy(var: Path) -> Path | None:
    """A consistent copy in `var`/backups, of which the newest KEPT stay. Raises NoCopy."""
    if connection.vendor != "sqlite":
        return None
    source = Path(connection.settings_dict["NAME"])
    folder = var / "backups"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for killed in folder.glob("clawweb-*.partial"):  # first: it may be what has filled the disk
        killed.unlink(missing_ok=True)
    free = disk.free_bytes()
    if free - source.stat().st_size < disk.reserve_bytes():
        raise NoCopy(f"no room for a copy of the database: {free // disk.MIB} MB are free")
    target = folder / f"clawweb-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.sqlite3"
    partial = target.with_suffix(".partial")
    copy_sqlite(source, partial)
    partial.rename(target)
    for old in _copies(var)[:-KEPT]:
        old.unlink()
    return target


def copy_sqlite(source: Path, target: Path) -> None:
    """A consistent copy, for our eyes only, of a database that may be in use. NoCopy where it is
    damaged, which SQLite copies without a word: older copies must not give way to that."""
    try:
        with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)
        target.chmod(0o600)
        # As a file that nobody writes: else a log of its own would stand beside it.
        with closing(sqlite3.connect(f"{target.absolute().as_uri()}?immutable=1", uri=True)) as new:
            found = str(new.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):  # it is locked, the disk is full
            raise
        found = str(error)
    if found != "ok":
        target.unlink(missing_ok=True)
        said = " ".join(found.replace("*** in database main ***", "").split())
        raise NoCopy(
            f"the database is damaged ({said}): no copy of it is made, older ones stay "
            "(docs/operations.md says how to go back to one)"
        )


def _copies(var: Path) -> list[Path]:
    return sorted((var / "backups").glob("clawweb-*.sqlite3"))
