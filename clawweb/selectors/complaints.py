"""Reads of a user's complaints: replies they disliked, beside what the agent says to them now."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import QuerySet, Subquery

from clawweb.models import AdapterVersion, Comparison, Turn, TurnState, User
from clawweb.selectors.learning import BULKY, NEWEST_VOTE

NEWEST = 10  # complaints that are asked again at once
REPLIED = (TurnState.COMPLETE, TurnState.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What the user thought of one version's answers to their old complaints."""

    version: int
    better: int
    same: int
    worse: int

    @property
    def of(self) -> int:
        return self.better + self.same + self.worse


def complaints_of(user: User, live: AdapterVersion | None) -> QuerySet[Turn]:
    """The newest disliked replies that `live` can be asked again: kept, of the conversation, and
    not by `live` itself. None of them while base answers."""
    turns = (
        Turn.objects.filter(session__user=user, session__deleted_at=None)
        .filter(recorded=True, turn_type="main", fallback="", state__in=REPLIED)
        .exclude(reply="")
        .annotate(vote=Subquery(NEWEST_VOTE))
        .filter(vote=-1)
    )
    turns = turns.exclude(adapter=live) if live else turns.none()
    shown = turns.select_related("session", "session__user").prefetch_related("feedback")
    return shown.defer(*BULKY).order_by("-id")[:NEWEST]


def rechecks_by(live: AdapterVersion, turns: list[Turn]) -> dict[int, Comparison]:
    """Each complaint's newest answer by `live`, by the complaint's key; what base had to answer, or
    nobody did, is none."""
    rows = Comparison.objects.filter(
        kind=Comparison.RECHECK,
        first__in=[turn.pk for turn in turns],
        second__asked=f"agent@v{live.version}",
        second__fallback="",
    )
    rows = rows.exclude(second__finished_at__isnull=False, second__reply="")
    found = rows.select_related("second").order_by("id")
    return {row.first_id: row for row in found}


def tallies(user: User) -> list[Tally]:
    """Of each version that was asked old complaints again and judged, the newest first. Both bad is
    no better and no worse."""
    rows = Comparison.objects.filter(user=user, kind=Comparison.RECHECK, second__fallback="")
    said = rows.exclude(verdict="").values_list("second__version", "verdict")
    counts: dict[int, dict[str, int]] = {}
    names = {"second": "better", "first": "worse"}
    for version, verdict in said:
        count = counts.setdefault(version, {"better": 0, "same": 0, "worse": 0})
        count[names.get(verdict, "same")] += 1
    return [Tally(version=version, **count) for version, count in sorted(counts.items())][::-1]
