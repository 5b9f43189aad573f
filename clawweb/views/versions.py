"""The page of versions: how they grew out of each other, what each learned, which one is on trial.
Changes go through the JSON API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.defaultfilters import floatformat
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from clawweb.engine import base_hash, get_engine
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    DropReason,
    JobSample,
    SampleState,
    TrainingSample,
    User,
)
from clawweb.selectors.agent import LikeRate, agent_status, like_rates
from clawweb.selectors.comparisons import win_rates
from clawweb.selectors.learning import adapter_json, adapters_of, fits
from clawweb.selectors.trials import trial_of
from clawweb.sentences import said, written
from rollouts.errors import RolloutError

STEP, LANE, EDGE = 72, 52, 36  # of the drawing, in its own units; a word has room at its edge
SHARES = (10, 20, 30, 50)  # percent
# Why a rating that has trained is not used any more; the other reasons are those of a trainer
_DROPPED_LATER = (
    DropReason.REFUSED,
    DropReason.CONSENT,
    DropReason.SIDE_TURN,
    DropReason.STALE,
)
# Measures of the gate that are a share of something, and those whose limit is the least
_ARE_SHARES = ("empty", "cut_off", "repetition", "question", "way")
_AT_LEAST = ("length", "preference", "question", "way")


@never_cache
@login_required
@require_safe
def versions(request: HttpRequest) -> HttpResponse:
    return render(request, "console/adapters.html", _context(request.user))


@never_cache
@login_required
@require_safe
def versions_part(request: HttpRequest) -> HttpResponse:
    return render(request, "console/_adapters.html", _context(request.user))


@never_cache
@login_required
@require_safe
def served_part(request: HttpRequest) -> HttpResponse:
    """A part of its own: it asks the model server, which may take seconds to not answer."""
    try:
        loaded = async_to_sync(get_engine().loaded)()
    except RolloutError:
        return render(request, "console/_served.html", {"answers": False})
    own = request.user.adapters.filter(name__in=list(loaded)).order_by("version")
    return render(request, "console/_served.html", {"answers": True, "served": own})


def _context(user: User) -> dict[str, Any]:
    rows = list(adapters_of(user))
    rates = {rate.version: rate for rate in like_rates(user)}
    live = next((row for row in rows if row.state == AdapterState.LIVE), None)
    trial = trial_of(user)
    learned, tried = _learned(user), _tried(user)
    previous = _previous(rows, live)
    return {
        "versions": [
            {
                **version_facts(row),
                "samples": row.ratings or tried.get(row.pk, 0),
                "parent_version": row.parent.version if row.parent else 0,
                "is_previous": row is previous,
                "is_foreign": row.base_hash != base_hash(),
                "forgot_at": row.forgot_at,
                "learned": learned.get(row.pk),
                "rate": _percent(rates.get(row.version)),
                "on_trial": trial is not None and row.pk == trial.pk,
            }
            for row in rows
        ],
        "live": live,
        "trial": trial,
        "share": user.trial_share,
        "shares": SHARES,
        "sides": [
            (row, _percent(rates.get(row.version if row else 0)))
            for row in ((live, trial) if trial else ())
        ],
        "drawing": drawing(rows, live, previous),
        "wins": win_rates(user),
        "agent": agent_status(user),
    }


def version_facts(adapter: AdapterVersion) -> dict[str, Any]:
    """The public fields, with what the gate said in the reader's language, and where it cut off
    the replies that it sampled."""
    facts, job = adapter_json(adapter), getattr(adapter, "job", None)
    return {
        **facts,
        "note": said(facts["note"]),
        "gate": [_tested(row) for row in facts["gate"]],
        "gate_tokens": job.config.get("gate_tokens") if job else None,
    }


def _tested(row: dict[str, Any]) -> dict[str, Any]:
    """A test as people read it: shares in percent, and the limit of what was judged alone."""

    def number(value: float | None) -> str:
        if value is None:
            return ""
        is_share = row["measure"] in _ARE_SHARES
        return written(f"{value:.0%}") if is_share else str(floatformat(value, -3))

    return {
        **row,
        "value": number(row["value"]),
        "limit": number(row["limit"]) if row["ok"] is not None else "",
        "at_least": row["measure"] in _AT_LEAST,
        "text": said(row["text"]),
    }


def _learned(user: User) -> dict[int, dict[str, int]]:
    """What each version was trained on, by its row's id."""
    counts = (
        TrainingSample.objects.filter(user=user, adapter__isnull=False)
        .order_by()
        .values("adapter")
        .annotate(
            liked=Count("turn", distinct=True, filter=Q(reward=1)),
            disliked=Count("turn", distinct=True, filter=Q(reward=-1)),
            corrected=Count("turn", distinct=True, filter=~Q(correction="")),
        )
    )
    return {row["adapter"]: row for row in counts}


