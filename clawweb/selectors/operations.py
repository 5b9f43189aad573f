"""What operators watch, in numbers and without texts. What was not measured is absent, never 0."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from datetime import timedelta

from django.db.models import Count, Exists, Min, OuterRef, QuerySet
from django.utils import timezone

from clawweb.models import (
    AdapterState,
    AdapterVersion,
    Heartbeat,
    JobState,
    Judgement,
    JudgementState,
    SampleState,
    TrainingJob,
    TrainingSample,
    Turn,
    TurnState,
)
from clawweb.selectors.agent import stages
from clawweb.selectors.learning import GONE_AFTER, phase_seconds

LATELY = timedelta(minutes=5)
QUANTILES = (0.5, 0.95, 0.99)
NEWEST = 1000  # rows that a quantile looks at, at most


def funnel() -> dict[str, int]:
    """Rated replies by how far they got: given, usable, learned, learned by what stands."""
    counts, learned = stages(None)
    standing = AdapterVersion.objects.filter(pk=OuterRef("adapter_id"), rolled_back_at=None)
    return {**counts, "standing": learned.filter(Exists(standing)).count()}


def drops() -> dict[str, int]:
    """Samples that were not used, by reason."""
    rows = TrainingSample.objects.filter(state=SampleState.DROPPED).order_by()
    return dict(rows.values_list("drop_reason").annotate(Count("pk")))


def waiting() -> dict[str, tuple[int, float | None]]:
    """What stands in line: how many, and for how many seconds the oldest has."""
    lines: dict[str, QuerySet[Turn] | QuerySet[TrainingJob] | QuerySet[Judgement]] = {
        "replies": Turn.objects.filter(state=TurnState.PENDING),
        "jobs": TrainingJob.objects.filter(state=JobState.QUEUED),
        "judgements": Judgement.objects.filter(state=JudgementState.WAITING),
    }
    now = timezone.now()
    found = {}
    for name, rows in lines.items():
        line = rows.order_by().aggregate(rows=Count("pk"), oldest=Min("created_at"))
        oldest = line["oldest"]
        found[name] = (line["rows"], (now - oldest).total_seconds() if oldest else None)
    return found


def first_token_seconds() -> dict[float, float]:
    """From a message to its reply's first word, by quantile, of the last five minutes."""
    rows = Turn.objects.filter(first_token_at__gt=timezone.now() - LATELY).order_by("-id")
    rows = rows.exclude(lease_token="")  # brought in from a file: no generator wrote it here
    spans = rows.values_list("created_at", "first_token_at")[:NEWEST]
    return quantiles((first - asked).total_seconds() for asked, first in spans)


def job_seconds() -> dict[str, float]:
    """The median of each phase over the twenty newest jobs that went live."""
    newest = TrainingJob.objects.filter(state=JobState.DEPLOYED).order_by("-id")[:20]
    phases: dict[str, list[float]] = {}
    for timings in newest.values_list("timings", flat=True):
        for phase, seconds in phase_seconds(timings).items():
            phases.setdefault(phase, []).append(seconds)
    return {phase: statistics.median(seconds) for phase, seconds in phases.items()}


def quantiles(values: Iterable[float]) -> dict[float, float]:
    """Nearest-rank quantiles; empty when there are no values."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {q: ordered[round(q * last)] for q in QUANTILES} if ordered else {}


def alive() -> dict[str, int]:
    """Processes that were heard of within the last minute, by kind."""
    rows = Heartbeat.objects.filter(at__gt=timezone.now() - GONE_AFTER).order_by()
    return dict(rows.values_list("kind").annotate(Count("pk")))


def live_versions() -> int:
    return AdapterVersion.objects.filter(state=AdapterState.LIVE).count()
