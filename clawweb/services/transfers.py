"""Writes of exports and imports: queueing, leases, progress, ends, and the files' seven days.

A worker holds a transfer by a lease, as with jobs. One that dies leaves a row whose lease runs out,
and another worker starts over; what it had written is under another name and never served.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb import disk, sentences
from clawweb.config import config
from clawweb.events import changed
from clawweb.models import SHAPES, Consent, Transfer, TransferState, User
from clawweb.models.ids import transfer_id
from clawweb.records import BadLine, parse_line, shape_of
from clawweb.services import audit, quotas
from clawweb.services.errors import (
    AlreadyRunning,
    FileErased,
    LeaseLost,
    NotReady,
    NotRecorded,
    ServiceError,
    TooLarge,
)

LINES_EXPORTED = tuple(shape for shape in SHAPES if shape not in ("openclaw", "everything"))
EXPORTED = tuple(shape for shape in SHAPES if shape != "openclaw")
MAX_UPLOAD = 50 * 1024 * 1024  # bytes
MAX_ATTEMPTS = 3
KEPT = timedelta(days=7)
UNDER_WAY = (TransferState.QUEUED, TransferState.RUNNING)


def folder() -> Path:
    """Where the files are; nobody else on the machine may look into it."""
    path = config().var / "transfers"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def queue_export(*, user: User, shape: str = "conversations") -> Transfer:
    """A queued export of all of the user's data in this shape."""
    if shape not in EXPORTED:
        raise ServiceError(f"An export's shape is one of {', '.join(EXPORTED)}.")
    quotas.check_disk()
    return _queue(user, kind="export", shape=shape)


