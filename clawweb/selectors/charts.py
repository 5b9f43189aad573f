"""Reads of what jobs measured, as the charts want it: few points, several jobs, in words too."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db.models import Max, Q
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from clawweb.alerts import alerts, is_silent
from clawweb.downsampling import MOST, kept
from clawweb.figures import CHARTS, cells, is_on_all_thumbs, summary
from clawweb.models import Event, JobState, TrainingJob, User
from clawweb.selectors.learning import job_number, jobs_of, metric_points, visible_jobs

COMPARED = 8  # jobs in one chart: as many as there are colours that all can tell apart
TABLED = 200  # newest steps in the table; all are in the CSV
Point = dict[str, Any]
Mark = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which steps are asked for: after `after`, from `low` to `high`, None for no bound."""

    after: int = -1
    low: int | None = None
    high: int | None = None

    def holds(self, step: int) -> bool:
        above = step > self.after and (self.low is None or step >= self.low)
        return above and (self.high is None or step <= self.high)


def compared_jobs(user: User, job: TrainingJob, names: str) -> list[TrainingJob]:
    """The jobs of `names` that the user may see, at most seven: `3,5` are numbers of jobs of the
    owner of `job`, anything else a job's id. What is not there is left out."""
    found: dict[int, TrainingJob] = {}
    owned = list(jobs_of(job.user).order_by("pk").values_list("pk", flat=True))
    for name in names.split(",")[: 4 * COMPARED]:
        wanted = Q(public_id=name)
        if name.isdecimal() and len(name) < 9:
            number = int(name)
            wanted = Q(pk=owned[number - 1] if 0 < number <= len(owned) else None)
        other = visible_jobs(user).filter(wanted).exclude(pk=job.pk).first()
        if other is not None:
            found[other.pk] = other
    return list(found.values())[: COMPARED - 1]


def series_version(
    jobs: Sequence[TrainingJob], marks: Sequence[Mark], query: str, now: datetime
) -> str:
    """Changes when what `series` says does: points, states, the language, a long silence."""
    newest = [job.metrics.aggregate(step=Max("step"))["step"] for job in jobs]
    silent = is_silent(metric_points(jobs[0], after=(newest[0] or 0) - 1), now)
    moved = [mark["at"] for mark in marks]
    facts = [[(job.pk, job.state) for job in jobs], newest, silent, moved, query, get_language()]
    return f'"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}"'


def series(
    user: User,
    jobs: Sequence[TrainingJob],
    marks: Sequence[Mark],
    window: Window,
    now: datetime,
    most: int = MOST,
) -> dict[str, Any]:
    """The first job's points with those it is compared with, each trace of at most `most` points;
    and in words what the first one's say: summaries, rows of the table, alerts."""
    job = jobs[0]
    points = metric_points(job)
    training = job.state == JobState.TRAINING
    fresh = [point for point in points if point["step"] > window.after]
    return {
        "state": job.state,
        "points": len(points),
        "last_at": points[-1]["at"] if points else None,
        "jobs": [
            {
                "id": row.public_id,
                "name": _name(row, user),
                **_traces(row, points if row is job else metric_points(row), window, most),
            }
            for row in jobs
        ],
        "words": {chart.key: summary(chart, points) for chart in CHARTS},
        "rows": cells(fresh[-TABLED:]),
        "marks": marks,
        "phases": phases_of(points),
        "alerts": [asdict(alert) for alert in alerts(points, is_training=training, now=now)],
    }


def phases_of(points: Sequence[Point]) -> list[Mark]:
    """Where each attempt goes over to all thumbs: a loss of its own begins there."""
    first: dict[int, int] = {}
    for point in points:
        if is_on_all_thumbs(point):
            first.setdefault(point["attempt"], point["step"])
    return [{"step": step, "mark": _("all thumbs")} for step in first.values()]


def marks_of(jobs: Sequence[TrainingJob]) -> list[Mark]:
    """When the jobs' versions went live and when they were left, oldest first."""
    names = {job.child_id: job.public_id for job in jobs if job.child_id}
    kinds = {"adapter_live": _("v%(n)s live"), "adapter_rolled_back": _("v%(n)s rolled back")}
    rows = Event.objects.filter(adapter__in=list(names), kind__in=list(kinds))
    return [
        {
            "job": names[row.adapter_id],
            "kind": row.kind.removeprefix("adapter_"),
            "at": row.at,
            "text": kinds[row.kind] % {"n": row.adapter.version},
        }
        for row in rows.select_related("adapter").order_by("id")
    ]


def _name(job: TrainingJob, user: User) -> str:
    words = _("Job %(number)s, %(method)s") % {"number": job_number(job), "method": job.method}
    return words if job.user_id == user.pk else f"{job.user.get_username()}: {words}"


def _traces(job: TrainingJob, points: Sequence[Point], window: Window, most: int) -> dict[str, Any]:
    """Columns of each measured chart. The window is cut out first, then points are left out."""
    placed = [point for point in _placed(job, points) if window.holds(point["step"])]
    traces = {}
    for chart in CHARTS:
        values = [point.get(chart.key) for point in placed]
        if all(value is None for value in values):
            continue
        rows = [placed[i] for i in kept(values, most)]
        columns = {name: [row[name] for row in rows] for name in _X}
        columns["y"] = [row.get(chart.key) for row in rows]
        if chart.spread:
            columns["spread"] = [row.get(chart.spread) for row in rows]
        traces[chart.key] = columns
    return {"total": len(placed), "traces": traces}


_X = ("step", "attempt", "samples", "elapsed", "at")


def _placed(job: TrainingJob, points: Sequence[Point]) -> list[Point]:
    """Each point with where it stands: replies used and seconds passed so far. A step that did not
    count its replies leaves all later sums unknown."""
    start = job.started_at or (points[0]["at"] if points else None)
    samples: int | None = 0
    placed = []
    for point in points:
        replies = point.get("replies")
        samples = samples + replies if samples is not None and replies is not None else None
        elapsed = (point["at"] - start).total_seconds()
        placed.append({**point, "samples": samples, "elapsed": elapsed})
    return placed
