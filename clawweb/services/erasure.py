"""Erasing for good: a tombstone first, then everything that it names, until nothing is left.

A tombstone is the promise: its row is written, and a line in a file beside the database, before
anything goes. `finish` keeps what tombstones promise and can be repeated; so a crash, a model
server that is down, or a backup that brings erased rows back cost time only.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO

from asgiref.sync import async_to_sync
from django.contrib.admin.models import LogEntry
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from clawweb import valkey
from clawweb.config import config
from clawweb.engine import get_engine, install_id
from clawweb.events import look_again
from clawweb.models import (
    ACTIVE_JOB,
    FINISHED,
    AdapterState,
    AdapterVersion,
    ApiKey,
    ChatSession,
    JobState,
    Tombstone,
    TrainingJob,
    Turn,
    User,
)
from clawweb.services import audit, browsers, quotas, serving, transfers
from clawweb.services.chat import request_stop
from clawweb.services.errors import ServiceError
from clawweb.services.versions import mark_forgotten
from rollouts.errors import RolloutError
from rollouts.types import Policy

log = logging.getLogger(__name__)
USER, SESSION, VERSION = "user", "session", "version"
ONLY_ADMIN = _("You are the only admin. Make somebody else one first.")


def tombstone_file() -> Path:
    """Outside of what a backup holds: a restore must not undo an erasure."""
    return config().var / "tombstones.jsonl"


def bury(kind: str, *names: str) -> None:
    """Write tombstones; again does nothing. The file is first: a promise must not get lost."""
    known = set(Tombstone.objects.filter(kind=kind).values_list("object_id", flat=True))
    fresh = [name for name in names if name not in known]
    if not fresh:
        return
    with open(tombstone_file(), "a+b", opener=_private) as file:
        if _is_torn(file):
            file.write(b"\n")
        for name in fresh:
            file.write(json.dumps({"kind": kind, "id": name}).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    Tombstone.objects.bulk_create(
        [Tombstone(kind=kind, object_id=name) for name in fresh], ignore_conflicts=True
    )


def _is_torn(file: IO[bytes]) -> bool:
    """Whether the last line has no end: the power went, or the disk was full, while it was
    written. What comes next must not be lost with it."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def is_buried(kind: str, name: str) -> bool:
    """Whether `finish` would erase what is called so."""
    return Tombstone.objects.filter(kind=kind, object_id=name).exists()


def replay() -> int:
    """Take the file's tombstones over that the rows lack, after a restore; how many. `finish`
    erases again what they name. A torn line names nothing: its promise was never given."""
    if not tombstone_file().exists():
        return 0
    found = []
    for number, line in enumerate(tombstone_file().read_bytes().splitlines(), 1):
        try:
            said = json.loads(line) if line.strip() else None
            found += [Tombstone(kind=said["kind"], object_id=said["id"])] if said else []
        except (ValueError, TypeError, LookupError):
            log.warning("line %d of %s is no tombstone", number, tombstone_file().name)
    before = Tombstone.objects.count()
    Tombstone.objects.bulk_create(found, ignore_conflicts=True)
    return Tombstone.objects.count() - before


def erase_user(user: User) -> None:
    """Shut the user out now and stop what works for them; all that is theirs goes with the next
    sweeps. Not the last admin."""
    with transaction.atomic():
        if is_last_admin(user):
            raise ServiceError(str(ONLY_ADMIN))
        audit.record("erase_user", user)
        bury(USER, _name(user))
        User.objects.filter(pk=user.pk).update(is_active=False)
        ApiKey.objects.filter(user=user, revoked_at=None).update(revoked_at=timezone.now())
        fence(user)
        look_again(user.pk)


def is_last_admin(user: User) -> bool:
    """By the rows, whatever `user` is about to become. Of two admins who go at once the second
    waits here for the first: called in the transaction that takes the last one away, or not."""
    admins = User.objects.select_for_update().filter(is_superuser=True).order_by("pk")
    is_active = dict(admins.values_list("pk", "is_active"))
    return user.pk in is_active and not any(
        active for pk, active in is_active.items() if pk != user.pk
    )


def _name(user: User) -> str:
    """The row's number and when it was made: nothing of who it was. After a restore the number
    alone may be somebody else's."""
    return f"{user.pk}.{user.date_joined.timestamp():.6f}"


