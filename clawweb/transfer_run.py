"""One export or import, start to end: files on one side, rows on the other, under a lease."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import zipfile
from pathlib import Path
from typing import IO

from django.db import transaction
from django.utils.translation import gettext_noop

from clawweb import disk, logs, sentences
from clawweb.config import config
from clawweb.keeper import Stopping
from clawweb.models import Transfer
from clawweb.records import write_line
from clawweb.selectors.everything import README, everything
from clawweb.selectors.everything import count as count_of
from clawweb.selectors.records import lines_of
from clawweb.services import transfers
from clawweb.services.errors import LeaseLost, ServiceError
from clawweb.services.imports import Import, batches, lines_in
from clawweb.worker import STOP

log = logging.getLogger(__name__)
PROGRESS_SECONDS = 0.5


def run(public_id: str) -> bool:
    """Do the transfer; False when another worker has it or this one is asked to end."""
    row = transfers.claim(public_id)
    if row is None:
        return False
    with logs.about(transfer=row.public_id, user=row.user_id):
        return _run(row)


def _run(row: Transfer) -> bool:
    try:
        if row.kind == "export":
            _export(row)
        else:
            _import(row)
    except LeaseLost:
        log.warning("%s was taken over by another worker", row.public_id)
        return False
    except Stopping:
        transfers.put_back(row)
        return False
    except (ServiceError, OSError) as exc:
        log.warning("%s failed: %s", row.public_id, exc)
        _fail(row, str(exc) if isinstance(exc, ServiceError) else _no_file(exc))
    except Exception as exc:
        log.exception("%s failed", row.public_id)
        broke = sentences.TRANSFER_BROKE % {"why": type(exc).__name__}
        _fail(row, _FULL if disk.is_full(exc) else broke)
    return True


_NO_FILE = gettext_noop("Its file cannot be written or read.")
_FULL = gettext_noop("The disk is full. Try again when there is room.")


def _no_file(exc: OSError) -> str:
    return _FULL if disk.is_full(exc) else _NO_FILE


def _fail(row: Transfer, words: str) -> None:
    with contextlib.suppress(LeaseLost):  # then it is another's to end
        transfers.end(row, note=words)


def _export(row: Transfer) -> None:
    """The file appears whole, under its name, or not at all."""
    zipped = row.shape == "everything"
    # Of this attempt alone: another may end while this one finds out that its lease is lost.
    part = transfers.folder() / f"{row.public_id}.{row.lease_token}.part"
    whole = part.with_suffix(".zip" if zipped else ".jsonl")
    write = _write_zip if zipped else _write_lines
    try:
        with open(part, "xb", opener=transfers.private) as file:
            count = write(row, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(whole)
    finally:
        part.unlink(missing_ok=True)
    try:
        transfers.end(row, note=sentences.EXPORTED % {"n": count}, file=whole, succeeded=True)
    except BaseException:
        whole.unlink(missing_ok=True)  # no row names it
        raise
    for left in transfers.folder().glob(f"{row.public_id}.*{whole.suffix}"):
        if left != whole:  # of an attempt that was killed after its file was whole
            left.unlink(missing_ok=True)


def _write_lines(row: Transfer, file: IO[bytes]) -> int:
    """How many lines were written."""
    total, steps = lines_of(row.user, row.shape)
    progress = _Progress(row, total)
    count = 0
    for lines in steps:
        file.writelines(write_line(line).encode() for line in lines)
        count += len(lines)
        progress.step()
    progress.tell()
    return count


def _write_zip(row: Transfer, file: IO[bytes]) -> int:
    """All that is kept about the user, a file for each kind; how many lines."""
    progress = _Progress(row, count_of(row.user))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", README)
        for name, lines in everything(row.user).items():
            with archive.open(f"{name}.jsonl", "w", force_zip64=True) as member:
                for line in lines():
                    member.write(write_line(line).encode())
                    progress.step()
    progress.tell()
    return progress.done


class _Progress:
    """Steps done, told now and then."""

    def __init__(self, row: Transfer, total: int) -> None:
        self.row, self.total, self.done = row, total, 0
        self.told = time.monotonic()

    def step(self) -> None:
        self.done += 1
        if time.monotonic() - self.told >= PROGRESS_SECONDS:
            self.tell()

    def tell(self) -> None:
        _tell(self.row, self.done, self.total)
        self.told = time.monotonic()


def _import(row: Transfer) -> None:
    path = config().var / row.path
    total = _lines(path)
    taken = Import(row.user)
    with path.open("rb") as file:
        for lines in batches(lines_in(file)):
            with transaction.atomic():  # with the lease: who has lost it writes nothing
                taken.take_all(lines)
                _tell(row, lines[-1][0], total)
    report = taken.report
    transfers.end(row, note=str(report), succeeded=not report.is_in_vain)


def _tell(row: Transfer, done: int, total: int) -> None:
    if STOP.is_set():
        raise Stopping
    transfers.advance(row, done=done, total=max(done, total))


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) or 1