def _tried(user: User) -> dict[int, int]:
    """How many ratings each version's job had: those of a refused one are free again, and it was
    trained on them all the same; not on what the trainer could not use."""
    had = JobSample.objects.filter(job__user=user, job__child__isnull=False, role="new")
    left_out = Q(sample__state=SampleState.DROPPED) & ~Q(sample__drop_reason__in=_DROPPED_LATER)
    counts = had.exclude(left_out).order_by().values("job__child").annotate(ratings=Count("pk"))
    return {row["job__child"]: row["ratings"] for row in counts}


def _previous(rows: Sequence[AdapterVersion], live: AdapterVersion | None) -> AdapterVersion | None:
    """Where a rollback leads."""
    standby = {row.pk: row for row in rows if row.state == AdapterState.STANDBY}
    way = reversed(live.live_before if live else [])
    return next((standby[pk] for pk in way if pk in standby and fits(standby[pk])), None)


def _percent(rate: LikeRate | None) -> dict[str, Any] | None:
    if rate is None:
        return None
    low, high = rate.interval
    return {
        "votes": rate.votes,
        "percent": round(100 * rate.share),
        "low": round(100 * low),
        "high": round(100 * high),
        "is_few": rate.is_few,
    }


def drawing(
    rows: Sequence[AdapterVersion], live: AdapterVersion | None, previous: AdapterVersion | None
) -> dict[str, Any]:
    """The versions as places in a picture, oldest first, the base model at the left; what led to
    the live one in a straight line, what was left behind on branches below it."""
    oldest = sorted(rows, key=lambda row: row.version)
    lanes = _lanes(oldest, live)
    place = {None: (EDGE, EDGE)}
    nodes, edges = [{"x": EDGE, "y": EDGE, "version": 0, "state": "base"}], []
    for column, row in enumerate(oldest, 1):
        x, y = EDGE + column * STEP, EDGE + lanes[row.pk] * LANE
        place[row.pk] = (x, y)
        from_x, from_y = place.get(row.parent_id, place[None])
        bend = min(STEP, x - from_x) / 2
        edges.append(
            f"M{from_x} {from_y}C{from_x + bend:g} {from_y} {from_x + bend:g} {y} "
            f"{from_x + 2 * bend:g} {y}H{x}"
        )
        nodes.append(
            {
                "x": x,
                "y": y,
                "version": row.version,
                "name": row.name,
                "state": row.state,
                "is_previous": row is previous,
                "rolled_back": row.rolled_back_at is not None,
            }
        )
    return {
        "nodes": nodes,
        "edges": edges,
        "width": 2 * EDGE + len(oldest) * STEP,
        "height": 2 * EDGE + max(lanes.values(), default=0) * LANE + 14,
    }


def _lanes(oldest: Sequence[AdapterVersion], live: AdapterVersion | None) -> dict[int, int]:
    """Lane 0 for the live version and what it grew from; a branch takes the next free one."""
    parents = {row.pk: row.parent_id for row in oldest}
    trunk: set[int | None] = set()
    at = live.pk if live else (oldest[-1].pk if oldest else None)
    while at is not None:
        trunk.add(at)
        at = parents.get(at)
    lanes: dict[int, int] = {}
    columns: dict[int | None, int] = {}
    tips: dict[int, AdapterVersion] = {}  # lane -> its newest version
    for column, row in enumerate(oldest, 1):
        columns[row.pk] = column
        lane = 0 if row.pk in trunk else lanes.get(row.parent_id or 0, 0)
        if row.pk not in trunk and (lane == 0 or tips[lane].pk != row.parent_id):
            begins = columns.get(row.parent_id, 0)
            lane = 1
            while lane in tips and columns[tips[lane].pk] > begins:
                lane += 1
        lanes[row.pk], tips[lane] = lane, row
    return lanes
