"""`manage.py signinlink USERNAME`: print a link that signs in once within 15 minutes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from clawweb.config import config
from clawweb.models import User
from clawweb.services import second_factor
from clawweb.services.accounts import make_link


class Command(BaseCommand):
    help = "Print a one-time sign-in link."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument(
            "--remove-second-factor", action="store_true", help="whose phone is lost"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["username"], is_active=True).first()
        if user is None:
            raise CommandError(f"There is no active user called {options['username']}.")
        if options["remove_second_factor"]:
            second_factor.remove(user)
        host = "127.0.0.1" if config().host in ("0.0.0.0", "::") else config().host
        self.stdout.write(f"http://{host}:{config().port}{make_link(user)}")
