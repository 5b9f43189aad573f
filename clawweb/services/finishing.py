"""A job that stops early and keeps what it has learned, and what it could not learn from."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

from django.db import transaction
from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb import sentences
from clawweb.events import changed
from clawweb.models import DropReason, Event, JobState, SampleState, TrainingJob, TrainingSample
from clawweb.services import audit
from clawweb.services.errors import LeaseLost, NothingToKeep
from clawweb.services.feedback import count_undisputed, give_back
from clawweb.services.jobs import RUNNING, end_job, held, samples_of, tell_receipts

# Why training ends before its last step, by training.types.TrainResult.stopped
_EARLY = {
    "learned": sentences.LEARNED,
    "time": sentences.TIME_UP,
    "asked": sentences.AS_ASKED,
}
_WANT_LOGPROBS = (DropReason.NO_LOGPROBS, DropReason.GREEDY)


@transaction.atomic
def finish_job(job: TrainingJob) -> None:
    """Let the job stop after the step it is at and test what it has learned by then."""
    training = TrainingJob.objects.filter(
        pk=job.pk, state__in=[JobState.LOADING, JobState.TRAINING], cancel_requested=False
    )
    if not training.update(finish_requested=True):
        raise NothingToKeep(_("The job is not training, so there is nothing to stop and keep."))
    audit.record("finish_job", job, before={"state": job.state})
    changed(job.user_id, "job", job.public_id)


def finish_wanted(job: TrainingJob) -> bool:
    return held(job).filter(finish_requested=True).exists()


def end_cancelled() -> None:
    """Cancelled jobs that no worker holds end here: theirs is gone, and none may ever come."""
    lapsed = Q(state__in=RUNNING, lease_until__lt=timezone.now())
    unheld = TrainingJob.objects.filter(Q(state=JobState.QUEUED) | lapsed, cancel_requested=True)
    for job in unheld:
        with transaction.atomic():
            same = unheld.filter(pk=job.pk, lease_token=job.lease_token)
            if same.update(lease_token=str(uuid.uuid4())):
                job.refresh_from_db()
                end_job(job, state=JobState.CANCELLED, reason=sentences.CANCELLED)


@transaction.atomic
def give_back_untrained(job: TrainingJob, trained: Collection[int]) -> None:
    """The ratings that an early end left out count again and are no part of the job."""
    mine = TrainingSample.objects.filter(job_samples__job=job, job_samples__role="new")
    claimed = mine.filter(job=job, state=SampleState.CLAIMED)
    left = list(claimed.exclude(pk__in=trained).values_list("pk", flat=True))
    if not left or not held(job).exists():
        return
    _let_go(job, left)
    text = sentences.NOT_REACHED % {"n": len(left)}
    Event.objects.create(user_id=job.user_id, kind="finishing", job=job, text=text)
    tell_receipts(job.user_id, TrainingSample.objects.filter(pk__in=left))


def _let_go(job: TrainingJob, samples: Collection[int]) -> None:
    """They are no part of the job any more, and count again where they still hold; what is left of
    those whose note was taken back meanwhile, too."""
    # Locked: a note that is taken back beside this replaces them, and this must be seen so.
    rows = TrainingSample.objects.filter(pk__in=samples).order_by("pk").select_for_update()
    turns = [row.turn_id for row in rows]
    job.job_samples.filter(role="new", sample__in=samples).delete()
    give_back(TrainingSample.objects.filter(job=job, state=SampleState.CLAIMED, turn__in=turns))


@transaction.atomic
def leave_out_withdrawn(job: TrainingJob) -> None:
    """Ratings that were taken back while the job waited, or a note of theirs, are no part of it,
    nor those of chats that are deleted or kept out by now."""
    newest = TrainingSample.objects.filter(turn=OuterRef("turn")).order_by("-pk").values("state")
    mine = TrainingSample.objects.filter(job=job, state=SampleState.CLAIMED)
    unwanted = mine.annotate(newest=Subquery(newest[:1])).filter(
        Q(newest=SampleState.WITHDRAWN)  # changed before it was taken back, perhaps
        | Q(replaced_by__state=SampleState.WITHDRAWN)
        | Q(replaced_by__job=job)
        | Q(turn__session__locked=True)
        | Q(turn__session__deleted_at__isnull=False)
    )
    gone = list(unwanted.values_list("pk", flat=True))
    if gone and held(job).exists():
        _let_go(job, gone)
        tell_receipts(job.user_id, TrainingSample.objects.filter(pk__in=gone))
        changed(job.user_id, "job", job.public_id)


@transaction.atomic
def note_early_end(job: TrainingJob, stopped: str) -> None:
    """Why training ended before its last step, where it did."""
    left = held(job).filter(step__lt=F("steps")).values_list("step", "steps").first()
    if left and stopped in _EARLY:
        text = _EARLY[stopped] % {"n": left[0], "of": left[1]}
        Event.objects.create(user_id=job.user_id, kind="ended_early", job=job, text=text)


@transaction.atomic
def note_unheard(job: TrainingJob, unheard: Collection[int], *, distils: bool) -> None:
    """Which of the job's samples taught by their thumb alone: those whose words are about a kind of
    request that the model does not tell from others, and all where it trained by a method that
    leaves words aside. What is replayed taught an earlier version as it did.
    """
    if not held(job).exists():
        raise LeaseLost(job.public_id)
    mine = TrainingSample.objects.filter(job=job, state=SampleState.CLAIMED)
    mine.update(by_thumb=False)
    words = mine.exclude(hint="", correction="")
    turns = TrainingSample.objects.filter(pk__in=unheard).values("turn")
    (words.filter(turn__in=turns) if distils else words).update(by_thumb=True)
    if count := mine.filter(pk__in=unheard).update(token_effects=None):
        text = sentences.UNHEARD % {"n": count}
        Event.objects.create(user_id=job.user_id, kind="unheard", job=job, text=text)


@transaction.atomic
def drop_samples(
    job: TrainingJob, reasons: Mapping[int, str], *, unheard: Collection[int] = ()
) -> None:
    """Samples that the trainer could not use, each with its reason; what only this job's method
    cannot use counts again: a hint is distilled without log-probs. So does a like of a reply that
    followed what asks for nothing. Of the `unheard` the thumb alone is left, which is as any other.
    """
    if not held(job).exists():
        raise LeaseLost(job.public_id)
    mine = TrainingSample.objects.filter(job=job, state=SampleState.CLAIMED)
    list(mine.order_by("pk").select_for_update())  # as in _let_go
    rows = {row.pk: row for row in samples_of(job)}
    hinted = {pk for pk, row in rows.items() if row.teaches} - set(unheard)
    later = [pk for pk, why in reasons.items() if pk in hinted and why in _WANT_LOGPROBS]
    _let_go(job, later)
    followed = {pk for pk, why in reasons.items() if pk in rows and _followed(rows[pk], why)}
    _drop(mine, {pk: why for pk, why in reasons.items() if pk not in followed})
    # By now it is known what of that asked for nothing; thumbs up beside it are as any other.
    _let_go(job, [pk for pk in followed if not rows[pk].teaches])
    _drop(mine, reasons)  # those that are still the job's
    give_back(mine.filter(turn__samples__in=list(reasons)))  # without the note it may train
    count_undisputed(job.user_id)
    tell_receipts(job.user_id, TrainingSample.objects.filter(pk__in=list(reasons)))


def _followed(row: TrainingSample, why: str) -> bool:
    """Whether nothing was said of it but that it is liked: what did nothing stood in its prompt."""
    return why == DropReason.HINT_NO_EFFECT and not (row.hint or row.correction)


def _drop(mine: QuerySet[TrainingSample], reasons: Mapping[int, str]) -> None:
    for pk, reason in reasons.items():
        dropped = mine.filter(pk=pk)
        dropped.update(state=SampleState.DROPPED, drop_reason=DropReason(reason), job=None)
