"""Writes of training jobs: queueing, leases, claiming samples, recording, ending.

A job's worker holds a lease: a token and a time. Every write is conditional on the token, so a
worker that was thought dead and is not cannot write over the one that took its place.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Max, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from clawweb import disk, sentences
from clawweb.config import config
from clawweb.events import changed
from clawweb.models import (
    ACTIVE_JOB,
    OPEN_SAMPLE,
    AdapterVersion,
    Consent,
    DropReason,
    Event,
    JobSample,
    JobState,
    SampleState,
    StepMetric,
    TrainingJob,
    TrainingSample,
    User,
)
from clawweb.selectors.hints import learned_samples, put_aside, replayed_samples
from clawweb.selectors.learning import (
    MAX_VERSION_AGE,
    age_of,
    live_adapter,
    ready_samples,
    settled_samples,
    trained_on_from,
)
from clawweb.selectors.policy import batch_of, method_of, quiet_until, training_policy
from clawweb.selectors.usable import usable_among, why_nothing
from clawweb.services import audit, quotas
from clawweb.services.errors import (
    AlreadyTraining,
    LeaseLost,
    NothingReady,
    ServiceError,
    UnknownSetting,
)
from clawweb.services.feedback import count_undisputed, give_back
from training.config import check_chosen

log = logging.getLogger(__name__)

MAX_SAMPLES = 64
MAX_ATTEMPTS = 3
RUNNING = (JobState.LOADING, JobState.TRAINING, JobState.GATING)


def queue_job(
    *,
    user: User,
    trigger: str = "manual",
    method: str | None = None,
    chosen: Mapping[str, object] = {},
) -> TrainingJob:
    """A queued job for what is ready now; says why when there is none to be had. `method`: None for
    the installation's. `chosen`: fields of TrainConfig with other values than their defaults."""
    method = method or method_of(training_policy())
    try:
        check_chosen(chosen)
    except ValueError as exc:
        raise UnknownSetting(str(exc)) from exc
    have = usable_among(ready_samples(user), method, chosen).count()
    if user.consent != Consent.TRAIN:
        raise NothingReady(_(sentences.UNWANTED))
    quotas.check_training(user)
    if TrainingJob.objects.filter(user=user, state__in=ACTIVE_JOB).exists():
        raise AlreadyTraining(_("A training of yours is not over yet; it comes first."))
    if not have:
        raise NothingReady(why_nothing(ready_samples(user), method))
    try:
        with transaction.atomic():
            job = TrainingJob(user=user, trigger=trigger, method=method, config=chosen)
            job.save()
            _note(job, "queued", sentences.READY % {"n": have})
            if trigger == "manual":
                audit.record("start_job", job)
            changed(user.pk, "job", job.public_id)
    except IntegrityError as exc:
        raise AlreadyTraining(_("A job of yours has just been queued.")) from exc
    return job


def queue_batch(user: User) -> TrainingJob | None:
    """A job if the batch is full and nothing speaks against it; else None."""
    policy = training_policy()
    usable = usable_among(ready_samples(user), method_of(policy))
    paused = User.objects.filter(pk=user.pk, learning_paused=True)
    if usable.count() < batch_of(policy) or paused.exists():
        return None
    if quiet_until(policy, timezone.now()):
        return None  # the sweep asks again
    last = TrainingJob.objects.filter(user=user).first()
    if last is not None and last.state != JobState.DEPLOYED:
        # What was refused or cancelled is not tried again by itself before something new was said.
        new = Q(pk__gt=last.seen_sample or _newest_before(last))
        if last.state != JobState.CANCELLED and last.finished_at:
            new |= Q(settles_at__gt=last.finished_at)  # waited for a reason while it ran
        if not usable.filter(new).exists():
            return None
    try:
        return queue_job(user=user, trigger="batch", method=method_of(policy))
    except ServiceError:  # a quota, the disk, another job: the sweep asks again
        return None


def _newest_before(job: TrainingJob) -> int:
    """The user's newest sample when a job that claimed nothing was queued."""
    older = TrainingSample.objects.filter(user=job.user_id, created_at__lte=job.created_at)
    return older.order_by("-id").values_list("pk", flat=True).first() or 0


