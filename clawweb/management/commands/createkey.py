"""`manage.py createkey USERNAME`: print a new API key, and nothing else."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from clawweb.config import MOST_DAYS, listed
from clawweb.management import OverRows
from clawweb.models import User
from clawweb.services.accounts import CLI_SCOPES, add_user, make_key
from clawweb.services.errors import ServiceError


class Command(OverRows):
    help = "Print a new API key of a user."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--create", action="store_true", help="make the user if there is none")
        parser.add_argument("--name", default="command line")
        parser.add_argument("--scopes", default=",".join(CLI_SCOPES), help="comma-separated")
        parser.add_argument("--days", type=int, help="how long it works; without: until revoked")

    def handle(self, *args: Any, **options: Any) -> None:
        days = options["days"]
        if days is not None and not 1 <= days <= MOST_DAYS:
            raise CommandError(f"--days is a number from 1 to {MOST_DAYS}, not {days}.")
        try:
            with transaction.atomic():  # no key, no user
                _, plain = make_key(
                    user=self._user(options["username"], create=options["create"]),
                    name=options["name"],
                    scopes=listed(options["scopes"]),
                    days=days,
                )
        except ServiceError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(plain)

    def _user(self, username: str, *, create: bool) -> User:
        user = User.objects.filter(username=username).first()
        if user is None and not create:
            raise CommandError(f"There is no user called {username}; add --create to make one.")
        if user is not None and (user.is_pending or not user.is_active):
            raise CommandError(
                f"No key of {username} would be let in: the account is not active, or waits for "
                "an admin. Let it in first (/admin/, Users)."
            )
        return user or add_user(username=username, password=None)
