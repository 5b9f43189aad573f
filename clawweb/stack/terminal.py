"""What `manage.py up` says: a line an event, and on a terminal one that counts meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class StackError(Exception):
    """Start-up cannot go on; the text tells the user what to do."""


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
