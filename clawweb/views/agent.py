"""What my agent learned: is it better, what I asked for, and what came of every rating."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from clawweb.models import AdapterState, User
from clawweb.selectors import agent as learned
from clawweb.selectors.chat import input_of, latest_feedback, with_labels
from clawweb.selectors.comparisons import win_rates
from clawweb.selectors.complaints import complaints_of, rechecks_by, tallies
from clawweb.selectors.forgetting import learned_chats
from clawweb.selectors.learning import Waiting, live_adapter, receipt
from clawweb.selectors.notes import notes_of
from clawweb.services.forgetting import erase_learning
from clawweb.services.versions import clean_before
from clawweb.views.forms import EraseForm
from clawweb.views.inspector import text_of

PER_PAGE = 25
WIDTH = 200  # of a range's drawing, in its own units
LONG = 640.0  # of the drawing of what answered when


@never_cache
@login_required
@require_safe
def agent(request: HttpRequest) -> HttpResponse:
    user = request.user
    learned, forget = _learned_context(user), _forget_context(user)
    context = {**learned, **forget, **_rechecks_context(user), **_ratings_context(request)}
    return render(request, "agent/agent.html", context)


@never_cache
@login_required
@require_safe
def learned_part(request: HttpRequest) -> HttpResponse:
    return render(request, "agent/_learned.html", _learned_context(request.user))


@never_cache
@login_required
@require_safe
def rechecks_part(request: HttpRequest) -> HttpResponse:
    return render(request, "agent/_rechecks.html", _rechecks_context(request.user))


@never_cache
@login_required
@require_safe
def forget_part(request: HttpRequest) -> HttpResponse:
    return render(request, "agent/_forget.html", _forget_context(request.user))


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def erase(request: HttpRequest) -> HttpResponse:
    """All that the agent learned, after its user has typed their name."""
    user = request.user
    form = EraseForm(user, request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        erase_learning(user)
        messages.success(request, _("Erased. Your agent begins anew."))
        return redirect("agent")
    counts = {
        "chats": user.chat_sessions.count(),
        "versions": user.adapters.exclude(state=AdapterState.ERASED).count(),
    }
    status = 422 if form.is_bound else 200
    return render(request, "agent/erase.html", {"form": form, **counts}, status=status)


@never_cache
@login_required
@require_safe
def ratings_part(request: HttpRequest) -> HttpResponse:
    return render(request, "agent/_ratings.html", _ratings_context(request))


def _learned_context(user: User) -> dict[str, Any]:
    rates = learned.like_rates(user)
    steps = [(_(name), count) for name, count in learned.funnel(user)]
    live, status = live_adapter(user), learned.agent_status(user)
    return {
        "agent": status,
        "live": live,
        "clean": clean_before(live) if live and live.forgot_at else None,
        "rates": [_drawn(rate) for rate in rates],
        "wins": win_rates(user),
        "verdict": learned.verdict(rates, answers=status["version"]) if rates else "",
        "notes": notes_of(user),
        "funnel": steps,
        "given": steps[0][1],
        "timeline": _timeline(learned.reigns(user)),
        "refusals": learned.refusals(user),
    }


def _timeline(reigns: Sequence[learned.Reign]) -> dict[str, Any] | None:
    """The reigns with their places in the drawing, as long as they lasted; None without any."""
    if not reigns:
        return None
    first, now = reigns[0].since, timezone.now()
    whole = max((now - first).total_seconds(), 1.0)

    def place(at: datetime) -> float:
        return LONG * (at - first).total_seconds() / whole

    bars = []
    for reign in reigns:
        x = place(reign.since)
        width = max(place(reign.until or now) - x, 3.0)
        bar = {"x": f"{x:.1f}", "width": f"{width:.1f}"}
        bars.append({"reign": reign, "name": learned.version_name(reign.version), **bar})
    return {"bars": bars, "newest_first": bars[::-1], "since": first}


def _forget_context(user: User) -> dict[str, Any]:
    chats, more = learned_chats(user)
    return {"learned_chats": chats, "more_learned_chats": more}


def _rechecks_context(user: User) -> dict[str, Any]:
    live = live_adapter(user)
    turns = list(complaints_of(user, live))
    answers = rechecks_by(live, turns) if live else {}
    said = {turn.pk: latest_feedback(turn) for turn in turns}
    with_labels([row for row in said.values() if row])
    return {
        "live": live,
        "tallies": tallies(user),
        "verdicts": [("second", _("Better")), ("tie", _("The same")), ("first", _("Worse"))],
        "is_within_chats": any(turn.parent_id for turn in turns),
        "unasked": sum(turn.pk not in answers for turn in turns),
        "complaints": [
            {
                "turn": turn,
                "text": text_of(input_of(turn)),
                "said": said[turn.pk],
                "then": learned.version_name(turn.version),
                "recheck": answers.get(turn.pk),
            }
            for turn in turns
        ],
    }


def _drawn(rate: learned.LikeRate) -> dict[str, Any]:
    """A rate with the places of its range and its mark in the drawing."""
    low, high = rate.interval
    return {
        "rate": rate,
        "name": learned.version_name(rate.version),
        "percent": round(100 * rate.share),
        "low": round(100 * low),
        "high": round(100 * high),
        "x": round(WIDTH * rate.share, 1),
        "from": round(WIDTH * low, 1),
        "to": round(WIDTH * high, 1),
    }


def _ratings_context(request: HttpRequest) -> dict[str, Any]:
    unused = request.GET.get("unused") == "1"
    rows = learned.rated_turns(request.user, unused=unused)
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    said = {turn.pk: latest_feedback(turn) for turn in page}
    with_labels([row for row in said.values() if row])
    waiting = Waiting(request.user)
    return {
        "page": page,
        "unused": unused,
        "rated": [
            {
                "turn": turn,
                "text": text_of(input_of(turn)),
                "said": said[turn.pk],
                "receipt": receipt(turn, waiting),
            }
            for turn in page
        ],
    }