def fence(user: User) -> None:
    """End the user's job here and now. Its worker has lost the lease and writes nothing more."""
    TrainingJob.objects.filter(user=user, state__in=ACTIVE_JOB).update(
        state=JobState.CANCELLED,
        reason="Its user's data is being erased.",
        lease_token=str(uuid.uuid4()),
        lease_until=None,
        cancel_requested=True,
        finished_at=timezone.now(),
    )
    for turn in Turn.objects.filter(session__user=user).exclude(state__in=FINISHED):
        request_stop(turn)


def finish() -> None:
    """Erase what tombstones name and is still, or again, there. For the sweep."""
    for name in Tombstone.objects.filter(kind=USER).values_list("object_id", flat=True):
        number = int(name.partition(".")[0])
        user = User.objects.filter(pk=number).first()
        try:
            if user is None:
                _remove(config().var / serving.home_of(number))  # a worker may have ended late
            elif _name(user) == name:
                _finish_user(user)
        except (RolloutError, OSError) as exc:  # one's trouble keeps nobody else's erasure away
            log.warning("user %s is not erased yet: %s", number, exc)
    _finish_sessions()
    _finish_versions()


def _finish_sessions() -> None:
    """Chats that a restore has brought back, and with them versions without their marks."""
    buried = Tombstone.objects.filter(kind=SESSION).values("object_id")
    for session in ChatSession.objects.filter(public_id__in=buried):
        with transaction.atomic():
            erase_chat(session, session.deleted_at or timezone.now())


def erase_chat(session: ChatSession, deleted_at: datetime) -> list[AdapterVersion]:
    """Its rows, now. What it used, and which versions learned from it, stays known: those."""
    learned = mark_forgotten(session, deleted_at)
    _forget_texts(session.turns.all())
    quotas.keep_use(session.user_id, turns=session.turns.all())
    session.delete()
    return learned


def in_valkey(turns: QuerySet[Turn]) -> list[str]:
    """Those of which texts may still be there: in its logs of tokens, also of what is kept."""
    since = timezone.now() - timedelta(seconds=2 * valkey.TTL_SECONDS)
    return list(turns.filter(created_at__gt=since).values_list("public_id", flat=True))


def _forget_texts(turns: QuerySet[Turn]) -> None:
    """Once the transaction has erased these rows."""
    names = in_valkey(turns)
    transaction.on_commit(lambda: valkey.forget_texts(names), robust=True)


def _finish_versions() -> None:
    """Versions that a restore has brought back. Their rows stay, so that numbers are not reused."""
    buried = Tombstone.objects.filter(kind=VERSION).values("object_id")
    back = AdapterVersion.objects.filter(name__in=buried).exclude(state=AdapterState.ERASED)
    for adapter in back:
        try:
            async_to_sync(get_engine().unload)(Policy(adapter=adapter.name))
            folder = config().var / adapter.path
            _remove(folder)
            for beside in folder.parent.glob(f"{folder.name}.*"):
                beside.unlink(missing_ok=True)
            # Last: a row that says erased is not looked at again.
            AdapterVersion.objects.filter(pk=adapter.pk).update(state=AdapterState.ERASED, note="")
        except (RolloutError, OSError) as exc:
            log.warning("%s is not erased yet: %s", adapter.name, exc)


def _finish_user(user: User) -> None:
    """Everything at once, when nothing is being written any more."""
    User.objects.filter(pk=user.pk).update(is_active=False)  # a restore may have let them in again
    fence(user)
    if Turn.objects.filter(session__user=user).exclude(state__in=FINISHED).exists():
        return  # its generator stops it; the next sweep looks again
    _unload(user)
    _remove(config().var / serving.home_of(user.pk))
    for name in user.transfers.values_list("public_id", flat=True):
        transfers.remove_files(name)  # also what a worker has just written and no row tells
    with transaction.atomic():
        bury(VERSION, *user.adapters.values_list("name", flat=True))
        bury(SESSION, *user.chat_sessions.values_list("public_id", flat=True))
        keys = [str(pk) for pk in ApiKey.objects.filter(user=user).values_list("pk", flat=True)]
        LogEntry.objects.filter(
            Q(content_type__model="user", object_id=user.pk)
            | Q(content_type__model="apikey", object_id__in=keys),
            content_type__app_label="clawweb",
        ).delete()
        _forget_texts(Turn.objects.filter(session__user=user))
        browsers.forget(user)
        user.delete()


def _unload(user: User) -> None:
    """The server would die of a loaded version without files."""
    engine = get_engine()
    for name in async_to_sync(engine.loaded)():
        if name.startswith(f"{install_id()}-u{user.pk}-"):
            async_to_sync(engine.unload)(Policy(adapter=name))


def _remove(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
