"""One judgement: claim it, show the judge what happened, write down what it said."""

from __future__ import annotations

import asyncio
import logging

from clawweb import logs, sentences
from clawweb.config import config
from clawweb.engine import get_judge
from clawweb.models import User
from clawweb.selectors.judging import judged
from clawweb.services import judgements
from clawweb.worker import doing
from rollouts.judge import Ballot, Judged, ask, verdict

log = logging.getLogger(__name__)


def judge_reply(judgement_id: int) -> User | None:
    """Take a waiting judgement one round further; its user, when a sample counts now."""
    judgement = judgements.claim(judgement_id) if config().has_judge else None
    if judgement is None:
        return None  # another worker has it, it is over, or nobody judges here any more
    doing(sentences.READS)
    try:
        with logs.about(judgement=judgement.pk, **logs.of_turn(judgement.turn)):
            ballots = _ballots(judged(judgement))
            counts = judgements.record(judgement, verdict(ballots), ballots)
            log.info("judged in %s votes", len(ballots))
            return counts
    finally:
        doing(sentences.IDLE)


def _ballots(asked: Judged) -> list[Ballot]:
    try:
        judge = get_judge()
    except ValueError as exc:  # the settings name one that cannot be had
        return [Ballot(error=str(exc), refused=True)]
    assert judge is not None  # the caller has asked whether there is one
    votes, seconds = config().judge_votes, config().judge_seconds
    return asyncio.run(ask(judge, asked, votes=votes, seconds=seconds))
