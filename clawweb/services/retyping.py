"""What its user makes of a turn, main or side; what was said about it, and read in it, follows."""

from __future__ import annotations

from django.db import transaction

from clawweb.events import changed
from clawweb.models import DropReason, Judgement, JudgementState, SampleState, TrainingSample, Turn
from clawweb.selectors.learning import newest_sample
from clawweb.services.feedback import count_undisputed, drop_reason, settle
from clawweb.turn_types import MAIN, OWNER


@transaction.atomic
def set_turn_type(*, turn: Turn, turn_type: str) -> None:
    """Its user says whether a turn is main or side; no rule and no header has a say after that.

    What it gives to training follows: a sample that is not claimed yet is dropped as a side turn's,
    and one that was dropped for that alone counts again. So does what a judge read in it of the
    reply before: a background call is nobody's reaction.
    """
    row = Turn.objects.select_for_update(of=("self",)).select_related("session__user")
    turn = row.get(pk=turn.pk)
    turn.turn_type, turn.turn_type_from = turn_type, OWNER
    turn.save(update_fields=["turn_type", "turn_type_from"])
    if turn_type != MAIN:  # called main again, it is asked about anew
        Judgement.objects.filter(next_turn=turn, state=JudgementState.WAITING).delete()
    own = turn.samples.order_by("-id")[:1]
    read = TrainingSample.objects.filter(judgement__next_turn=turn)
    for samples, why in ((own, DropReason.SIDE_TURN), (read, DropReason.NO_SIGNAL)):
        for sample in samples.select_related("user", "turn__session__user"):
            _follow(sample, is_main=turn_type == MAIN, why=why)
            changed(sample.user_id, "receipt", sample.turn.public_id)
    count_undisputed(turn.session.user_id)  # what a side turn asks for keeps nothing aside
    changed(turn.session.user_id, "turn", turn.public_id)


def _follow(sample: TrainingSample, *, is_main: bool, why: DropReason) -> None:
    """Drop the sample, or take up again what was dropped for that."""
    seen = {"state": sample.state, "drop_reason": sample.drop_reason}
    if not is_main and sample.state in (SampleState.WAITING, SampleState.READY):
        sample.state, sample.drop_reason, sample.held_back = SampleState.DROPPED, why, False
    elif is_main and sample.drop_reason == why and newest_sample(sample.turn) == sample:
        sample.drop_reason = drop_reason(sample.turn, reward=sample.reward, hinted=sample.teaches)
        if not sample.drop_reason:
            settle(sample)
    TrainingSample.objects.filter(pk=sample.pk, **seen).update(
        state=sample.state, drop_reason=sample.drop_reason, held_back=sample.held_back
    )
