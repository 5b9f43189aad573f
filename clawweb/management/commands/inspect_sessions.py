"""`manage.py inspect_sessions`: totals, turns of each session, samples by state. No texts."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from clawweb.management import OverRows
from clawweb.models import User
from clawweb.records import write_line
from clawweb.selectors.counts import counts


class Command(OverRows):
    help = "Count sessions, their main and side turns, and samples by state; newest first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--user", help="one user's only")
        parser.add_argument("--limit", type=int, default=50, help="sessions that are listed")
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        user = None
        if options["user"]:
            user = User.objects.filter(username=options["user"]).first()
            if user is None:
                raise CommandError(f"There is no user called {options['user']}.")
        found = counts(user, limit=max(options["limit"], 0))
        if options["json"]:
            told = json.loads(write_line(found))  # times as text
            self.stdout.write(json.dumps(told, indent=2, ensure_ascii=False))
        else:
            self.stdout.write("\n".join(table(found)))


def table(found: dict[str, Any]) -> list[str]:
    """The counts for a terminal."""
    totals = found["totals"]
    lines = [
        f"{many(totals['sessions'], 'session')}, {many(totals['turns_main'], 'main turn')}, "
        f"{many(totals['turns_side'], 'side turn')}",
        f"samples: {states(found['samples'])}",
    ]
    if found["sessions"]:
        wide = max(4, *(len(row["user"]) for row in found["sessions"])) + 2
        lines += ["", _row("session", "user", wide, "main", "side", "last used", "samples")]
    for row in found["sessions"]:
        used, samples = f"{row['updated_at']:%Y-%m-%d %H:%M}", states(row["samples"])
        main, side = row["turns_main"], row["turns_side"]
        lines.append(_row(row["id"], row["user"], wide, main, side, used, samples))
    more = totals["sessions"] - len(found["sessions"])
    return [*lines, *([f"… and {more} more; --limit lists them"] if more else [])]


def many(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def states(samples: dict[str, int]) -> str:
    return ", ".join(f"{state} {count}" for state, count in samples.items()) or "none"


def _row(name: str, user: str, wide: int, *more: Any) -> str:
    main, side, used, samples = more
    return f"{name:<42} {user:<{wide}}{main:>6}{side:>6}  {used:<18}{samples}"
