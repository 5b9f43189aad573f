"""Deploying one accepted version: load, probe, move live, drain. Knows the engine, not torch."""

from __future__ import annotations

import logging
import time

from django.db import transaction

from clawweb.models import JobState
from clawweb.selectors.learning import live_adapter
from clawweb.services import jobs, versions
from clawweb.services.errors import CannotPromote, LeaseLost
from rollouts.errors import EngineUnavailable, RolloutError

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
    except EngineUnavailable as exc:
        log.warning("deploying %s waits: %s", job.child.name, exc)
        versions.release_deploy(job)
    except (RolloutError, CannotPromote, OSError) as exc:
        reason = f"The model server could not take version {job.child.version}: {exc}"
        versions.refuse(job.child, reason)
        jobs.end_job(job, state=JobState.FAILED, reason=reason)
    except LeaseLost:
        log.info("another worker deploys %s", job_id)
