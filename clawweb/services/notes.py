"""Writes of notes: what the user asked for in ratings, taken back wherever it was said."""

from __future__ import annotations

from django.db import transaction

from clawweb.models import User
from clawweb.selectors.agent import samples_saying
from clawweb.services.feedback import rate_turn


@transaction.atomic
def take_back_note(*, user: User, text: str) -> int:
    """Take one note out of every rating that said it; how many did. The thumbs stay.

    What a version has learned stays in that version, but no later one is reminded of it.
    """
    samples = samples_saying(user, text)
    for sample in samples:
        if sample.feedback_id is None:
            changes = {"value": None}  # a judge's reading has nothing else to it
        elif sample.hint == text:
            changes = {"reasons": [], "comment": ""}
        else:
            changes = {"correction": ""}
        rate_turn(turn=sample.turn, author=user, changes={**changes, "final": True})
    return len(samples)
