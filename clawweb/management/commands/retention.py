"""`manage.py retention`: let go of what is older than the settings say; or only say how much."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from clawweb.management import OverRows
from clawweb.services import retention


class Command(OverRows):
    help = "Erase what is older than CLAWWEB_KEEP_…_DAYS say; --dry-run only counts it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="erase nothing, only count")

    def handle(self, *args: Any, **options: Any) -> None:
        word = "would go" if options["dry_run"] else "go"
        for table, rows in retention.apply(dry_run=options["dry_run"]).items():
            what = "kept for ever" if rows is None else f"{rows} {word}"
            self.stdout.write(f"{table}: {what}")
