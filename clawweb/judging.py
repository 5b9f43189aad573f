"""One judgement: claim it, show the judge what happened, write down what it said."""

from __future__ import annotations

import asyncio

from clawweb.config import config
from clawweb.engine import get_judge
from clawweb.models import User
from clawweb.selectors.judging import judged
from clawweb.services import judgements
from clawweb.worker import doing
from rollouts.judge import ask, verdict


def judge_reply(judgement_id: int) -> User | None:
    """Take a waiting judgement one round further; its user, when a sample counts now."""
    judge = get_judge()
    judgement = judgements.claim(judgement_id) if judge is not None else None
    if judge is None or judgement is None:
        return None  # another worker has it, it is over, or nobody judges here any more
    doing("reading what followed a reply")
    try:
        asked = judged(judgement)
        ballots = asyncio.run(
            ask(judge, asked, votes=config().judge_votes, seconds=config().judge_seconds)
        )
        return judgements.record(judgement, verdict(ballots), ballots)
    finally:
        doing("idle")
