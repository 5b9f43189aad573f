"""`manage.py exportdata USER`: a user's data as lines of JSON, to the terminal or a new file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TextIO

from django.core.management.base import CommandError, CommandParser

from clawweb.management import OverRows
from clawweb.models import User
from clawweb.records import write_line
from clawweb.selectors.records import lines_of
from clawweb.services.transfers import LINES_EXPORTED, private


class Command(OverRows):
    help = "Write a user's conversations, or samples in a shape of TRL's, as JSONL."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--shape", choices=LINES_EXPORTED, default="conversations")
        parser.add_argument("--output", help="a file that is not there yet; else the terminal")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"There is no user called {options['username']}.")
        _, steps = lines_of(user, options["shape"])
        lines = (write_line(line) for step in steps for line in step)
        if not options["output"]:
            for line in lines:
                self.stdout.write(line, ending="")
            return
        try:
            with open(options["output"], "x", encoding="utf-8", opener=private) as file:
                _write_whole(file, lines)
        except OSError as exc:
            raise CommandError(str(exc)) from exc


def _write_whole(file: TextIO, lines: Iterable[str]) -> None:
    """Or leave no file: half of one looks like all of it, and keeps the next try from its name."""
    try:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    except BaseException:
        os.unlink(file.name)
        raise
