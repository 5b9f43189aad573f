"""One export or import, start to end: files on one side, rows on the other, under a lease."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

from django.db import transaction

from clawweb.config import config
from clawweb.keeper import Stopping
from clawweb.models import Transfer
from clawweb.records import write_line
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
        _fail(row, str(exc) if isinstance(exc, ServiceError) else _NO_FILE)
    except Exception as exc:
        log.exception("%s failed", row.public_id)
        _fail(row, f"It broke: {type(exc).__name__}. The log says more.")
    return True


_NO_FILE = "Its file cannot be written or read."


def _fail(row: Transfer, words: str) -> None:
    with contextlib.suppress(LeaseLost):  # then it is another's to end
        transfers.end(row, note=words)


def _export(row: Transfer) -> None:
    """The file appears whole, under its name, or not at all."""
    whole = transfers.folder() / f"{row.public_id}.jsonl"
    part = whole.with_name(f"{row.public_id}.{row.lease_token}.part")
    total, steps = lines_of(row.user, row.shape)
    count = done = 0
    told = time.monotonic()
    try:
        with open(part, "x", encoding="utf-8", opener=transfers.private) as file:
            for done, lines in enumerate(steps, 1):
                file.writelines(write_line(line) for line in lines)
                count += len(lines)
                if time.monotonic() - told >= PROGRESS_SECONDS:
                    _tell(row, done, total)
                    told = time.monotonic()
            file.flush()
            os.fsync(file.fileno())
        _tell(row, done, total)
        part.rename(whole)
    finally:
        part.unlink(missing_ok=True)
    transfers.end(row, note=f"{count} lines", file=whole, succeeded=True)


def _import(row: Transfer) -> None:
    path = config().var / row.path
    total = _lines(path)
    taken = Import(row.user)
    with path.open("rb") as file:
        for lines in batches(lines_in(file)):
            with transaction.atomic():  # with the lease: who has lost it writes nothing
                taken.take_all(lines)
                _tell(row, lines[-1][0], total)
    transfers.end(row, note=str(taken.report), succeeded=True)


def _tell(row: Transfer, done: int, total: int) -> None:
    if STOP.is_set():
        raise Stopping
    transfers.advance(row, done=done, total=max(done, total))


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) or 1
