"""What my agent learned: is it better, what I asked for, and what came of every rating."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from clawweb.models import User
from clawweb.selectors import agent as learned
from clawweb.selectors.chat import input_of, latest_feedback, with_labels
from clawweb.selectors.comparisons import win_rates
from clawweb.selectors.learning import agent_status, live_adapter, receipt
from clawweb.views.inspector import text_of

PER_PAGE = 25
WIDTH = 200  # of a range's drawing, in its own units


@never_cache
@login_required
@require_GET
def agent(request: HttpRequest) -> HttpResponse:
    context = {**_learned_context(request.user), **_ratings_context(request)}
    return render(request, "agent/agent.html", context)


@never_cache
@login_required
@require_GET
def learned_part(request: HttpRequest) -> HttpResponse:
    return render(request, "agent/_learned.html", _learned_context(request.user))


@never_cache
@login_required
@require_GET
def ratings_part(request: HttpRequest) -> HttpResponse:
    return render(request, "agent/_ratings.html", _ratings_context(request))


def _learned_context(user: User) -> dict[str, Any]:
    rates = learned.like_rates(user)
    steps = learned.funnel(user)
    return {
        "agent": agent_status(user),
        "live": live_adapter(user),
        "rates": [_drawn(rate) for rate in rates],
        "wins": win_rates(user),
        "verdict": learned.verdict(rates) if rates else "",
        "notes": learned.notes_of(user),
        "funnel": steps,
        "given": steps[0][1],
        "milestones": learned.milestones(user),
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
    return {
        "page": page,
        "unused": unused,
        "rated": [
            {
                "turn": turn,
                "text": text_of(input_of(turn)),
                "said": said[turn.pk],
                "receipt": receipt(turn),
            }
            for turn in page
        ],
    }
