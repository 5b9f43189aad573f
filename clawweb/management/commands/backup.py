"""`manage.py backup FILE`: everything that cannot be made again, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from clawweb.config import config
from clawweb.management import OverRows
from clawweb.stack.backup import write_backup
from clawweb.stack.terminal import StackError


class Command(OverRows):
    help = "Copy the database, all versions' weights and the secrets into one file."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            manifest = write_backup(config(), options["file"])
        except (StackError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{len(manifest['files'])} files in {options['file']}")
        for path in manifest["missing"]:
            self.stdout.write(f"not there, and so not in it: {path}")
        self.stdout.write("It holds everybody's chats and the secret key: keep it as safe as them.")
