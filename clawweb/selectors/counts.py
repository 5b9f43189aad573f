"""What is recorded, in numbers: for the operator, who sees no texts."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Q

from clawweb.models import ChatSession, SampleState, TrainingSample, Turn, User


def counts(user: User | None, *, limit: int) -> dict[str, Any]:
    """Totals, samples by state, and the `limit` sessions that were used last; everybody's without
    a user."""
    sessions = ChatSession.objects.all()
    turns = Turn.objects.all()
    samples = TrainingSample.objects.all()
    if user is not None:
        sessions = sessions.filter(user=user)
        turns = turns.filter(session__user=user)
        samples = samples.filter(user=user)
    shown = list(
        sessions.select_related("user")
        .annotate(
            turns_main=Count("turns", filter=Q(turns__turn_type="main")),
            turns_side=Count("turns", filter=Q(turns__turn_type="side")),
        )
        .order_by("-updated_at", "-id")[:limit]
    )
    by_session = _by_state(samples.filter(turn__session__in=shown), "turn__session_id")
    by_type = dict(turns.values_list("turn_type").annotate(Count("id")))
    return {
        "totals": {
            "users": sessions.values("user").distinct().count(),
            "sessions": sessions.count(),
            "turns_main": by_type.get("main", 0),
            "turns_side": by_type.get("side", 0),
        },
        "samples": _sorted(dict(samples.order_by().values_list("state").annotate(Count("id")))),
        "sessions": [
            {
                "id": row.public_id,
                "external_id": row.external_id,
                "user": row.user.get_username(),
                "turns_main": row.turns_main,
                "turns_side": row.turns_side,
                "locked": row.locked,
                "updated_at": row.updated_at,
                "samples": by_session.get(row.pk, {}),
            }
            for row in shown
        ],
    }


def _by_state(samples: Any, name: str) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for key, state, count in samples.order_by().values_list(name, "state").annotate(Count("id")):
        found.setdefault(key, {})[state] = count
    return {key: _sorted(states) for key, states in found.items()}


def _sorted(states: dict[str, int]) -> dict[str, int]:
    """In the order of a sample's life; a state that none is in is left out."""
    return {state: states[state] for state in SampleState.values if state in states}
