"""Writes of notes: what the user asked for in ratings, taken back wherever it was said."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Q

from clawweb.models import OPEN_SAMPLE, DropReason, SampleState, TrainingSample, User
from clawweb.selectors.notes import samples_saying
from clawweb.services.feedback import rate_turn


@transaction.atomic
def take_back_note(*, user: User, text: str) -> int:
    """Take one note out of every rating that said it; how many did. The thumbs stay, and so does
    whatever else those ratings said.

    What a version has learned, or is learning, stays in that version, but no later one is reminded
    of it.
    """
    way, name, samples = samples_saying(user, text)
    for sample in reversed(samples):  # oldest first, as a job that ends locks them
        changes = _without(sample, way, name)
        rate_turn(turn=sample.turn, author=user, changes={**changes, "final": True})
        _keep_taken(sample)
    return len(samples)


def _keep_taken(sample: TrainingSample) -> None:
    """What is left of a rating goes with it where a job has taken it, or a version learned it: it
    does not count a second time."""
    sample.refresh_from_db(fields=["state", "adapter", "job", "by_thumb", "replaced_by"])
    if sample.state not in (SampleState.CLAIMED, SampleState.TRAINED):
        return
    counts = Q(state__in=OPEN_SAMPLE)
    if sample.state == SampleState.TRAINED:  # that it would train no more unlearns nothing
        counts |= Q(drop_reason__in=[DropReason.CONSENT, DropReason.SIDE_TURN])
    left = TrainingSample.objects.filter(counts, pk=sample.replaced_by_id)
    left.update(
        state=sample.state,
        drop_reason="",
        adapter=sample.adapter,
        job=sample.job,
        by_thumb=sample.by_thumb,
        held_back=False,
    )


def _without(sample: TrainingSample, way: str, name: str) -> dict[str, Any]:
    if way == "read":
        return {"value": None}  # a judge's reading has nothing else to it
    if way != "reason":
        return {way: ""}
    said = sample.feedback.reasons if sample.feedback else []
    return {"reasons": [reason["slug"] for reason in said if reason["slug"] != name]}