def users_with_batches() -> list[User]:
    """Users with ready samples and no active job; the sweep asks `queue_batch` about each."""
    waiting = settled_samples(held_back=False)
    busy = TrainingJob.objects.filter(state__in=ACTIVE_JOB).values("user_id")
    users = User.objects.filter(pk__in=waiting.values("user_id"), learning_paused=False)
    return list(users.exclude(pk__in=busy))


def claim_job(public_id: str) -> TrainingJob | None:
    """The job under a fresh lease, its samples claimed; None when it is not to be had.

    Takes a queued job, or a running one whose lease ran out; none while the disk is almost full.
    After three attempts that ended without a word the job fails instead.
    """
    now = timezone.now()
    job = TrainingJob.objects.filter(public_id=public_id).first()
    if disk.is_low() or job is None or job.state not in (JobState.QUEUED, *RUNNING):
        return None
    takes = TrainingJob.objects.filter(pk=job.pk, state=job.state, lease_token=job.lease_token)
    if job.state in RUNNING:
        takes = takes.filter(lease_until__lt=now)  # nobody has renewed it for a whole lease
    lapsed = job.state in RUNNING
    if lapsed and job.crashes + 1 >= MAX_ATTEMPTS:
        if takes.update(lease_token=str(uuid.uuid4())):
            job.refresh_from_db()
            end_job(job, state=JobState.FAILED, reason=sentences.DIED % {"n": MAX_ATTEMPTS})
        return None
    with transaction.atomic():
        claimed = takes.update(
            state=JobState.LOADING,
            lease_token=str(uuid.uuid4()),
            lease_until=now + timedelta(seconds=config().lease_seconds),
            attempt=F("attempt") + 1,
            crashes=F("crashes") + int(lapsed),
            started_at=job.started_at or now,
            phase=gettext_noop("loading the model"),
            step=0,
        )
        if not claimed:
            return None
        job = TrainingJob.objects.select_related("user", "parent").get(pk=job.pk)
        if job.attempt == 1:
            _claim_samples(job)
        _note(job, "started", sentences.ATTEMPT % {"n": job.attempt})
        changed(job.user_id, "job", job.public_id)
    return job


def _claim_samples(job: TrainingJob) -> None:
    """All ready samples that the method can use, oldest first, at most 64; those that may not train
    are dropped with the reason."""
    job.parent = trained_on_from(live_adapter(job.user))
    job.save(update_fields=["parent"])
    usable = usable_among(ready_samples(job.user), job.method, job.config)
    ready = usable.select_related("turn", "user", "feedback")
    samples = [row for row in ready[:MAX_SAMPLES] if not _is_dropped(row, job)]
    replayed = replayed_samples(job.parent, samples, job.method)
    contradicted = put_aside(samples, replayed, job.parent)
    for sample in samples:
        mine = TrainingSample.objects.filter(pk=sample.pk, state=SampleState.READY)
        left = contradicted.get(sample.pk)
        # An answer that was written under a wish goes with it.
        rest = {"hint": left, "correction": ""} if left else {}
        if left == "":
            mine.update(state=SampleState.SUPERSEDED)
        elif mine.update(state=SampleState.CLAIMED, job=job, **rest):
            JobSample.objects.create(job=job, sample=sample, role="new")
            log.info("taken to learn from", extra=_ids(job, turn=sample.turn.public_id))
    changed(job.user_id, "receipt", *(sample.turn.public_id for sample in samples))
    for sample in replayed:
        if sample.pk not in contradicted:
            JobSample.objects.create(job=job, sample=sample, role="replay")


def _is_dropped(sample: TrainingSample, job: TrainingJob) -> bool:
    """Whether the ready sample may not train; then it contradicts none of the others either."""
    reason = None
    if job.user.consent != Consent.TRAIN:
        reason = DropReason.CONSENT
    elif age_of(sample, job.parent) > MAX_VERSION_AGE:
        reason = DropReason.STALE
    if reason:
        mine = TrainingSample.objects.filter(pk=sample.pk, state=SampleState.READY)
        mine.update(state=SampleState.DROPPED, drop_reason=reason)
        changed(job.user_id, "receipt", sample.turn.public_id)
    return reason is not None


