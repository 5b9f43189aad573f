"""`manage.py signinlink USERNAME`: print a link that signs in once within 15 minutes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from clawweb.config import config
from clawweb.management import OverRows
from clawweb.models import User
from clawweb.services import second_factor
from clawweb.services.accounts import make_link
from clawweb.stack.readiness import web_url


class Command(OverRows):
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
        self.stdout.write(web_url(config()) + make_link(user))
