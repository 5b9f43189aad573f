"""Writes of judgements: what waits for a judge, who asks it, what came of it.

A row waits from the moment the next state is there. Who asks holds it by a lease; every write is
conditional on that. A rating of the user's own always outranks a judgement.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from clawweb.config import config
from clawweb.engine import judge_name
from clawweb.events import changed
from clawweb.models import Judgement, JudgementState, SampleState, Turn, User
from clawweb.selectors.chat import latest_feedback
from clawweb.selectors.judging import agreement, is_judged_for, next_state
from clawweb.sentences import NOT_JUDGED, RARELY_AGREES, RATED_INSTEAD, RATING_TAKEN_BACK
from clawweb.services.feedback import GIVEN, drop_reason, sample_judgement
from rollouts.judge import Ballot, Verdict

BACKOFF = (10.0, 60.0, 300.0, 1800.0)  # seconds after each round in vain; the last one repeats
GIVE_UP = timedelta(hours=24)
LEASE_MARGIN = 30.0  # seconds beyond the judge's own time
AT_ONCE = 50  # judgements that one sweep sends
MOST_ERROR = 1000


def expect(turn: Turn) -> Judgement | None:
    """The judgement that `turn`, just opened, makes possible of the reply before it; None when
    that reply is not to be judged. Called in the transaction that opens the turn."""
    if not config().has_judge or turn.parent_id is None or turn.turn_type != "main":
        return None
    if not turn.recorded or not next_state(turn):
        return None
    reply = Turn.objects.select_related("session__user").get(pk=turn.parent_id)
    if not may_be_judged(reply):
        return None
    judgement, is_new = Judgement.objects.get_or_create(
        turn=reply, defaults={"next_turn": turn, "try_at": timezone.now()}
    )
    if not is_new:
        _grow(judgement, turn)
    return judgement


def may_be_judged(turn: Turn) -> bool:
    """Whether the reply could train at all, its user lets it, and the judge may see it."""
    could_train = not drop_reason(turn, reward=-1, hinted=True)
    is_open = turn.recorded and turn.session.deleted_at is None and not turn.session.locked
    return could_train and is_open and is_judged_for(turn.session.user)


def _grow(judgement: Judgement, turn: Turn) -> None:
    """A sibling is no next state of its own; but tool results that come one by one are one."""
    known, now = judgement.next_turn.input_messages, turn.input_messages
    if len(now) > len(known) and now[: len(known)] == known:
        unasked = Judgement.objects.filter(
            pk=judgement.pk, state=JudgementState.WAITING, attempts=0
        )
        unasked.update(next_turn=turn)


def awaited(turn: Turn) -> int | None:
    """The judgement that `turn` has made possible, while nobody has asked for it yet."""
    if not config().has_judge:
        return None
    waiting = Judgement.objects.filter(next_turn=turn, state=JudgementState.WAITING, attempts=0)
    return waiting.values_list("pk", flat=True).first()


def due() -> list[int]:
    """Judgements to ask for now: new ones, those to ask again, those whose asker is gone."""
    if not config().has_judge:
        return []
    rows = Judgement.objects.filter(state=JudgementState.WAITING, try_at__lte=timezone.now())
    return list(rows.order_by("try_at").values_list("pk", flat=True)[:AT_ONCE])


def claim(pk: int) -> Judgement | None:
    """The judgement under a lease; None when it is not to be had, or not to be asked any more."""
    now = timezone.now()
    until = now + timedelta(seconds=config().judge_seconds + LEASE_MARGIN)
    claimed = Judgement.objects.filter(pk=pk, state=JudgementState.WAITING, try_at__lte=now).update(
        lease_token=str(uuid.uuid4()),
        lease_until=until,
        try_at=until,  # when another may have it
        attempts=F("attempts") + 1,
        judge=judge_name(),
    )
    if not claimed:
        return None
    judgement = Judgement.objects.select_related(
        "turn__session__user", "turn__parent", "next_turn__session"
    ).get(pk=pk)
    if may_be_judged(judgement.turn) and next_state(judgement.next_turn):
        return judgement
    _end(judgement, JudgementState.FAILED, error=NOT_JUDGED)
    return None


def _held(judgement: Judgement) -> Any:
    return Judgement.objects.filter(
        pk=judgement.pk, state=JudgementState.WAITING, lease_token=judgement.lease_token
    )


def _end(judgement: Judgement, state: JudgementState, **values: Any) -> bool:
    done = _held(judgement).update(
        state=state,
        lease_token="",
        lease_until=None,
        try_at=None,
        judged_at=timezone.now(),
        **values,
    )
    return bool(done)


@transaction.atomic
def record(judgement: Judgement, verdict: Verdict, ballots: Sequence[Ballot]) -> User | None:
    """Write what a round came to. The user, when a sample of it counts now."""
    turn = (
        Turn.objects.select_for_update(of=("self",))
        .select_related("session__user")
        .filter(pk=judgement.turn_id)
        .first()
    )
    if turn is None:
        return None  # it was erased meanwhile
    changed(turn.session.user_id, "receipt", turn.public_id)
    votes = [_vote_json(ballot) for ballot in ballots]
    error = verdict.error[:MOST_ERROR]
    if verdict.again and timezone.now() - judgement.created_at < GIVE_UP:
        _postpone(judgement, votes=votes, error=error, wait=verdict.wait)
        return None
    if verdict.again or verdict.refused:
        # Without votes where it was silent: nobody shall read there that it refuses.
        _end(judgement, JudgementState.FAILED, votes=[] if verdict.again else votes, error=error)
        return None
    if verdict.score is None:
        _end(judgement, JudgementState.NO_SIGNAL, votes=votes, error=error)
        return None
    judgement.score, judgement.hints = verdict.score, _hints(judgement, verdict)
    why_not = _why_it_does_not_count(turn, verdict.score)
    if not _end(
        judgement,
        JudgementState.JUDGED,
        votes=votes,
        score=judgement.score,
        hints=judgement.hints,
        error=why_not,
    ):
        return None  # somebody else has asked meanwhile
    if why_not or not verdict.score:
        return None
    sample = sample_judgement(turn, judgement)
    return turn.session.user if sample.state == SampleState.READY else None


def _hints(judgement: Judgement, verdict: Verdict) -> list[str]:
    """Only what the user said may teach: a tool's result can be a stranger's text."""
    spoke = any(message["role"] == "user" for message in next_state(judgement.next_turn))
    return list(verdict.hints) if spoke else []


def _why_it_does_not_count(turn: Turn, score: int) -> str:
    """Why a score makes no sample; empty when it may. 0 needs no reason."""
    if not score:
        return ""
    if own := latest_feedback(turn):
        says_something = any(getattr(own, name) for name in GIVEN)
        return RATED_INSTEAD if says_something else RATING_TAKEN_BACK
    if agreement(turn.session.user).is_too_low:
        return RARELY_AGREES
    return ""


def _postpone(judgement: Judgement, *, votes: list[Any], error: str, wait: float) -> None:
    now = timezone.now()
    pause = max(BACKOFF[min(judgement.attempts, len(BACKOFF)) - 1], wait)
    _held(judgement).update(
        lease_token="",
        lease_until=now,
        try_at=now + timedelta(seconds=min(pause, GIVE_UP.total_seconds())),
        votes=votes,
        error=error,
    )


def _vote_json(ballot: Ballot) -> dict[str, Any]:
    vote = ballot.vote
    return {
        "score": vote.score if vote else None,
        "hint": vote.hint if vote else "",
        "text": vote.text if vote else "",
        "error": ballot.error[:MOST_ERROR],
    }
