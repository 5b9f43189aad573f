"""`manage.py importdata USER FILE`: bring a file of any size into a user's rows."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from clawweb.management import OverRows
from clawweb.models import User
from clawweb.services.errors import ServiceError
from clawweb.services.imports import Import, batches, lines_in


class Command(OverRows):
    help = "Bring in conversations: an export of clawweb, or record files of OpenClaw-RL."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("file")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"There is no user called {options['username']}.")
        try:
            taken = Import(user)
            with open(options["file"], "rb") as file:
                for lines in batches(lines_in(file)):
                    taken.take_all(lines)
        except (ServiceError, OSError) as exc:
            raise CommandError(str(exc)) from exc
        if taken.report.is_in_vain:
            raise CommandError(str(taken.report))
        self.stdout.write(str(taken.report))
