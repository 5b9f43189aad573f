"""Deploying one accepted version: load, probe, move live, drain. Knows the engine, not torch."""

from __future__ import annotations

import logging
import time

from asgiref.sync import async_to_sync
from django.db import transaction

from clawweb.engine import get_engine, tokenizer_controls
from clawweb.models import AdapterVersion, JobState, Turn
from clawweb.selectors.chat import messages_for
from clawweb.selectors.learning import live_adapter, policy_of
from clawweb.services import jobs, versions
from clawweb.services.errors import CannotPromote, LeaseLost
from rollouts.errors import EngineUnavailable, RolloutError
from rollouts.rendering import defused
from rollouts.types import Message, SamplingParams

log = logging.getLogger(__name__)


def deploy(job_id: str) -> None:
    """Take one job from `deploying` to `deployed`, or say why its version could not be served."""
    job = versions.claim_deploy(job_id)
    if job is None or job.child is None:
        return  # another worker has it, or has finished it
    started = time.monotonic()
    try:
        measured = versions.load_and_probe(job.child)
        with transaction.atomic():  # live, the job and its samples move together or not at all
            versions.go_live(job.child, over=live_adapter(job.user), why=f"deployed by {job_id}")
            seconds = round(time.monotonic() - started, 3)
            jobs.advance(job, timings={**job.timings, "deploy": seconds, "probe": measured})
            jobs.end_job(
                job,
                state=JobState.DEPLOYED,
                reason=f"Version {job.child.version} answers now.",
                learned=job.child,
            )
        _warm(job.child)
    except EngineUnavailable as exc:
        log.warning("deploying %s waits: %s", job.child.name, exc)
        versions.release_deploy(job)
    except (RolloutError, CannotPromote, OSError) as exc:
        reason = f"The model server could not take version {job.child.version}: {exc}"
        versions.refuse(job.child, reason)
        jobs.end_job(job, state=JobState.FAILED, reason=reason)
    except LeaseLost:
        log.info("another worker deploys %s", job_id)


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
