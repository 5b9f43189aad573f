"""`manage.py restore FILE`: a backup into an empty data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from clawweb.config import config
from clawweb.management import OverRows
from clawweb.stack.backup import restore_backup
from clawweb.stack.terminal import StackError


class Command(OverRows):
    help = "Put a backup's files into an empty data folder (CLAWWEB_VAR); then `make run`."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            manifest = restore_backup(config(), options["file"])
        except (StackError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{len(manifest['files'])} files are back, as of {manifest['made_at']}")
        self.stdout.write("Start it with `make run`; what it had to migrate, it will.")
