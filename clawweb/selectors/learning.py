"""Reads of what is learned: receipts, jobs, versions, the state of the parts."""

from __future__ import annotations

import statistics
from datetime import timedelta
from functools import cached_property
from typing import Any

from asgiref.sync import async_to_sync
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb import sentences
from clawweb.config import config
from clawweb.engine import base_hash, get_engine
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    DropReason,
    Feedback,
    Heartbeat,
    JobSample,
    JobState,
    SampleState,
    TrainingJob,
    TrainingPolicy,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.policy import batch_of, method_of, training_policy
from clawweb.selectors.quotas import phase_seconds
from clawweb.selectors.usable import usable_among
from rollouts.errors import RolloutError
from rollouts.types import BASE, Policy
from training.config import TrainConfig

MAX_VERSION_AGE = TrainConfig().max_version_age
_PUBLIC_STATE = {
    SampleState.WAITING: "saved",
    SampleState.READY: "counted",
    SampleState.CLAIMED: "in_training",
    SampleState.TRAINED: "learned",
    SampleState.DROPPED: "not_used",
    SampleState.SUPERSEDED: "superseded",
    SampleState.WITHDRAWN: "withdrawn",
    SampleState.ERASED: "erased",
}
GONE_AFTER = timedelta(seconds=60)
# A turn's long lists of numbers, of no use to who reads what was said; and as a sample's join
BULKY = ("prompt_ids", "response_ids", "logprobs")
BULKY_OF_TURN = tuple(f"turn__{name}" for name in BULKY)
# Of a turn, the vote that counts
NEWEST_VOTE = Feedback.objects.filter(turn=OuterRef("pk")).order_by("-id").values("value")[:1]


def live_adapter(user: User) -> AdapterVersion | None:
    return AdapterVersion.objects.filter(user=user, state=AdapterState.LIVE).first()


def trained_on_from(live: AdapterVersion | None) -> AdapterVersion | None:
    """Where a job begins, and what answers: the live version; the base model where that one belongs
    to another base, or is of a higher rank than is served now."""
    return live if live is not None and fits(live) else None


def fits(version: AdapterVersion) -> bool:
    """Whether the server as it is set up could wear it."""
    return version.base_hash == base_hash() and version.rank <= config().lora_rank


def policy_of(adapter: AdapterVersion | None) -> Policy:
    """What the engine and the trainer call this version; the base model for None."""
    if adapter is None:
        return BASE
    return Policy(
        adapter=adapter.name,
        version=adapter.version,
        path=str((config().var / adapter.path).resolve()),
    )


def ready_samples(user: User) -> QuerySet[TrainingSample]:
    """Settled, eligible, unclaimed and not held back: what the next job may claim, oldest first."""
    return settled_samples(held_back=False).filter(user=user).order_by("id")


def held_back_samples(user: User) -> list[TrainingSample]:
    """What the gate compares versions on."""
    rows = settled_samples(held_back=True).filter(user=user)
    return list(rows.select_related("turn__session").order_by("id"))


def settled_samples(*, held_back: bool) -> QuerySet[TrainingSample]:
    """Everybody's settled, eligible and unclaimed ones, for training or for the gate; of chats that
    are neither deleted nor kept out of training."""
    return TrainingSample.objects.filter(
        state=SampleState.READY,
        held_back=held_back,
        turn__session__deleted_at=None,
        turn__session__locked=False,
    )


def line_of(version: AdapterVersion | None) -> list[AdapterVersion]:
    """The version and those it was trained from, newest first; of None nothing."""
    if version is None:
        return []
    rows = {row.pk: row for row in AdapterVersion.objects.filter(user=version.user_id)}
    at, line = rows.get(version.pk), []
    while at is not None:
        line.append(at)
        at = rows.get(at.parent_id) if at.parent_id else None
    return line


def versions_behind(version: AdapterVersion | None, turn: Turn) -> int:
    """How many of the version's line have gone live after the one that wrote the reply. What was
    rolled back or erased on the way is not of it, and makes no reply older."""
    line = line_of(version)
    return sum(row.live_at is not None and row.version > turn.version for row in line)


def age_of(sample: TrainingSample, version: AdapterVersion | None) -> int:
    """Versions behind, of what makes a sample stale. What was kept aside for the gate waited there
    and not for want of training: it is never too old."""
    behind = versions_behind(version, sample.turn)
    return min(behind, MAX_VERSION_AGE) if sample.was_held_back else behind


def newest_sample(turn: Turn) -> TrainingSample | None:
    return max(turn.samples.all(), key=lambda sample: sample.pk, default=None)


