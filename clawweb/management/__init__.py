"""What operators call from a terminal."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError, OperationalError, ProgrammingError

from clawweb.services.outage import is_damaged, outage

_AWAY = (InterfaceError, OperationalError, ProgrammingError)
_NO_TABLES = (
    "`make run` makes its tables, or brings them up to date; without CLAWWEB_DATABASE_URL it is "
    "a file below CLAWWEB_VAR."
)
_NO_FILE = "Without CLAWWEB_DATABASE_URL it is a file below CLAWWEB_VAR, which `make run` makes."
_READ_ONLY = "Call this as the user who may write the database's file and the folder it lies in."
_DAMAGED = (
    "Its file is damaged, or another one. docs/operations.md, Backups, says how to go back to a "
    "copy of the folder `backups`, or to a backup."
)


class OverRows(BaseCommand):
    """A command that reads or writes rows. A database that is away, damaged, cannot be written, or
    has no tables yet, is said in words; with `--traceback` as Django says it."""

    def execute(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute(*args, **options)
        except (InterfaceError, DatabaseError) as error:
            said = str(error).strip()
            if not (isinstance(error, _AWAY) or is_damaged(error)):
                raise
            raise CommandError(f"The database says: {said}\n{_what_to_do(error, said)}") from error
        except BrokenPipeError:
            # Who reads has enough, as `head` has. Python writes out once more as it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)


def _what_to_do(error: DatabaseError | InterfaceError, said: str) -> str:
    if is_damaged(error):
        return _DAMAGED
    if "unable to open" in said:
        return _NO_FILE
    if "readonly" in said:
        return _READ_ONLY
    return str(outage(error) or _NO_TABLES)
