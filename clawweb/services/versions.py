"""Versions: registering what training saved, and moving `live` by compare-and-swap."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from django.db import IntegrityError, transaction
from django.db.models import Max, Min
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from clawweb import sentences
from clawweb.config import config
from clawweb.engine import base_hash, install_id
from clawweb.events import changed
from clawweb.models import (
    ACTIVE_JOB,
    AdapterState,
    AdapterVersion,
    ChatSession,
    Consent,
    Event,
    GateResult,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
    TurnState,
    User,
)
from clawweb.selectors.forgetting import versions_that_learned_from
from clawweb.selectors.learning import fits, line_of, live_adapter
from clawweb.services import audit, serving
from clawweb.services.errors import (
    CannotDelete,
    CannotPromote,
    LeaseLost,
    NothingToRollBack,
)
from clawweb.services.feedback import give_back
from clawweb.services.jobs import held

log = logging.getLogger(__name__)


class Measure(Protocol):
    """One gate measure, as training.gate gives it."""

    measure: str
    value: float | None
    limit: float | None
    ok: bool | None
    text: str


def next_version(user: User) -> int:
    """Numbers count on and are never used twice. One active job per user keeps this free of
    races."""
    highest = AdapterVersion.objects.filter(user=user).aggregate(Max("version"))["version__max"]
    return (highest or 0) + 1


def folder_for(user: User, version: int, attempt: int) -> Path:
    """Where this attempt at a version is written, relative to var."""
    return serving.home_of(user.pk) / f"v{version}.{attempt}"


def adapter_name(user: User, version: int, sha256: str) -> str:
    return f"{install_id()}-u{user.pk}-v{version}-{sha256[:8]}"


@transaction.atomic
def register(
    job: TrainingJob,
    *,
    version: int,
    path: Path,
    sha256: str,
    size_bytes: int,
    rank: int,
    base_hash: str,
    measures: Sequence[Measure],
    accepted: bool,
    note: str,
) -> AdapterVersion:
    """The row of a saved version with its gate results; exactly one per job, under the job's
    lease."""
    if not held(job).filter(child=None).exists():
        raise LeaseLost(job.public_id)
    adapter = AdapterVersion.objects.create(
        user=job.user,
        version=version,
        name=adapter_name(job.user, version, sha256),
        state=AdapterState.CANDIDATE if accepted else AdapterState.REFUSED,
        parent=job.parent,
        path=str(path),
        sha256=sha256,
        size_bytes=size_bytes,
        rank=rank,
        base_hash=base_hash,
        note=note,
        forgot_at=_forgot_at(job),
    )
    GateResult.objects.bulk_create(
        GateResult(
            adapter=adapter,
            measure=m.measure,
            value=m.value,
            limit=m.limit,
            ok=m.ok,
            text=m.text,
        )
        for m in measures
    )
    held(job).update(child=adapter)
    job.child = adapter
    _note(adapter, "accepted" if accepted else "refused", note)
    changed(job.user_id, "adapter", adapter.name)
    return adapter


def _forgot_at(job: TrainingJob) -> datetime | None:
    """Since when a chat is deleted that the job's version, or its parent, learned from: it did not
    from what the trainer dropped."""
    parents = AdapterVersion.objects.filter(pk=job.parent_id).values_list("forgot_at", flat=True)
    used = job.job_samples.exclude(role="new", sample__state=SampleState.DROPPED)
    chats = used.aggregate(at=Min("sample__turn__session__deleted_at"))
    return parents.first() or chats["at"]


def claim_deploy(public_id: str) -> TrainingJob | None:
    """A job that waits to be deployed, under a fresh lease; None when another worker has it."""
    now = timezone.now()
    job = TrainingJob.objects.filter(public_id=public_id, state=JobState.DEPLOYING).first()
    if job is None or (job.lease_until is not None and job.lease_until > now):
        return None
    token = str(uuid.uuid4())
    until = now + timedelta(seconds=config().lease_seconds)
    taken = TrainingJob.objects.filter(
        pk=job.pk, state=JobState.DEPLOYING, lease_token=job.lease_token
    ).update(lease_token=token, lease_until=until, phase=sentences.GOING_LIVE)
    return TrainingJob.objects.select_related("user", "child").get(pk=job.pk) if taken else None


def release_deploy(job: TrainingJob) -> None:
    """Let go, so that the sweep tries again: the engine did not answer."""
    waiting = gettext_noop("waiting for the model server")
    if held(job).update(lease_until=timezone.now(), phase=waiting):
        changed(job.user_id, "job", job.public_id)


def jobs_to_deploy() -> list[TrainingJob]:
    rows = TrainingJob.objects.filter(state=JobState.DEPLOYING)
    return list(rows.filter(lease_until=None) | rows.filter(lease_until__lt=timezone.now()))


@transaction.atomic
def go_live(
    adapter: AdapterVersion,
    *,
    over: AdapterVersion | None,
    why: str,
    live_before: Sequence[int] | None = None,
) -> None:
    """Move the user's `live` from `over` to `adapter`; CannotPromote when it has moved meanwhile.

    `live_before` is the way back from there; without it, to `over` and on from there.
    """
    if over is not None:
        stepped = AdapterVersion.objects.filter(pk=over.pk, state=AdapterState.LIVE).update(
            state=AdapterState.STANDBY
        )
        if not stepped:
            raise CannotPromote(_("Another version went live in the meantime. Look again."))
    if live_before is None:
        live_before = [*over.live_before, over.pk] if over else []
    passed = AdapterVersion.objects.filter(
        pk=adapter.pk, state__in=[AdapterState.CANDIDATE, AdapterState.STANDBY]
    )
    try:
        moved = passed.update(
            state=AdapterState.LIVE, live_at=timezone.now(), live_before=list(live_before)
        )
    except IntegrityError as exc:  # one live version per user: another writer was first
        raise CannotPromote(_("Another version went live in the meantime. Look again.")) from exc
    if not moved:
        raise CannotPromote(
            _("Version %(n)s cannot go live any more. Look again.") % {"n": adapter.version}
        )
    _in_use_again(adapter)
    User.objects.filter(trial=adapter).update(trial=None, trial_share=0)
    _note(adapter, "live", why)
    changed(adapter.user_id, "adapter", adapter.name)


def _in_use_again(adapter: AdapterVersion) -> None:
    """What a version learned, and what its ancestors did, is not rolled back while it is live."""
    at: AdapterVersion | None = adapter
    while at is not None:
        AdapterVersion.objects.filter(pk=at.pk).update(rolled_back_at=None)
        at = at.parent


def promote(*, user: User, adapter: AdapterVersion) -> None:
    """Make an accepted version of the user's live again."""
    live = live_adapter(user)
    if live is not None and live.pk == adapter.pk:
        return
    if adapter.state != AdapterState.STANDBY:
        raise CannotPromote(
            _("Version %(n)s cannot go live: only a version that passed its tests can.")
            % {"n": adapter.version}
        )
    if adapter.base_hash != base_hash():
        raise CannotPromote(
            _("Version %(n)s was trained on another base model than is served now.")
            % {"n": adapter.version}
        )
    serving.serve(adapter)
    with transaction.atomic():
        go_live(adapter, over=live, why=sentences.PROMOTED)
        audit.record("promote_version", adapter, before=_live(live), after=_live(adapter))