class Waiting:
    """How many of a user's ratings are ready, and how many start a job: looked up once at most, for
    all a page shows."""

    def __init__(self, user: User) -> None:
        self.user = user

    @cached_property
    def policy(self) -> TrainingPolicy:
        return training_policy()

    @cached_property
    def have(self) -> int:
        return usable_among(ready_samples(self.user), method_of(self.policy)).count()

    @property
    def need(self) -> int:
        return batch_of(self.policy)


def receipt(turn: Turn, waiting: Waiting | None = None) -> dict[str, Any] | None:
    """What became of the turn's rating, or of a judge's reading of what came next; None when there
    is neither. `waiting` is of the turn's user."""
    sample = newest_sample(turn)
    if sample is None:
        return None
    state = _PUBLIC_STATE[SampleState(sample.state)]
    if state == "counted" and turn.session.locked:
        state = "saved"
    elif state == "counted" and sample.held_back:
        state = "held_back"
    waits = (waiting or Waiting(turn.session.user)) if state in ("saved", "counted") else None
    count = {"have": waits.have, "need": waits.need} if waits else None
    job = sample.job if state in ("in_training", "learned") else None
    return {
        "state": state,
        "count": count,
        "drop_reason": sample.drop_reason or None,
        "job": job.public_id if job else None,
        "adapter": sample.adapter.name if sample.adapter else None,
        "text": _receipt_text(sample, state, count),
        "judged": sample.judgement_id is not None,
    }


def _receipt_text(sample: TrainingSample, state: str, count: dict[str, int] | None) -> str:
    """The receipt as a person reads it."""
    words = _receipt_words(sample, state, count)
    read = sample.judgement_id and state in ("counted", "held_back", "in_training", "learned")
    return _("%(words)s, from what came next") % {"words": words} if read else words


def _receipt_words(sample: TrainingSample, state: str, count: dict[str, int] | None) -> str:
    if state == "counted" and count and count["have"] < count["need"]:
        return _("counted (%(have)s of %(need)s)") % count
    if state == "in_training" and sample.job:
        return _("in training (job %(n)s)") % {"n": job_number(sample.job)}
    if sample.state == SampleState.TRAINED and sample.adapter:
        words = [_("learned in v%(n)s") % {"n": sample.adapter.version}]
        words += [_("by its thumb alone")] if sample.by_thumb else []
        words += [_("(rolled back)")] if sample.adapter.rolled_back_at else []
        return " ".join(words)
    if state == "withdrawn" and (old := sample.came_too_late_for):
        taken = _receipt_words(old, _PUBLIC_STATE[SampleState(old.state)], None)
        return _("taken back, but %(words)s") % {"words": taken}
    if state == "saved" and sample.state == SampleState.READY:
        return _("saved; its chat is kept out of training")
    if state == "not_used":
        return _("not used: %(why)s") % {"why": DropReason(sample.drop_reason).label}
    return {
        "saved": _("saved"),
        "counted": _("counted"),
        "held_back": _("kept aside to test the next version"),
        "superseded": _("put aside: the opposite was asked for since"),
        "withdrawn": _("taken back"),
        "erased": _("erased"),
    }.get(state, state)


def jobs_of(user: User) -> QuerySet[TrainingJob]:
    return _counted(TrainingJob.objects.filter(user=user))


def visible_jobs(user: User) -> QuerySet[TrainingJob]:
    """Everyone's for who runs the training (without texts), one's own for others."""
    if user.runs_training:
        return _counted(TrainingJob.objects.all())
    return jobs_of(user)


def _counted(jobs: QuerySet[TrainingJob]) -> QuerySet[TrainingJob]:
    """With what `job_json` says beside each: a page of jobs is one query."""
    until = TrainingJob.objects.filter(user=OuterRef("user"), pk__lte=OuterRef("pk")).order_by()
    new = JobSample.objects.filter(job=OuterRef("pk"), role="new").order_by()
    rows = jobs.select_related("parent", "child", "user")
    return rows.annotate(
        own_number=Subquery(until.values("user").annotate(n=Count("pk")).values("n")),
        new_samples=Coalesce(Subquery(new.values("job").annotate(n=Count("pk")).values("n")), 0),
    )


def job_number(job: TrainingJob) -> int:
    """Counts the user's jobs from 1, for people."""
    known: int | None = getattr(job, "own_number", None)  # from a list
    if known is None:
        return TrainingJob.objects.filter(user=job.user_id, pk__lte=job.pk).count()
    return known


def job_json(job: TrainingJob) -> dict[str, Any]:
    samples = getattr(job, "new_samples", None)
    return {
        "id": job.public_id,
        "number": job_number(job),
        "state": job.state,
        "method": job.method,
        "trigger": job.trigger,
        "reason": job.reason,
        "step": job.step,
        "steps": job.steps,
        "phase": job.phase,
        "attempt": job.attempt,
        "config": job.config,
        "samples": job.job_samples.filter(role="new").count() if samples is None else samples,
        "parent": job.parent.name if job.parent else None,
        "child": job.child.name if job.child else None,
        "timings": job.timings,
        "waits_for": _waits_for(job),
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
    }


