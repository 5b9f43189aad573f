"""`manage.py createkey USERNAME`: print a new API key, and nothing else."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from clawweb.management import OverRows
from clawweb.models import User
from clawweb.services.accounts import CLI_SCOPES, make_key
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
        username = options["username"]
        user = User.objects.filter(username=username).first()
        if user is None and options["create"]:
            user = User.objects.create_user(username)
        if user is None:
            raise CommandError(f"There is no user called {username}; add --create to make one.")
        try:
            _, plain = make_key(
                user=user,
                name=options["name"],
                scopes=options["scopes"].split(","),
                days=options["days"],
            )
        except ServiceError as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(plain)
