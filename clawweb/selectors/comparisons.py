"""Reads of comparisons: both replies of each, and how often which version was preferred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import F, QuerySet

from clawweb.engine import base_hash
from clawweb.models import AdapterState, AdapterVersion, ChatSession, Comparison, Turn, User
from clawweb.selectors.agent import FEW, version_name, wilson
from clawweb.selectors.chat import turn_json
from clawweb.selectors.learning import live_adapter

PASSED = (AdapterState.LIVE, AdapterState.STANDBY)


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """How often `version` was preferred to the older `against` by somebody who did not know which
    was which. 0 = the base model."""

    version: int
    against: int
    won: int
    lost: int
    even: int  # no difference, or both bad

    @property
    def decided(self) -> int:
        return self.won + self.lost

    @property
    def share(self) -> float | None:
        """Of those that one of both won; None when none was."""
        return self.won / self.decided if self.decided else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of `share`."""
        return wilson(self.won, self.decided) if self.decided else None

    @property
    def percent(self) -> tuple[int, int, int] | None:
        """Share and interval for people."""
        if self.share is None or self.interval is None:
            return None
        low, high = self.interval
        return round(100 * self.share), round(100 * low), round(100 * high)

    @property
    def is_few(self) -> bool:
        return self.decided < FEW

    @property
    def names(self) -> tuple[str, str]:
        return version_name(self.version), version_name(self.against)


def usable_versions(user: User) -> QuerySet[AdapterVersion]:
    """The user's versions that passed the gate and fit the model that is served, newest first."""
    own = AdapterVersion.objects.filter(user=user, state__in=PASSED, base_hash=base_hash())
    return own.order_by("-version")


def can_compare(user: User) -> bool:
    """Whether somebody else than the base model could answer; asked without a look at its files."""
    return AdapterVersion.objects.filter(user=user, state__in=PASSED).exists()


def offered_version(user: User, turn_id: str) -> int | None:
    """The live version when it went live after the agent gave this reply, and its user has not seen
    what it says in its place."""
    live = live_adapter(user)
    if live is None or live.live_at is None:
        return None
    turns = Turn.objects.filter(session__user=user, public_id=turn_id, asked="agent")
    turn = turns.filter(created_at__lt=live.live_at).exclude(adapter=live).first()
    if turn is None or Comparison.objects.filter(first=turn, second__adapter=live).exists():
        return None
    return live.version


def previous_version(user: User) -> AdapterVersion | None:
    """The newest usable version that was live before the live one, which may have been so, too."""
    live = live_adapter(user)
    for pk in reversed(live.live_before if live else []):
        found = usable_versions(user).filter(pk=pk, state=AdapterState.STANDBY).first()
        if found is not None:
            return found
    return None


def comparisons_of(user: User) -> QuerySet[Comparison]:
    """The user's, newest first; of chats that are not deleted."""
    rows = Comparison.objects.filter(user=user, first__session__deleted_at=None)
    return rows.select_related(
        "first__session__user",
        "first__parent",
        "first__adapter",
        "second__session__user",
        "second__parent",
        "second__adapter",
    ).order_by("-id")


def open_comparison_in(session: ChatSession) -> Comparison | None:
    """The newest of the chat that waits for a verdict; old complaints asked anew are elsewhere."""
    rows = Comparison.objects.filter(first__session=session, verdict="")
    return rows.exclude(kind=Comparison.RECHECK).order_by("-id").first()


def comparison_json(row: Comparison) -> dict[str, Any]:
    """A comparison with both replies as `turn_json` gives them: without their versions while it is
    blind and not decided."""
    blind = row.kind == Comparison.BLIND and not row.verdict
    order = ["second", "first"] if row.swapped else ["first", "second"]
    return {
        "id": row.public_id,
        "kind": row.kind,
        "verdict": row.verdict or None,
        "order": order,  # in which they are shown
        "first": turn_json(row.first, blind=blind),
        "second": turn_json(row.second, blind=blind),
        "created_at": row.created_at,
        "decided_at": row.decided_at,
    }


def win_rates(user: User) -> list[WinRate]:
    """Of each pair of versions that was compared blindly, the newest first. A reply that the base
    model gave in a version's place counts for neither."""
    rows = Comparison.objects.filter(
        user=user, kind=Comparison.BLIND, first__fallback="", second__fallback=""
    ).exclude(verdict="")
    rows = rows.exclude(first__version=F("second__version"))
    for side in ("first", "second"):  # a version of another installation is none of ours
        rows = rows.exclude(**{f"{side}__version__gt": 0, f"{side}__adapter": None})
    counts: dict[tuple[int, int], dict[str, int]] = {}
    for first, second, verdict in rows.values_list("first__version", "second__version", "verdict"):
        newer, older = max(first, second), min(first, second)
        count = counts.setdefault((newer, older), {"won": 0, "lost": 0, "even": 0})
        preferred = {"first": first, "second": second}.get(verdict)
        count["even" if preferred is None else "won" if preferred == newer else "lost"] += 1
    return [
        WinRate(version=newer, against=older, **count)
        for (newer, older), count in sorted(counts.items(), reverse=True)
    ]