def seconds_left(job: TrainingJob) -> float | None:
    """How much longer a running job will take if it takes as long as the newest ten that came to an
    end did in the middle, 0 when it has taken longer already; None when nobody can know."""
    if not job.is_active or job.started_at is None:
        return None
    ended = TrainingJob.objects.filter(state__in=[JobState.DEPLOYED, JobState.REFUSED])
    newest = ended.exclude(timings={}).order_by("-id").values_list("timings", flat=True)[:10]
    whole = [sum(phase_seconds(timings).values()) for timings in newest]
    if not whole:
        return None
    elapsed = (timezone.now() - job.started_at).total_seconds()
    return max(statistics.median(whole) - elapsed, 0.0)


def _waits_for(job: TrainingJob) -> str:
    """What a job that does not move is waiting for, in words; empty when it is not waiting."""
    if job.state == JobState.QUEUED:
        runs = [JobState.LOADING, JobState.TRAINING, JobState.GATING]
        if TrainingJob.objects.filter(state__in=runs).exclude(pk=job.pk).exists():
            return _("the training worker, which is busy with another job")
        if not (at := list(workers("worker-gpu").values_list("doing", flat=True))):
            return _("a training worker to start")
        if all(map(sentences.gets_ready, at)):
            return _("the training worker: %(doing)s") % {"doing": sentences.said(at[0])}
        return _("the training worker to take it")
    if job.state == JobState.DEPLOYING and job.phase != sentences.GOING_LIVE:
        return _("the model server, which does not answer")
    if job.is_active and job.lease_until and job.lease_until < timezone.now():
        return _("its worker, which has not been heard of; the job will be taken up again")
    return ""


def metric_points(job: TrainingJob, after: int = -1) -> list[dict[str, Any]]:
    """Points after step `after`. Steps count on through a job's attempts, so a reader misses
    none."""
    return [
        {"step": row.step, "attempt": row.attempt, **row.values, "at": row.at}
        for row in job.metrics.filter(step__gt=after)
    ]


def adapters_of(user: User) -> QuerySet[AdapterVersion]:
    """Newest first, which has to be said: a count per row makes Django forget the model's order."""
    ratings = Count("learned_samples__turn", distinct=True)
    rows = user.adapters.annotate(ratings=ratings).order_by("-version")
    return rows.select_related("parent", "job").prefetch_related("gate")


def _ratings(adapter: AdapterVersion) -> int:
    """How many it learned; what is left of one whose note was taken back is no other."""
    known: int | None = getattr(adapter, "ratings", None)
    if known is not None:
        return known
    return adapter.learned_samples.order_by().values("turn").distinct().count()


def adapter_json(adapter: AdapterVersion) -> dict[str, Any]:
    job = getattr(adapter, "job", None)
    return {
        "id": adapter.name,
        "name": adapter.name,
        "version": adapter.version,
        "state": adapter.state,
        "note": adapter.note,
        "parent": adapter.parent.name if adapter.parent else None,
        "job": job.public_id if job else None,
        "samples": _ratings(adapter),
        "gate": [
            {name: getattr(row, name) for name in ("measure", "value", "limit", "ok", "text")}
            for row in adapter.gate.all()
        ],
        "size_bytes": adapter.size_bytes,
        "rank": adapter.rank,
        "created_at": adapter.created_at,
        "live_at": adapter.live_at,
        "rolled_back_at": adapter.rolled_back_at,
        "forgot_at": adapter.forgot_at,
    }


def workers(kind: str) -> QuerySet[Heartbeat]:
    """Processes of a kind that were heard of within the last minute."""
    return Heartbeat.objects.filter(kind=kind, at__gt=timezone.now() - GONE_AFTER)


def system_status() -> dict[str, Any]:
    """Engine and processes as they are now; for the console and /readyz."""
    engine = get_engine()
    healthy = async_to_sync(engine.health)()
    loaded: dict[str, str] | None = None
    if healthy:
        try:
            loaded = async_to_sync(engine.loaded)()
        except RolloutError:
            healthy = False
    now = timezone.now()
    return {
        "engine": {"ok": healthy, "adapters": sorted(loaded) if loaded is not None else None},
        "workers": [
            {
                "name": row.name,
                "kind": row.kind,
                "doing": row.doing,
                "load": row.load,
                "age_seconds": (now - row.at).total_seconds(),
                "alive": now - row.at < GONE_AFTER,
            }
            for row in Heartbeat.objects.order_by("kind", "name")
        ],
    }
