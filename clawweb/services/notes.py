"""Writes of notes: what the user asked for in ratings, taken back wherever it was said."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from clawweb.models import FeedbackReason, TrainingSample, User
from clawweb.selectors.notes import samples_saying
from clawweb.services.feedback import rate_turn


@transaction.atomic
def take_back_note(*, user: User, text: str) -> int:
    """Take one note out of every rating that said it; how many did. The thumbs stay, and so does
    whatever else those ratings said.

    What a version has learned stays in that version, but no later one is reminded of it.
    """
    way, name, samples = samples_saying(user, text)
    for sample in samples:
        changes = _without(sample, way, name)
        rate_turn(turn=sample.turn, author=user, changes={**changes, "final": True})
    return len(samples)


def _without(sample: TrainingSample, way: str, name: str) -> dict[str, Any]:
    if way == "read":
        return {"value": None}  # a judge's reading has nothing else to it
    if way != "reason":
        return {way: ""}
    said = [reason["slug"] for reason in sample.feedback.reasons] if sample.feedback else []
    others = FeedbackReason.objects.filter(slug__in=said, active=True).exclude(slug=name)
    return {"reasons": list(others.values_list("slug", flat=True))}
