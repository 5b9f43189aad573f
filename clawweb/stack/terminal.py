"""What `manage.py up` says: a line an event, and on a terminal one that counts meanwhile. And what
it is told there: to stop."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_asked: list[str] = []  # which of them came


class StackError(Exception):
    """Start-up cannot go on; the text tells the user what to do."""


class Stopped(BaseException):
    """A signal asked for the end; a BaseException, so that no handler on the way keeps it."""


def stop_on_signals() -> None:
    """The first one ends the start-up wherever it is; later ones find the end under way."""
    _asked.clear()

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        ignore_signals()
        _asked.append(signal.Signals(number).name)
        raise Stopped(*_asked)

    for number in SIGNALS:
        signal.signal(number, stop)


def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_if_asked() -> None:
    """Raises Stopped when a signal has come. Its own may be lost: Python drops what is raised
    while an object is being finalized."""
    if _asked:
        raise Stopped(*_asked)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def pending(text: str) -> None:
    """A line that the next one overwrites; nothing where lines cannot be overwritten."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\033[K{text[:100]}")
        sys.stdout.flush()


def clear_pending() -> None:
    pending("")


@contextmanager
def step(what: str) -> Iterator[None]:
    """`what … 1.2 s` once done."""
    started = time.monotonic()
    pending(f"{what} …")
    try:
        yield
    finally:
        clear_pending()
    say(f"{what}: {time.monotonic() - started:.1f} s")


@contextmanager
def files_named() -> Iterator[None]:
    """A file or folder that cannot be made or written is told like all else that ends a start."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise StackError(f"{error.strerror}: {error.filename}") from error


class Bar:
    """A share of the way, drawn in place on a terminal and every quarter elsewhere."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.quarter = -1

    def show(self, share: float) -> None:
        share = min(max(share, 0.0), 1.0)
        filled = round(30 * share)
        pending(f"{self.what} [{'#' * filled}{'.' * (30 - filled)}] {share:4.0%}")
        if not sys.stdout.isatty() and int(share * 4) > self.quarter:
            self.quarter = int(share * 4)
            say(f"{self.what}: {share:.0%}")
