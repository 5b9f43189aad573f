"""Reads of the jobs' console: what waits, which jobs are asked for, what each was made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Count, Min, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb.downsampling import kept
from clawweb.figures import sparkline
from clawweb.models import (
    ACTIVE_JOB,
    Consent,
    DropReason,
    JobState,
    SampleState,
    StepMetric,
    TrainingJob,
    User,
)
from clawweb.selectors.learning import visible_jobs
from training.config import METHODS

RUNNING = "running"  # a filter's name for all states that are not an end
STATES = (
    RUNNING,
    *(state.value for state in JobState if state not in ACTIVE_JOB),
)
SPARK_POINTS = 40


def queue_status() -> dict[str, Any]:
    """How many jobs wait for a worker, everybody's, and since when the oldest does."""
    waiting = TrainingJob.objects.filter(state=JobState.QUEUED)
    found = waiting.aggregate(depth=Count("pk"), oldest=Min("created_at"))
    seconds = (timezone.now() - found["oldest"]).total_seconds() if found["oldest"] else None
    return {"depth": found["depth"], "oldest_seconds": seconds}


def chosen_jobs(user: User, *, state: str, method: str) -> QuerySet[TrainingJob]:
    """The jobs that the user may see, of a state and a method where these are names of any."""
    rows = visible_jobs(user)
    if state in STATES:
        rows = rows.filter(state__in=ACTIVE_JOB if state == RUNNING else [state])
    return rows.filter(method=method) if method in METHODS else rows


def loss_lines(jobs: Sequence[TrainingJob]) -> dict[int, str]:
    """A small line of the loss of each job that has one, by the job's key; one query for all."""
    losses: dict[int, list[Any]] = {}
    rows = StepMetric.objects.filter(job__in=jobs).order_by("job_id", "step")
    for job, loss in rows.values_list("job_id", "values__loss"):
        losses.setdefault(job, []).append(loss)
    few = {job: [found[i] for i in kept(found, SPARK_POINTS)] for job, found in losses.items()}
    lines = {job: sparkline(found) for job, found in few.items()}
    return {job: line for job, line in lines.items() if line}


def is_stale(job: TrainingJob) -> bool:
    """Whether the job's worker has not been heard of for a whole lease."""
    return bool(job.is_active and job.lease_until and job.lease_until < timezone.now())


def early_end(job: TrainingJob) -> str:
    """Why its training ended before the last step; "" where it did not. An attempt that was given
    up since says nothing of the one after it."""
    if job.step >= job.steps:
        return ""
    rows = job.events.filter(kind__in=["started", "put_back", "ended_early"]).order_by("-id")
    kind, text = rows.values_list("kind", "text").first() or ("", "")
    return text if kind == "ended_early" else ""


def has_unused_ratings(job: TrainingJob) -> bool:
    """Whether ratings that the job took, or was to take, train nothing any more."""
    dropped = job.job_samples.filter(role="new", sample__state=SampleState.DROPPED)
    return job.user.consent != Consent.TRAIN or dropped.exists()


def uses_of_samples(job: TrainingJob) -> list[dict[str, Any]]:
    """How many ratings the job used, and for what, and how many it could not use, and why. Counts
    only: they say nothing of anybody's texts."""
    counted = job.job_samples.values_list("role", "sample__state", "sample__drop_reason")
    counts: dict[tuple[str, bool], int] = {}
    for role, state, reason, number in counted.annotate(number=Count("pk")):
        is_left = role == "new" and state == SampleState.DROPPED and bool(reason)
        words = DropReason(reason).label if is_left else _role_words(role, job)
        counts[words, is_left] = counts.get((words, is_left), 0) + number
    whole = max(counts.values(), default=0)
    found = [
        {"words": words, "is_left": is_left, "count": number, "of": whole}
        for (words, is_left), number in counts.items()
    ]
    return sorted(found, key=_by_use)


def _by_use(row: dict[str, Any]) -> tuple[bool, int]:
    return row["is_left"], -row["count"]


def _role_words(role: str, job: TrainingJob) -> str:
    if role == "replay":
        return _("reminded of, from earlier")
    if role == "reanswer":
        return _("asked again, to learn from the new answer")
    if job.is_active:
        return _("being learned from")
    learned = job.state == JobState.DEPLOYED
    return _("learned from") if learned else _("was to be learned from")
