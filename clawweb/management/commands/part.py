"""`manage.py part NAME`: become one part, as a container is one. No supervisor, no preparations."""

from __future__ import annotations

import os
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from clawweb.config import ROOT, config
from clawweb.stack.lifecycle import check_needs, prepare_folders
from clawweb.stack.parts import MAKERS
from clawweb.stack.terminal import StackError


class Command(BaseCommand):
    help = "Run one part in this process, with the command and environment that `up` would give it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=sorted(MAKERS))

    def handle(self, *args: Any, name: str, **options: Any) -> None:
        try:
            check_needs(config(), [name])
            prepare_folders(config())
        except StackError as error:
            raise CommandError(str(error)) from error
        part = MAKERS[name](config())
        os.chdir(ROOT)
        os.nice(part.nice)
        os.execvpe(part.command[0], part.command, {**os.environ, **part.environment})
