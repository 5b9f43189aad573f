"""When nothing can be saved, whoever asks: what a caller is told instead of "something broke"."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext as _

from clawweb import disk

RETRY_SECONDS = 5  # a database that was killed is back in two


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """HTTP's status, a name for programs, what to do; seconds until it may be over, if known."""

    status: int
    name: str
    words: str
    retry_after: int | None = None


def outage(error: BaseException) -> Outage | None:
    """The outage that an error comes from: a full disk, a database that is away or held by another
    for too long. None for any other error."""
    if disk.is_full(error):
        return Outage(status=507, name="disk_full", words=disk.not_saved())
    if is_away(error):
        words = _(
            "The database does not answer right now. What was saved before is kept; this may not "
            "have been. Try again in a few seconds."
        )
        return Outage(status=503, name="database_away", words=words, retry_after=RETRY_SECONDS)
    return None


def is_away(error: BaseException | None) -> bool:
    """Whether it was raised, at last, because the database did not answer in time."""
    while error is not None:
        if isinstance(error, InterfaceError):
            return True
        # SQLite has no other class for a table that is missing, which no waiting heals.
        if isinstance(error, OperationalError) and "no such" not in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