def queue_import(*, user: User, chunks: Iterable[bytes]) -> Transfer:
    """A queued import of the file that comes in `chunks`; the lines are checked by the worker."""
    if User.objects.get(pk=user.pk).consent == Consent.NOTHING:
        raise NotRecorded(_("You asked to keep nothing of your chats, so none can be taken in."))
    _refuse_second(user, "import")
    quotas.check_disk()
    name = transfer_id()
    path = folder() / f"{name}.in"
    try:
        _save(path, chunks)
        return _queue(
            user, kind="import", shape=_shape_in(path), public_id=name, path=_relative(path)
        )
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _save(path: Path, chunks: Iterable[bytes]) -> None:
    size = 0
    with open(path, "xb", opener=private) as file:
        for chunk in chunks:
            size += len(chunk)
            if size > MAX_UPLOAD:
                raise TooLarge(
                    _(
                        "The file is larger than %(n)s MB. Split it between lines and bring in "
                        "the parts one after another."
                    )
                    % {"n": MAX_UPLOAD // 1024 // 1024}
                )
            file.write(chunk)
    if not size:
        raise ServiceError(_("The file is empty."))


def private(path: str, flags: int) -> int:
    """An opener of files that only we may read."""
    return os.open(path, flags, 0o600)


def _shape_in(path: Path) -> str:
    """What its first line that can be read is; the worker looks at each for itself."""
    with path.open("rb") as file:
        for _i in range(100):
            try:
                return shape_of(parse_line(file.readline(1 << 20)))
            except BadLine:
                continue
    return "conversations"


def _queue(user: User, **values: Any) -> Transfer:
    with transaction.atomic():
        # Two calls at once would both find none under way (SQLite's writers wait at BEGIN).
        User.objects.select_for_update().get(pk=user.pk)
        _refuse_second(user, values["kind"])
        row = Transfer.objects.create(user=user, **values)
        audit.record(f"{row.kind}_data", row, after={"shape": row.shape})
        changed(user.pk, "transfer", row.public_id)
    return row


def _refuse_second(user: User, kind: str) -> None:
    if Transfer.objects.filter(user=user, kind=kind, state__in=UNDER_WAY).exists():
        raise AlreadyRunning(
            _("An export of yours is under way. Wait until it is done.")
            if kind == "export"
            else _("An import of yours is under way. Wait until it is done.")
        )


# What follows is called by workers. Each write is conditional on the transfer's lease.


def claim(public_id: str) -> Transfer | None:
    """The transfer under a fresh lease of ours; None when it is not to be had now.

    One runs at a time, so that deploys and sweeps find a free worker; while the disk is almost
    full none does.
    """
    if disk.is_low():
        return None
    now = timezone.now()
    row = Transfer.objects.filter(public_id=public_id, state__in=UNDER_WAY).first()
    if row is None or (row.state == TransferState.RUNNING and row.lease_until > now):
        return None
    others = Transfer.objects.filter(state=TransferState.RUNNING, lease_until__gt=now)
    if others.exclude(pk=row.pk).exists():
        return None
    attempt = _attempt(row) + 1
    takes = Transfer.objects.filter(pk=row.pk, state=row.state, lease_token=row.lease_token)
    claimed = takes.update(
        state=TransferState.RUNNING,
        lease_token=f"{attempt}-{uuid.uuid4().hex}",
        lease_until=now + timedelta(seconds=config().lease_seconds),
        done=0,
        total=None,
    )
    if not claimed:
        return None
    row = Transfer.objects.select_related("user").get(pk=row.pk)
    if attempt > MAX_ATTEMPTS:
        end(row, note=sentences.DIED % {"n": MAX_ATTEMPTS})
        return None
    changed(row.user_id, "transfer", row.public_id)
    return row


def _attempt(row: Transfer) -> int:
    """How often it was claimed; the token says so, and a token is never reused."""
    return int(row.lease_token.partition("-")[0] or 0)


def _held(row: Transfer) -> QuerySet[Transfer]:
    return Transfer.objects.filter(
        pk=row.pk, state=TransferState.RUNNING, lease_token=row.lease_token
    )


def advance(row: Transfer, *, done: int, total: int) -> None:
    """Write how far it is and keep the lease; LeaseLost when another worker has it."""
    until = timezone.now() + timedelta(seconds=config().lease_seconds)
    if not _held(row).update(done=done, total=total, lease_until=until):
        raise LeaseLost(row.public_id)
    changed(row.user_id, "transfer", row.public_id)


def put_back(row: Transfer) -> None:
    """Let go of a transfer that is in order: its worker is asked to stop."""
    _held(row).update(state=TransferState.QUEUED, lease_token="", lease_until=None)


def end(row: Transfer, *, note: str, file: Path | None = None, succeeded: bool = False) -> None:
    """End it under its lease, with the file that it made, if any."""
    old = config().var / row.path if row.path else None
    ended = _held(row).update(
        state=TransferState.DONE if succeeded else TransferState.FAILED,
        note=note,
        path=_relative(file) if file else "",
        lease_token="",
        lease_until=None,
        finished_at=timezone.now(),
    )
    if not ended:
        raise LeaseLost(row.public_id)
    if old is not None:
        old.unlink(missing_ok=True)  # what was brought in is in the rows now
    changed(row.user_id, "transfer", row.public_id)


def _relative(path: Path) -> str:
    return str(path.relative_to(config().var))


def file_of(row: Transfer) -> Path:
    """The finished export's file; NotReady or FileErased when there is none."""
    if row.state in UNDER_WAY:
        raise NotReady(_("The file is being written. It can be fetched when the export is done."))
    if row.state == TransferState.FAILED:
        raise NotReady(_("The export failed, so there is no file. Start another."))
    path = config().var / row.path
    if not row.path or not path.is_file():
        raise FileErased(_("The file was erased after seven days. Export again."))
    return path


def forgotten() -> list[Transfer]:
    """Transfers that no worker holds: queued, or running under a lease that has run out."""
    lapsed = Q(state=TransferState.RUNNING, lease_until__lt=timezone.now())
    return list(Transfer.objects.filter(Q(state=TransferState.QUEUED) | lapsed).order_by("id"))


def remove_files(name: str) -> None:
    """All that is written of a transfer, finished or not."""
    for path in folder().glob(f"{name}*"):
        path.unlink(missing_ok=True)


def erase_old() -> None:
    """Erase files of exports that ended a week ago, and old ones that no row names."""
    now = timezone.now()
    for row in Transfer.objects.filter(finished_at__lt=now - KEPT).exclude(path=""):
        if Transfer.objects.filter(pk=row.pk, path=row.path).update(path=""):
            (config().var / row.path).unlink(missing_ok=True)
            changed(row.user_id, "transfer", row.public_id)
    named = set(Transfer.objects.exclude(path="").values_list("path", flat=True))
    yesterday = (now - timedelta(days=1)).timestamp()  # younger ones may be being written
    for path in folder().iterdir():
        if _relative(path) not in named and path.stat().st_mtime < yesterday:
            path.unlink(missing_ok=True)