def samples_of(job: TrainingJob, role: str = "new") -> list[TrainingSample]:
    """Those of a job that still hold: what was taken back since it was claimed is not replayed."""
    claimed = TrainingSample.objects.filter(state=SampleState.CLAIMED, job=job)
    rows = claimed if role == "new" else learned_samples(job.parent)
    rows = rows.filter(job_samples__job=job, job_samples__role=role)
    return list(rows.select_related("turn__session", "user").order_by("id"))


def held(job: TrainingJob) -> QuerySet[TrainingJob]:
    """The job's row while the lease that `job` was claimed with is still the row's."""
    mine = TrainingJob.objects.filter(pk=job.pk, lease_token=job.lease_token, state__in=ACTIVE_JOB)
    return mine.exclude(lease_token="")  # handed over: nobody holds it


def renew(job: TrainingJob) -> bool:
    """Keep the lease; False when it is lost. A job that should be cancelled keeps its lease until
    it ends."""
    until = timezone.now() + timedelta(seconds=config().lease_seconds)
    return bool(held(job).update(lease_until=until))


@transaction.atomic
def put_back(job: TrainingJob, why: str = gettext_noop("its worker was stopped")) -> None:
    """Let go of a job that is in order, to be taken up again. Its samples stay claimed."""
    if held(job).update(state=JobState.QUEUED, lease_token="", lease_until=None, phase=""):
        _note(job, "put_back", why)
        changed(job.user_id, "job", job.public_id)


def cancel_wanted(job: TrainingJob) -> bool:
    return held(job).filter(cancel_requested=True).exists()


@transaction.atomic
def advance(job: TrainingJob, **values: Any) -> None:
    """Write progress (state, phase, step, steps, config, timings …) under the lease."""
    if not held(job).update(**values):
        raise LeaseLost(job.public_id)
    for name, value in values.items():
        setattr(job, name, value)
    if "state" in values:
        _note(job, values["state"], values.get("phase", ""))
    changed(job.user_id, "job", job.public_id)


@transaction.atomic
def record_step(
    job: TrainingJob, *, step: int, steps: int, values: Mapping[str, Any], phase: str
) -> None:
    """One metric row; its step counts on from earlier attempts'. Unmeasured values are left out;
    what is no number is kept by its name (nan, inf, -inf), as JSON has none for it."""
    if not held(job).update(step=step, steps=steps, phase=phase):
        raise LeaseLost(job.public_id)
    earlier = job.metrics.exclude(attempt=job.attempt).order_by("-step").first()
    offset = earlier.step if earlier else 0
    StepMetric.objects.create(
        job=job,
        attempt=job.attempt,
        step=offset + step,
        values={name: _storable(value) for name, value in values.items() if value is not None},
    )
    changed(job.user_id, "job", job.public_id)


