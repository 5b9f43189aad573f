"""Deploying one accepted version: load, probe, move live, drain. Knows the engine, not torch."""

from __future__ import annotations

import logging
import time

from asgiref.sync import async_to_sync
from django.db import InterfaceError, OperationalError, transaction
from django.utils.translation import gettext_noop

from clawweb import logs, sentences
from clawweb.engine import get_engine, tokenizer_controls
from clawweb.keeper import Keeper
from clawweb.models import AdapterVersion, Consent, JobState, TrainingJob, Turn, User
from clawweb.selectors.chat import messages_for
from clawweb.selectors.learning import live_adapter, policy_of, trained_on_from
from clawweb.selectors.quotas import NO_PHASE
from clawweb.services import jobs, serving, versions
from clawweb.services.errors import CannotPromote, LeaseLost
from rollouts.errors import BadReply, EngineUnavailable, RolloutError, UnknownAdapter
from rollouts.rendering import defused
from rollouts.types import Message, SamplingParams

log = logging.getLogger(__name__)

BAD_REPLIES = 5  # of a server that answers, and not what it must, until a version is given up
_OVERTAKEN = gettext_noop(
    "Another version was made the one that answers while this one was trained. The ratings count "
    "again."
)


class Unwelcome(Exception):
    """A version that passed its gate and still must not go live; says why."""


def deploy(job_id: str) -> None:
    """Take one job from `deploying` to `deployed`, or say why its version could not be served."""
    job = versions.claim_deploy(job_id)
    if job is None or job.child is None:
        return  # another worker has it, or has finished it
    with logs.about(job=job.public_id, user=job.user_id, version=job.child.name):
        try:
            _deploy(job, job.child)
        except LeaseLost:  # also while it is given up
            log.info("another worker deploys %s", job)


def _deploy(job: TrainingJob, child: AdapterVersion) -> None:
    try:
        with Keeper(job):
            _move_live(job, child)
    except (EngineUnavailable, UnknownAdapter, BadReply, OperationalError, InterfaceError) as exc:
        # Down, or restarted between two of our calls: the sweep tries again.
        log.warning("deploying %s waits: %s", child.name, exc)
        if isinstance(exc, BadReply) and _is_last(job):
            _give_up(job, child, sentences.NOT_SERVED % {"n": child.version, "why": exc})
        else:
            versions.release_deploy(job)
    except LeaseLost:
        raise
    except Unwelcome as exc:
        _give_up(job, child, str(exc), state=JobState.CANCELLED)
    except Exception as exc:
        log.warning("%s cannot be served", child.name, exc_info=exc)
        _give_up(job, child, sentences.NOT_SERVED % {"n": child.version, "why": exc})
    else:
        _warm(child)


def _move_live(job: TrainingJob, child: AdapterVersion) -> None:
    started = time.monotonic()
    _refuse_cancelled(job)  # also while the model server does not answer
    measured = serving.load_and_probe(child)
    with transaction.atomic():  # live, the job and its samples move together or not at all
        live = _live_for(job)
        try:
            versions.go_live(child, over=live, why=sentences.DEPLOYED_BY % {"job": job.public_id})
        except CannotPromote as exc:  # it moved while we looked
            raise Unwelcome(_OVERTAKEN) from exc
        _keep_baseline(job)
        seconds = round(time.monotonic() - started, 3)
        jobs.advance(job, timings={**job.timings, "deploy": seconds, "probe": measured})
        reason = sentences.WENT_LIVE % {"n": child.version}
        jobs.end_job(job, state=JobState.DEPLOYED, reason=reason, learned=child)


def _is_last(job: TrainingJob) -> bool:
    """Counts a reply that was not as it must be; whether so many are no accident any more."""
    count = job.timings.get(NO_PHASE, 0) + 1
    jobs.advance(job, timings={**job.timings, NO_PHASE: count})
    return bool(count >= BAD_REPLIES)


def _keep_baseline(job: TrainingJob) -> None:
    """Of a version that does not go live the votes count again, so they are not counted before."""
    if baseline := job.timings.get("baseline"):
        User.objects.filter(pk=job.user_id).update(
            reward_mean=baseline["mean"],
            reward_variance=baseline["variance"],
            reward_count=baseline["count"],
        )


def _live_for(job: TrainingJob) -> AdapterVersion | None:
    """The live version that the job's is to follow; Unwelcome when its user has meanwhile chosen
    another one, not to train, or to cancel the job."""
    user = User.objects.select_for_update().get(pk=job.user_id)
    if user.consent != Consent.TRAIN:
        raise Unwelcome(sentences.UNWANTED)
    _refuse_cancelled(job)  # after the last look that the trainer took
    live = live_adapter(user)
    follows = trained_on_from(live)
    if (follows.pk if follows else None) != job.parent_id:
        raise Unwelcome(_OVERTAKEN)
    return live


def _refuse_cancelled(job: TrainingJob) -> None:
    if TrainingJob.objects.filter(pk=job.pk, cancel_requested=True).exists():
        raise Unwelcome(sentences.CANCELLED)


def _give_up(
    job: TrainingJob, child: AdapterVersion, reason: str, *, state: JobState = JobState.FAILED
) -> None:
    """Live does not move; the ratings count again."""
    with transaction.atomic():
        jobs.end_job(job, state=state, reason=reason)
        versions.refuse(child, reason)


def _warm(adapter: AdapterVersion) -> None:
    """Let the new version read its user's newest conversation, so that the next reply starts soon.

    Prefill under an adapter is slow on a CPU (12 s for 1,000 tokens); what was read is kept.
    """
    turn = Turn.objects.filter(session__user=adapter.user, recorded=True).order_by("-id").first()
    if turn is None:
        return
    messages = [*messages_for(turn), Message(role="assistant", content=turn.reply)]
    try:
        async_to_sync(get_engine().generate)(
            defused([*messages, Message(role="user", content=" ")], tokenizer_controls()),
            policy=policy_of(adapter),
            params=SamplingParams(max_tokens=1),
        )
    except RolloutError as exc:
        log.info("%s is not warmed up: %s", adapter.name, exc)
