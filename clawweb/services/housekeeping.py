"""Writes about a session as a whole: its name, its place in the list, its training, its end."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb.events import changed
from clawweb.models import ChatSession, Event, SampleState, TrainingSample
from clawweb.services import erasure
from clawweb.services.chat import request_stop
from clawweb.services.errors import ServiceError
from clawweb.services.feedback import count_undisputed
from clawweb.services.versions import mark_forgotten, unmark_forgotten

TITLE_CHARS = 200
UNDO = timedelta(minutes=10)  # how long a deleted session can be had back


@transaction.atomic
def edit_session(
    session: ChatSession,
    *,
    title: str | None = None,
    pinned: bool | None = None,
    locked: bool | None = None,
) -> None:
    """Rename, pin, or keep out of training; what is None stays. Ratings that no job has taken yet
    do not train while the lock is on."""
    values: dict[str, object] = {}
    if title is not None:
        title = " ".join(title.split())[:TITLE_CHARS]
        if not title:
            raise ServiceError(_("A chat's name has at least one letter."))
        values["title"] = title
    values |= {
        name: value for name, value in [("pinned", pinned), ("locked", locked)] if value is not None
    }
    if values:
        ChatSession.objects.filter(pk=session.pk).update(**values)
        changed(session.user_id, "session", session.public_id)
    if locked is not None:
        open_ones = session.turns.filter(samples__state=SampleState.READY)
        changed(session.user_id, "receipt", *open_ones.values_list("public_id", flat=True))
        count_undisputed(session.user_id)  # what is asked for in there keeps nothing aside


@transaction.atomic
def delete_session(session: ChatSession) -> None:
    """Hide it at once, stop what is being written, and mark the versions that learned from it;
    `erase_deleted` ends it for good."""
    now = timezone.now()
    if ChatSession.objects.filter(pk=session.pk, deleted_at=None).update(deleted_at=now):
        mark_forgotten(session, now)
        count_undisputed(session.user_id)
    for turn in session.turns.filter(finished_at=None):
        request_stop(turn)
    changed(session.user_id, "session", session.public_id)


@transaction.atomic
def restore_session(session: ChatSession) -> None:
    """Undo a deletion."""
    deleted_at = ChatSession.objects.get(pk=session.pk).deleted_at
    deleted = ChatSession.objects.filter(pk=session.pk, deleted_at=deleted_at)
    if deleted_at is None or not deleted.update(deleted_at=None):
        return
    unmark_forgotten(session, deleted_at)
    changed(session.user_id, "session", session.public_id)


def erase_deleted() -> int:
    """Erase the rows of sessions that were deleted a while ago; how many. What a job is training on
    waits for its end. A version keeps what it learned: the event says which ones did."""
    due = ChatSession.objects.filter(deleted_at__lt=timezone.now() - UNDO)
    busy = TrainingSample.objects.filter(state=SampleState.CLAIMED).values("turn__session_id")
    erased = 0
    for session in due.exclude(pk__in=busy):
        with transaction.atomic():
            erased += _erase(session)
    return erased


def _erase(session: ChatSession) -> int:
    deleted = ChatSession.objects.select_for_update().filter(pk=session.pk)
    if session.deleted_at is None or not deleted.filter(deleted_at=session.deleted_at):
        return 0  # its user has it back
    claimed = TrainingSample.objects.filter(turn__session=session, state=SampleState.CLAIMED)
    if claimed.exists():
        return 0
    erasure.bury(erasure.SESSION, session.public_id)
    learned = erasure.erase_chat(session, session.deleted_at)
    versions = ", ".join(f"v{row.version}" for row in learned)
    text = f"ratings in it were learned in {versions}" if versions else ""
    Event.objects.create(user_id=session.user_id, kind="chat_erased", text=text)
    return 1
