"""What is kept for how long, a rule for each table. Off unless a setting says a number of days."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from clawweb.config import config
from clawweb.models import ACTIVE_JOB, AuditEvent, ChatSession, Event, StepMetric, TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rows of a table that were last used before a time, and how they go."""

    name: str
    setting: str  # days; 0 = for ever
    before: Callable[[datetime], QuerySet[Any]]
    end: Callable[[QuerySet[Any]], object]


def _chats(before: datetime) -> QuerySet[ChatSession]:
    """Not pinned ones, and none that a reply is being written in or a job is training on."""
    old = ChatSession.objects.filter(updated_at__lt=before, pinned=False, deleted_at=None)
    unfinished = old.exclude(turns__state__in=[TurnState.PENDING, TurnState.STREAMING])
    return unfinished.exclude(turns__samples__state="claimed")


def _hide(rows: QuerySet[ChatSession]) -> None:
    """As if their user had deleted them: housekeeping erases them, a while later."""
    rows.update(deleted_at=timezone.now())  # in one write: who speaks in one meanwhile keeps it


def _metrics(before: datetime) -> QuerySet[StepMetric]:
    return StepMetric.objects.filter(at__lt=before).exclude(job__state__in=ACTIVE_JOB)


# What "my agent learned" tells of versions, and the marks in charts.
HISTORY = ("adapter_live", "adapter_rolled_back", "adapter_refused")


def _events(before: datetime) -> QuerySet[Event]:
    """Which version answered when, and how many were refused, is the agent's history: it stays."""
    return Event.objects.filter(at__lt=before).exclude(kind__in=HISTORY)


RULES = (
    Rule(name="chats", setting="keep_chats_days", before=_chats, end=_hide),
    Rule(
        name="metrics",
        setting="keep_metrics_days",
        before=_metrics,
        end=lambda rows: rows.delete(),
    ),
    Rule(
        name="events",
        setting="keep_events_days",
        before=_events,
        end=lambda rows: rows.delete(),
    ),
    Rule(
        name="audit log",
        setting="keep_audit_days",
        before=lambda before: AuditEvent.objects.filter(at__lt=before),
        end=lambda rows: rows.forget(),
    ),
)


def apply(*, dry_run: bool = False) -> dict[str, int | None]:
    """How many rows of each table go, or would go; None where they are kept for ever."""
    found: dict[str, int | None] = {}
    for rule in RULES:
        days: int = getattr(config(), rule.setting)
        if not days:
            found[rule.name] = None
            continue
        rows = rule.before(timezone.now() - timedelta(days=days))
        found[rule.name] = rows.count()
        if not dry_run and found[rule.name]:
            rule.end(rows)
    return found
