"""`manage.py prepare`: fetch and convert the base model, start nothing."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from clawweb.config import config
from clawweb.stack.database import collect_static, prepare_database
from clawweb.stack.lifecycle import check_judge, check_settings, prepare_folders
from clawweb.stack.model import prepare_model
from clawweb.stack.terminal import StackError, say


class Command(BaseCommand):
    help = "Prepare the base model's folder, so that a later start need not."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--all", action="store_true", help="and the database and the static files"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["all"]:  # the first of what containers start with
                check_judge(config())
                check_settings(config())
            say(f"model: {prepare_model(config())}")
            if options["all"]:
                prepare_folders(config())
                prepare_database(config())
                collect_static()
        except StackError as error:
            say(f"clawweb is not prepared: {error}")
            sys.exit(1)