def rollback(user: User) -> AdapterVersion | None:
    """Move `live` to what was live before it; None = the base model answers now."""
    return _go_back(user, forgetting=False)


def leave_behind(user: User) -> AdapterVersion | None:
    """Move `live` to the newest one before it that has learned from no deleted chat; what that one
    does not know and was learned from other chats counts again. None = base answers now."""
    return _go_back(user, forgetting=True)


def clean_before(live: AdapterVersion) -> AdapterVersion | None:
    """What would answer after `leave_behind`; None = the base model."""
    return _way_back(live.live_before, forgetting=True)[0]


def _go_back(user: User, *, forgetting: bool) -> AdapterVersion | None:
    live = live_adapter(user)
    if live is None:
        raise NothingToRollBack(_("The base model answers already; there is nothing to roll back."))
    line = [row.pk for row in line_of(live)]
    back, further = _way_back(live.live_before, forgetting=forgetting)
    while back is not None:
        try:
            serving.serve(back)
            break
        except CannotPromote as exc:  # its files are gone, say: it blocks no way further back
            log.warning("%s cannot be gone back to: %s", back.name, exc)
            back, further = _way_back(further, forgetting=forgetting)
    with transaction.atomic():
        now = timezone.now()
        stepped = AdapterVersion.objects.filter(pk=live.pk, state=AdapterState.LIVE).update(
            state=AdapterState.STANDBY, rolled_back_at=now
        )
        if not stepped:
            raise CannotPromote(_("Another version went live in the meantime. Look again."))
        # Those that were stepped over are left behind as well.
        over = set(live.live_before) - {*further, back.pk if back else None}
        AdapterVersion.objects.filter(pk__in=over, rolled_back_at=None).update(rolled_back_at=now)
        _note(live, "rolled_back", "")
        if forgetting and user.consent == Consent.TRAIN:
            _count_again(user, set(line) - {row.pk for row in line_of(back)})
        if back is not None:
            why = sentences.ROLLED_BACK % {"n": live.version}
            go_live(back, over=None, why=why, live_before=further)
        audit.record("roll_back_version", live, before=_live(live), after=_live(back))
        changed(user.pk, "adapter", live.name)
    return back


