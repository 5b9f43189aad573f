"""Where somebody is signed in: one row of allauth's for each browser, beside Django's session.

The session's row is the truth: what has none, or one under an old password, is signed in nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from allauth.core.internal.sessionkit import get_session_user
from allauth.usersessions.models import UserSession
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import transaction

from clawweb.events import look_again
from clawweb.models import User
from clawweb.services import audit

# The first word that fits says it: others' names stand in it too
_PROGRAMS = {"Edg": "Edge", "OPR": "Opera", "Firefox": "Firefox", "Chrom": "Chrome"} | {
    "CriOS": "Chrome",  # on an iPhone
    "FxiOS": "Firefox",
    "Safari": "Safari",
    "curl": "curl",
}
_SYSTEMS = {"iPhone": "iPhone", "iPad": "iPad", "Android": "Android", "Windows": "Windows"} | {
    "Mac OS": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """One that is signed in."""

    id: int
    program: str  # "" = unknown, here and below
    system: str
    address: str
    since: datetime
    seen: datetime  # some minutes old, at most
    here: bool  # the one that asks


def browsers_of(user: User, session_key: str | None) -> list[Browser]:
    """This one first, then by when they were last seen. Those that have ended are forgotten."""
    found = [
        Browser(
            id=row.pk,
            program=_first(_PROGRAMS, row.user_agent),
            system=_first(_SYSTEMS, row.user_agent),
            address=row.ip,
            since=row.created_at,
            seen=row.last_seen_at,
            here=row.session_key == session_key,
        )
        for row in UserSession.objects.purge_and_list(user)
    ]
    return sorted(found, key=lambda row: (not row.here, -row.seen.timestamp()))


def _first(names: dict[str, str], agent: str) -> str:
    return next((name for part, name in names.items() if part in agent), "")


def end(user: User, browser_id: int) -> bool:
    """Whether a browser of this user was signed in and is not any more."""
    rows = UserSession.objects.filter(user=user, pk=browser_id)
    return _end(user, rows, "end_browser")


def end_others(user: User, but: str | None = None) -> bool:
    """All of the user's, but the one with this session; whether there were any."""
    return _end(user, UserSession.objects.filter(user=user).exclude(session_key=but), "end_others")


@transaction.atomic
def _end(user: User, rows: object, act: str) -> bool:
    ended = list(rows)  # type: ignore[call-overload]
    for row in ended:
        row.end()
    if ended:
        audit.record(act, user, after={"browsers": len(ended)})
    look_again(user.pk)
    return bool(ended)


def forget(user: User) -> None:
    """The sessions of somebody who is erased; they would stay for two weeks."""
    for row in UserSession.objects.filter(user=user):
        row.end()


def forget_ended() -> None:
    """Sessions that ran out, and what was written down of browsers that have none: addresses,
    too."""
    SessionStore.clear_expired()
    UserSession.objects.exclude(session_key__in=Session.objects.values("session_key")).delete()


def still_signed_in(session_key: str | None, user: User) -> bool:
    """Whether this session is still this user's, who is still let in; for sockets, which outlive
    the request that opened them."""
    found = get_session_user(SessionStore(session_key)) if session_key else None
    return found is not None and found.pk == user.pk and not found.is_pending
