"""What operators call from a terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import InterfaceError, OperationalError, ProgrammingError


class OverRows(BaseCommand):
    """A command that reads or writes rows. A database that is away, or has no tables yet, is said
    in words; with `--traceback` as Django says it."""

    def execute(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute(*args, **options)
        except (InterfaceError, OperationalError, ProgrammingError) as error:
            raise CommandError(
                f"The database says: {str(error).strip()}\n"
                "`make run` makes its tables, or brings them up to date; without "
                "CLAWWEB_DATABASE_URL it is a file below CLAWWEB_VAR."
            ) from error