def _live(adapter: AdapterVersion | None) -> dict[str, str]:
    return {"live": adapter.name if adapter else "base"}


def _count_again(user: User, left: Collection[int]) -> None:
    """What these versions learned elsewhere, as if no job had taken it; also those that have not
    learned from a deleted chat, but whose files are gone: nothing else knows it any more."""
    learned = TrainingSample.objects.filter(
        user=user,
        state=SampleState.TRAINED,
        adapter__in=left,
        replaced_by=None,
        turn__session__deleted_at=None,
    )
    turns = list(learned.values_list("turn__public_id", flat=True))
    rows = TrainingSample.objects.filter(pk__in=list(learned.values_list("pk", flat=True)))
    rows.update(adapter=None)
    give_back(rows.filter(state=SampleState.TRAINED))
    changed(user.pk, "receipt", *turns)


def mark_forgotten(session: ChatSession, at: datetime) -> list[AdapterVersion]:
    """Mark the versions that learned from the chat as of `at`, when it was deleted; which those
    are. An older mark stays."""
    learned = versions_that_learned_from(session)
    marked = AdapterVersion.objects.filter(pk__in=[row.pk for row in learned], forgot_at=None)
    marked.update(forgot_at=at)
    changed(session.user_id, "adapter", *(row.name for row in learned))
    return learned


def unmark_forgotten(session: ChatSession, at: datetime) -> None:
    """The chat that was deleted then is back; what other deleted ones have taught stays marked."""
    marked = AdapterVersion.objects.filter(user=session.user_id, forgot_at=at)
    names = list(marked.values_list("name", flat=True))
    marked.update(forgot_at=None)
    others = ChatSession.objects.filter(user=session.user_id, deleted_at__isnull=False)
    for other in others.exclude(pk=session.pk):
        mark_forgotten(other, other.deleted_at)  # type: ignore[arg-type]  # filtered above
    changed(session.user_id, "adapter", *names)


def delete(*, adapter: AdapterVersion) -> None:
    """Remove a version's files for good; its row and its number stay. Not of one in use."""
    job = TrainingJob.objects.filter(parent=adapter, state__in=ACTIVE_JOB).first()
    writing = adapter.turns.filter(state__in=[TurnState.PENDING, TurnState.STREAMING])
    if adapter.state not in (AdapterState.STANDBY, AdapterState.REFUSED):
        raise CannotDelete(
            _(
                "Version %(n)s cannot be deleted: only versions that do not answer now can. Roll "
                "back or make another one live first."
            )
            % {"n": adapter.version}
        )
    if job is not None:
        raise CannotDelete(_("The next version is being trained from it. Wait or cancel the job."))
    if writing.exists():
        raise CannotDelete(_("It is writing a reply. Try again when that is done."))
    serving.unload(adapter)
    if not serving.delete_files(adapter, why=sentences.DELETED):
        raise CannotDelete(_("It went live or was deleted in the meantime. Look again."))
    _note(adapter, "deleted", "")
    audit.record("delete_version", adapter, before={"state": adapter.state})
    changed(adapter.user_id, "adapter", adapter.name)


def _way_back(
    before: Sequence[int], *, forgetting: bool
) -> tuple[AdapterVersion | None, list[int]]:
    """The newest of these earlier live versions, oldest first, that can still answer
    (`forgetting`: and has learned from no deleted chat), and the way back from there."""
    way = list(before)
    while way:
        back = AdapterVersion.objects.filter(pk=way.pop(), state=AdapterState.STANDBY).first()
        is_marked = back is not None and back.forgot_at is not None
        if back is not None and fits(back) and not (forgetting and is_marked):
            return back, way
    return None, []


def refuse(adapter: AdapterVersion, note: str) -> None:
    """A candidate that cannot be served: live does not move."""
    AdapterVersion.objects.filter(pk=adapter.pk, state=AdapterState.CANDIDATE).update(
        state=AdapterState.REFUSED, note=note
    )
    _note(adapter, "refused", note)
    changed(adapter.user_id, "adapter", adapter.name)


def _note(adapter: AdapterVersion, kind: str, text: str) -> None:
    job = getattr(adapter, "job", None)
    ids = {"version": adapter.name, "user": adapter.user_id, "job": job.public_id if job else None}
    log.info("version %s", kind, extra=ids)
    Event.objects.create(
        user_id=adapter.user_id, kind=f"adapter_{kind}", adapter=adapter, job=job, text=text
    )
