"""`manage.py up`: everything a running clawweb needs, until Ctrl-C."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from clawweb.config import config, listed
from clawweb.stack.lifecycle import up


class Command(BaseCommand):
    help = "Prepare the model, the database and the files; start every part; stay until Ctrl-C."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--parts", default="", help="only these, parted by commas")

    def handle(self, *args: Any, parts: str, **options: Any) -> None:
        sys.exit(up(config(), listed(parts)))
