"""Errors that mean nothing can be saved right now, as refusals that say so."""

from __future__ import annotations

from django.db import InterfaceError, OperationalError
from django.utils.translation import gettext as _

from clawweb import disk
from clawweb.services.errors import DatabaseAway, DiskFull, ServiceError


def outage(error: BaseException) -> ServiceError | None:
    """What is said instead of "something broke" where a full disk is behind an error, or a database
    that is away or held by another for too long. None for any other error."""
    if disk.is_full(error):
        return DiskFull(disk.not_saved())
    if is_away(error):
        return DatabaseAway(
            _(
                "The database does not answer right now. What was saved before is kept; this may "
                "not have been. Try again in a few seconds."
            )
        )
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


def is_damaged(error: BaseException) -> bool:
    """Whether SQLite cannot read its file."""
    return any(words in str(error) for words in ("not a database", "disk image is malformed"))
