"""Replies that nobody writes yet: in which order they are taken, and how many come before one.

Users take turns: whoever has fewer replies written or waiting comes first, so that one user's flood
is its own user's wait.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from clawweb.models import Turn, TurnState

SEEN_SECONDS = 1.0  # how old the line may be that people are told their place in


def line() -> list[tuple[int, str]]:
    """Of every pending turn, in the order in which they are taken: its rank and its public id.

    The rank counts its user's replies up to this one, from 1: those being written, then those that
    wait. Within a rank the older comes first.
    """
    unfinished = Turn.objects.filter(state__in=[TurnState.PENDING, TurnState.STREAMING])
    rows = list(unfinished.order_by("id").values_list("public_id", "state", "session__user_id"))
    had = Counter(user for _, state, user in rows if state == TurnState.STREAMING)
    found = []
    for public_id, state, user in rows:
        if state == TurnState.PENDING:
            had[user] += 1
            found.append((had[user], public_id))
    return sorted(found, key=lambda each: each[0])  # stable: by id within a rank


def next_turns(*, room: int, reserved: int = 0) -> list[str]:
    """Ids of the turns to take into so much room. Into its last `reserved` places only those of
    users who have fewer replies than that."""
    taken: list[str] = []
    for rank, public_id in line() if room > 0 else ():
        left = room - len(taken)
        if not left or (left <= reserved and rank > reserved):
            break
        taken.append(public_id)
    return taken


def replies_before(turn: Turn) -> int | None:
    """How many replies are begun before this one, as it was a second ago; None when it is begun."""
    return _SEEN.place(turn.public_id) if turn.state == TurnState.PENDING else None


class _Seen:
    """The line, read once for all who ask in the same second."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.until = 0.0
        self.places: dict[str, int] = {}

    def place(self, public_id: str) -> int | None:
        with self.lock:
            if time.monotonic() > self.until or public_id not in self.places:
                self.places = {name: place for place, (_, name) in enumerate(line())}
                self.until = time.monotonic() + SEEN_SECONDS
            return self.places.get(public_id)


_SEEN = _Seen()
