"""Metric points to Plotly figures and to sentences. Pure: plain dicts in, plain dicts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

Point = dict[str, Any]
FEW_STEPS = 4  # what a job plans


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One metric: its key in a point, its name, and how to read it."""

    key: str
    title: str | Promise
    meaning: str | Promise
    digits: int = 3


CHARTS = (
    Chart(
        key="loss",
        title=gettext_lazy("Loss"),
        meaning=gettext_lazy(
            "How far the new version still is from what your ratings ask for. It should fall."
        ),
    ),
    Chart(
        key="reward",
        title=gettext_lazy("Reward"),
        meaning=gettext_lazy(
            "The mean of your thumbs in this step's replies: 1 is all up, −1 is all down."
        ),
        digits=2,
    ),
    Chart(
        key="kl",
        title=gettext_lazy("Distance to the hinted model (KL)"),
        meaning=gettext_lazy(
            "How differently it would answer from a model that had been told your wishes. "
            "It should fall; below 0.01 training stops."
        ),
    ),
    Chart(
        key="grad_norm",
        title=gettext_lazy("Gradient norm"),
        meaning=gettext_lazy("How hard the step pulls. A sudden jump is a warning."),
    ),
    Chart(
        key="tokens_per_second",
        title=gettext_lazy("Tokens per second"),
        meaning=gettext_lazy(
            "Reply tokens that are worked through. It only tells how long you wait."
        ),
        digits=0,
    ),
)


def chart_context(points: Sequence[Point]) -> list[dict[str, Any]]:
    """For each chart what the page shows of it: words for everyone, a figure for the script."""
    return [
        {
            "key": chart.key,
            "title": chart.title,
            "meaning": chart.meaning,
            "digits": chart.digits,
            "summary": summary(chart, points),
            "figure": figure(chart, points),
        }
        for chart in CHARTS
    ]


def figure(chart: Chart, points: Sequence[Point]) -> dict[str, Any]:
    """A line through the measured points. Colours come from the page's theme, in the browser."""
    steps, values = measured(chart, points)
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": str(chart.title),
                "x": steps,
                "y": values,
                "hovertemplate": f"{_('step')} %{{x}}: %{{y:.{chart.digits}f}}<extra></extra>",
            }
        ],
        "layout": {
            "autosize": True,
            "height": 220,
            "margin": {"l": 52, "r": 12, "t": 8, "b": 40},
            "showlegend": False,
            "xaxis": {"title": {"text": _("step")}, **steps_axis(points)},
            "yaxis": {"zeroline": chart.key in ("reward",), "nticks": 5},
            "shapes": restarts(points),
        },
    }


def steps_axis(points: Sequence[Point]) -> dict[str, Any]:
    """Whole steps from 0, with room for a few. charts.js does the same for new points."""
    last = max(points[-1]["step"] if points else 0, FEW_STEPS)
    return {"range": [0, last + 0.4], "dtick": 1 if last <= 12 else None, "tickformat": "d"}


def restarts(points: Sequence[Point]) -> list[dict[str, Any]]:
    """A dotted line before the first step of every attempt but the first."""
    shapes = []
    for before, after in pairwise(points):
        if after["attempt"] != before["attempt"]:
            at = (before["step"] + after["step"]) / 2
            shapes.append(
                {
                    "type": "line",
                    "xref": "x",
                    "yref": "paper",
                    "x0": at,
                    "x1": at,
                    "y0": 0,
                    "y1": 1,
                    "line": {"dash": "dot", "width": 1},
                }
            )
    return shapes


def measured(chart: Chart, points: Sequence[Point]) -> tuple[list[int], list[float]]:
    """Steps and values of the points that have this metric; a missing one is no zero."""
    rows = [(point["step"], point[chart.key]) for point in points if chart.key in point]
    return [step for step, _value in rows], [value for _step, value in rows]


def summary(chart: Chart, points: Sequence[Point]) -> str:
    """What the line shows, in a sentence."""
    _steps, values = measured(chart, points)
    if not values:
        return _("Nothing measured yet.")
    number = f"{{:.{chart.digits}f}}".format
    if len(values) == 1:
        return _("One point: %(value)s.") % {"value": number(values[0])}
    return _("Now %(last)s, at first %(first)s; between %(low)s and %(high)s.") % {
        "last": number(values[-1]),
        "first": number(values[0]),
        "low": number(min(values)),
        "high": number(max(values)),
    }