def _storable(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@transaction.atomic
def note_reanswers(job: TrainingJob, sample_ids: Iterable[int]) -> None:
    """Which samples' prompts the candidate answered again in training."""
    if not held(job).exists():
        raise LeaseLost(job.public_id)
    there = TrainingSample.objects.filter(pk__in=list(sample_ids))  # a chat may be erased meanwhile
    for sample in there:
        JobSample.objects.get_or_create(job=job, sample=sample, role="reanswer")


@transaction.atomic
def note_effects(job: TrainingJob, effects: Mapping[int, Iterable[float]]) -> None:
    """How far the hint moves each token of the job's samples."""
    if not held(job).exists():
        raise LeaseLost(job.public_id)
    for pk, values in effects.items():
        rounded = [round(value, 4) for value in values]
        TrainingSample.objects.filter(pk=pk, job=job).update(token_effects=rounded)


@transaction.atomic
def end_job(
    job: TrainingJob, *, state: JobState, reason: str = "", learned: AdapterVersion | None = None
) -> None:
    """End the job under its lease and settle its samples: learned, or back to counted."""
    known = TrainingSample.objects.filter(user=job.user_id)  # who cancels has seen all of them
    if state != JobState.CANCELLED:
        known = known.filter(job_samples__job=job, job_samples__role="new")
    ended = held(job).update(
        state=state,
        reason=reason,
        phase="",
        lease_token="",
        lease_until=None,
        finished_at=timezone.now(),
        seen_sample=known.aggregate(Max("pk"))["pk__max"],
    )
    if not ended:
        raise LeaseLost(job.public_id)
    mine = TrainingSample.objects.filter(job=job, state=SampleState.CLAIMED)
    touched = list(mine.select_for_update().values_list("pk", flat=True))
    if learned is not None:
        mine.update(state=SampleState.TRAINED, adapter=learned)
    else:
        give_back(mine, refused=state == JobState.REFUSED)
    count_undisputed(job.user_id)
    _note(job, state, reason)
    turns = TrainingSample.objects.filter(pk__in=touched).values_list("turn__public_id", flat=True)
    for turn in turns if learned else ():
        log.info("learned", extra=_ids(job, turn=turn, version=learned))
    changed(job.user_id, "receipt", *turns)
    changed(job.user_id, "job", job.public_id)


@transaction.atomic
def withdraw_consent(user: User) -> None:
    """Nothing that is not learned yet is: a running job ends, and what counted is dropped."""
    unlearned = TrainingSample.objects.filter(
        Q(state__in=OPEN_SAMPLE)
        | Q(state=SampleState.SUPERSEDED, replaced_by=None)  # could count again
        | Q(state=SampleState.DROPPED, drop_reason=DropReason.SIDE_TURN)
        | Q(state=SampleState.DROPPED, drop_reason=DropReason.NO_SIGNAL, judgement__isnull=False),
        user=user,
    )
    touched = list(unlearned.values_list("pk", flat=True))
    unlearned.update(state=SampleState.DROPPED, drop_reason=DropReason.CONSENT, held_back=False)
    tell_receipts(user.pk, TrainingSample.objects.filter(pk__in=touched))
    for job in TrainingJob.objects.filter(user=user, state__in=ACTIVE_JOB):
        cancel_job(job)


def tell_receipts(user_id: int, samples: QuerySet[TrainingSample]) -> None:
    """Open pages look at these ratings' receipts again."""
    changed(user_id, "receipt", *samples.values_list("turn__public_id", flat=True))


def cancel_job(job: TrainingJob) -> bool:
    """Cancel: a queued job ends at once, a running one at its next micro-batch, one that waits to
    go live when that is tried again. False when it is over."""
    queued = TrainingJob.objects.filter(pk=job.pk, state=JobState.QUEUED)
    with transaction.atomic():
        if queued.update(lease_token=str(uuid.uuid4())):
            job.refresh_from_db()
            unbegun = gettext_noop("It was cancelled before it started.")
            reason = sentences.CANCELLED if job.attempt else unbegun  # put back by its worker
            end_job(job, state=JobState.CANCELLED, reason=reason)
            audit.record("cancel_job", job, before={"state": "queued"})
            return True
        running = TrainingJob.objects.filter(pk=job.pk, state__in=[*RUNNING, JobState.DEPLOYING])
        asked = running.update(cancel_requested=True)
        if asked:
            audit.record("cancel_job", job, before={"state": job.state})
            changed(job.user_id, "job", job.public_id)
    return bool(asked)


def forgotten_jobs() -> list[TrainingJob]:
    """Jobs that no worker holds: queued, or running under a lease that has run out."""
    queued = TrainingJob.objects.filter(state=JobState.QUEUED)
    lapsed = TrainingJob.objects.filter(state__in=RUNNING, lease_until__lt=timezone.now())
    return list((queued | lapsed).order_by("id"))


def _ids(job: TrainingJob, **more: Any) -> dict[str, Any]:
    return {"job": job.public_id, "user": job.user_id, **more}


def _note(job: TrainingJob, kind: str, text: str = "") -> None:
    log.info("job %s", kind, extra=_ids(job))
    Event.objects.create(user_id=job.user_id, kind=str(kind), job=job, text=text)
