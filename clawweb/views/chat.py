"""The chat page: one branch of one session, and the list of sessions beside it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from clawweb.models import ChatSession, Turn, User
from clawweb.models.ids import is_number
from clawweb.selectors.agent import agent_status
from clawweb.selectors.chat import (
    all_reasons,
    outline,
    session_of,
    sessions_of,
    sessions_with,
    turn_of,
    turns_json,
)
from clawweb.selectors.comparisons import (
    can_compare,
    offered_version,
    open_comparison_in,
)
from clawweb.selectors.judging import is_judged_for
from clawweb.selectors.notes import stubborn_reasons

LISTED = 60  # chats beside a chat at first, and at each step back
LISTED_AT_MOST = 100 * LISTED
SHOWN = 40  # turns of a chat at first, and at each step back


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    return redirect("chat")


@never_cache
@login_required
@require_safe
def chat(request: HttpRequest, session_id: str | None = None) -> HttpResponse:
    """The page as the rows have it; a running reply is followed from there by the script."""
    session = own_session(request.user, session_id) if session_id else None
    path = branch(outline(session), request.GET.get("turn")) if session else []
    path, has_earlier = newest(path, request.GET.get("turn"))
    turns = turns_json(session, path) if session else []
    return render(
        request,
        "chat/chat.html",
        {
            "session": session,
            "temporary": session.temporary if session else request.GET.get("temporary") == "1",
            "turns": turns,
            "has_earlier": has_earlier,
            "reasons": all_reasons(),
            "stubborn": stubborn_reasons(request.user),
            **listed(request.user),
            "agent": agent_status(request.user),
            "judged": is_judged_for(request.user),
            "can_compare": can_compare(request.user),
            "comparison": open_comparison_in(session) if session else None,
            "offer": offered_version(request.user, turns[-1]["id"]) if turns else None,
        },
    )


@never_cache
@login_required
@require_safe
def earlier_part(request: HttpRequest, turn_id: str) -> HttpResponse:
    """The turns of the branch before this one, as many as the page shows at first."""
    try:
        turn = turn_of(request.user, turn_id)
        path = [str(row["id"]) for row in branch(outline(turn.session), turn_id)]
        before = path[: path.index(turn_id)]
    except (Turn.DoesNotExist, ValueError):  # another's; or no turn of a conversation
        raise Http404(_("You have no chat with that address.")) from None
    context = {
        "turns": turns_json(turn.session, before[-SHOWN:]),
        "has_earlier": len(before) > SHOWN,
    }
    return render(request, "chat/_earlier.html", context)


@never_cache
@login_required
@require_safe
def sessions_part(request: HttpRequest) -> HttpResponse:
    """The list of sessions, fetched again when one was opened."""
    words = request.GET.get("q", "").strip()[:100]
    found = listed(request.user, words, request.GET.get("show", ""))
    context = {
        **found,
        "number": sum(len(rows) for _, rows in found["days"]),
        "current": request.GET.get("current", ""),
        "words": words,
    }
    return render(request, "chat/_sessions.html", context)


@never_cache
@login_required
@require_safe
def agent_part(request: HttpRequest) -> HttpResponse:
    """The agent's chip, fetched again when a rating, a job or a version changed."""
    return render(request, "parts/_agent.html", {"agent": agent_status(request.user)})


def own_session(user: User, name: str) -> ChatSession:
    try:
        return session_of(user, name)
    except ChatSession.DoesNotExist:
        raise Http404(_("You have no chat with that address.")) from None


def branch(turns: Sequence[dict[str, Any]], through: str | None = None) -> list[dict[str, Any]]:
    """The main turns from the first to the newest one; through a given turn when one is named."""
    main = [turn for turn in turns if turn["turn_type"] == "main"]
    by_id, before = {turn["id"]: turn for turn in main}, _main_before(turns)
    leaf = by_id.get(through or "") or (main[-1] if main else None)
    if leaf is None:
        return []
    if through in by_id:
        newest = {before[turn["id"]]: turn for turn in main}  # the newest child of each
        while leaf["id"] in newest:
            leaf = newest[leaf["id"]]
    path = []
    at: dict[str, Any] | None = leaf
    while at is not None:
        path.append(at)
        at = by_id.get(before[at["id"]] or "")
    return path[::-1]


def _main_before(turns: Sequence[dict[str, Any]]) -> dict[str, str | None]:
    """Of each turn the main one that it goes on from. Its parent may be none: who marks a turn in
    the middle of a chat as background does not lose what was said before it."""
    before: dict[str, str | None] = {}
    nearest: dict[str | None, str | None] = {}  # of a turn itself, or of what stands before it
    for turn in turns:  # parents come first
        name, kind = turn["id"], turn["turn_type"]
        before[name] = nearest.get(turn["parent"])
        nearest[name] = name if kind == "main" else before[name]
    return before


def newest(path: Sequence[dict[str, Any]], named: str | None = None) -> tuple[list[str], bool]:
    """The ids at a branch's end that a page shows at first, from a named turn on when that is
    earlier, and whether there are more before them."""
    ids = [str(row["id"]) for row in path]
    start = max(0, len(ids) - SHOWN)
    if named in ids:
        start = min(start, ids.index(named))
    return ids[start:], start > 0


def listed(user: User, words: str = "", show: str = "") -> dict[str, Any]:
    """The newest sessions, as many as are to be shown, under the day on which they were last used,
    pinned ones above; with words those that hold them. What holds nothing but background calls is
    no chat. And how many to show next, where there are more."""
    number = min(max(int(show), LISTED), LISTED_AT_MOST) if is_number(show) else LISTED
    today = timezone.localdate()

    def day(session: ChatSession) -> str:
        if session.pinned:
            return _("Pinned")
        ago = today - timezone.localtime(session.updated_at).date()
        if ago <= timedelta(0):
            return _("Today")
        if ago <= timedelta(days=1):
            return _("Yesterday")
        return _("Last 7 days") if ago <= timedelta(days=7) else _("Earlier")

    found = sessions_with(user, words) if words else sessions_of(user)
    chats = found.filter(Q(turns_main__gt=0) | Q(turns_side=0), temporary=False)
    newest = list(chats.order_by("-pinned", "-updated_at", "-id")[: number + 1])
    return {
        "days": [(name, list(rows)) for name, rows in groupby(newest[:number], day)],
        "older": number + LISTED if len(newest) > number else None,
    }
