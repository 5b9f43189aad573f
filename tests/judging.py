"""How tests let replies be judged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.utils import timezone

from clawweb import judging
from clawweb.models import Judgement, Turn
from clawweb.services import chat
from rollouts.types import SamplingParams
from tests.factories import make_turn

GOOD = "HINT: none\nVERDICT: 1"
BAD = "He wants less.\nHINT: Answer in at most two sentences.\nVERDICT: -1"
NEITHER = "HINT: none\nVERDICT: 0"

Setting = Callable[..., None]


def follow(turn: Turn, text: str = "Shorter, please.", **values: Any) -> Turn:
    """The user's next message after the turn's reply, and the reply to it."""
    return make_turn(turn.session.user, text, session=turn.session, parent=turn, **values)


def tool_turn(turn: Turn, *results: str) -> Turn:
    """A turn that brings the results of the tools that the reply before it called."""
    return chat.open_turn(
        session=turn.session,
        parent=turn,
        messages=[
            {"role": "tool", "content": text, "tool_call_id": str(n)}
            for n, text in enumerate(results)
        ],
        params=SamplingParams(),
        source="api",
    )


def judged(turn: Turn) -> Judgement:
    """The judgement of the turn after one more round."""
    row = Judgement.objects.get(turn=turn)
    judging.judge_reply(row.pk)
    return Judgement.objects.get(pk=row.pk)


def now_due() -> None:
    Judgement.objects.update(try_at=timezone.now() - timedelta(seconds=1))


def rejudged(turn: Turn) -> Judgement:
    now_due()
    return judged(turn)


def has_judgement(turn: Turn) -> bool:
    return Judgement.objects.filter(turn=turn).exists()
