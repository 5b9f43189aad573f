"""Which charts a job has, how to read each, and what its line says in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from clawweb.sentences import written

Point = dict[str, Any]
STEADY = 0.1  # of the range: a change below it is no trend
THUMBS = "thumbs"  # the phase after the hints, of another loss (training.types, the worker's alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One metric: its key in a point, its name, and how to read it."""

    key: str
    title: str | Promise
    meaning: str | Promise
    section: str | Promise
    unit: str | Promise = ""  # "" where it has none
    digits: int = 3
    spread: str = ""  # key of its standard deviation, drawn as bars
    is_of_loss: bool = False  # what it is in steps on all thumbs tells nothing beside the others


_NATS = gettext_lazy("nats per token")
_SHARE = gettext_lazy("share")
_TOKENS = gettext_lazy("tokens")
_GOAL = gettext_lazy("Goal")
_HEALTH = gettext_lazy("Health of the agent")
_OPTIMISER = gettext_lazy("Optimiser")
_REPLIES = gettext_lazy("Replies")
_SPEED = gettext_lazy("Speed")

CHARTS = (
    Chart(
        key="loss",
        section=_GOAL,
        title=gettext_lazy("Loss"),
        meaning=gettext_lazy(
            "How far the new version still is from what your ratings ask for. It should fall; each "
            "step learns from other replies, so a rise from one to the next alone means nothing. "
            "Last steps on all thumbs have a loss of their own."
        ),
        is_of_loss=True,
    ),
    Chart(
        key="kl",
        section=_GOAL,
        title=gettext_lazy("Distance to the hinted model (KL)"),
        unit=_NATS,
        meaning=gettext_lazy(
            "How differently it would answer from a model that had been told your wishes. "
            "It should fall; each step learns from other replies, so a rise from one to the next "
            "alone means nothing. Below 0.01 no more questions are answered anew."
        ),
    ),
    Chart(
        key="reward",
        section=_GOAL,
        title=gettext_lazy("Reward"),
        unit=gettext_lazy("mean of the thumbs"),
        meaning=gettext_lazy(
            "The mean of your thumbs in this step's replies, and how they differ: 1 is all up, "
            "−1 is all down. Any value is fine; all the same teaches least."
        ),
        digits=2,
        spread="reward_std",
    ),
    Chart(
        key="policy_loss",
        section=_GOAL,
        title=gettext_lazy("Loss of the thumbs"),
        meaning=gettext_lazy(
            "The part of the loss that thumbs alone make. Near 0 is normal, below 0 is good."
        ),
    ),
    Chart(
        key="correction_nll",
        section=_GOAL,
        title=gettext_lazy("Your own words"),
        unit=_NATS,
        meaning=gettext_lazy(
            "How far it is from saying, word for word, what you changed in its replies. It should "
            "fall; near 0 it has learned that by heart."
        ),
    ),
    Chart(
        key="kl_base",
        section=_HEALTH,
        title=gettext_lazy("Distance to the base model (KL)"),
        unit=_NATS,
        meaning=gettext_lazy(
            "How differently it answers from the untrained model. Below 0.2 is healthy; above 0.5 "
            "it may stop making sense."
        ),
    ),
    Chart(
        key="entropy",
        section=_HEALTH,
        title=gettext_lazy("Entropy"),
        unit=_NATS,
        meaning=gettext_lazy(
            "How many ways of going on it weighs up. It may fall a little; a fall towards 0 means "
            "that it only repeats itself."
        ),
    ),
    Chart(
        key="clip_share",
        section=_HEALTH,
        title=gettext_lazy("Words held back"),
        unit=_SHARE,
        meaning=gettext_lazy(
            "The share of words whose change was cut off for being too large at once. Below 0.1 "
            "is healthy, above 0.3 a warning."
        ),
        digits=2,
    ),
    Chart(
        key="zero_advantage",
        section=_HEALTH,
        title=gettext_lazy("Thumbs that taught nothing"),
        unit=_SHARE,
        meaning=gettext_lazy(
            "The share of thumbs that were exactly as expected. Low is good; at 1 the step "
            "learned nothing from thumbs."
        ),
        digits=2,
    ),
    Chart(
        key="policy_lag",
        section=_HEALTH,
        title=gettext_lazy("Versions behind"),
        unit=gettext_lazy("versions"),
        meaning=gettext_lazy(
            "How many versions ago the step's replies were written. 0 is best. A new rating of "
            "more than 3 is not trained on; thumbs that are looked at again count as 0."
        ),
        digits=1,
    ),
    Chart(
        key="response_length",
        section=_REPLIES,
        title=gettext_lazy("Length of its own replies"),
        unit=_TOKENS,
        meaning=gettext_lazy(
            "Mean tokens of the replies that it writes while it trains. It follows what you ask "
            "for; a jump to the limit is a warning."
        ),
        digits=0,
    ),
    Chart(
        key="cut_share",
        section=_REPLIES,
        title=gettext_lazy("Replies cut off"),
        unit=_SHARE,
        meaning=gettext_lazy(
            "The share of those replies that did not end within training's limit. High is normal "
            "for long answers; a rise means that it forgets to stop."
        ),
        digits=2,
    ),
    Chart(
        key="grad_norm",
        section=_OPTIMISER,
        title=gettext_lazy("Gradient norm"),
        meaning=gettext_lazy(
            "How hard the step pulls. Level or falling is healthy; a sudden jump is a warning."
        ),
        is_of_loss=True,
    ),
    Chart(
        key="lr",
        section=_OPTIMISER,
        title=gettext_lazy("Learning rate"),
        meaning=gettext_lazy(
            "How long the step is. It shrinks as the goal comes near; steps on all thumbs have a "
            "length of their own."
        ),
        digits=6,
        is_of_loss=True,
    ),
    Chart(
        key="tokens_per_second",
        section=_SPEED,
        title=gettext_lazy("Tokens per second"),
        unit=gettext_lazy("tokens per second"),
        meaning=gettext_lazy(
            "Reply tokens that are worked through. It only tells how long you wait."
        ),
        digits=0,
    ),
    Chart(
        key="memory_mib",
        section=_SPEED,
        title=gettext_lazy("Memory (MiB)"),
        unit="MiB",
        meaning=gettext_lazy(
            "What the trainer holds. Level is healthy; steady growth ends in a crash."
        ),
        digits=0,
    ),
)


def figures(words: Mapping[str, str], measured: Collection[str]) -> list[dict[str, Any]]:
    """For each chart what the page says of it: its summary, and whether it has a line, which is
    drawn in the browser."""
    return [
        {
            "key": chart.key,
            "section": chart.section,
            "title": chart.title,
            "meaning": chart.meaning,
            "unit": chart.unit,
            "digits": chart.digits,
            "measured": chart.key in measured,
            "summary": words[chart.key],
        }
        for chart in CHARTS
    ]


def cells(points: Sequence[Point]) -> list[list[str]]:
    """The same as rows of a table: step, attempt, each chart's value, – where there is none."""
    return [
        [
            str(point["step"]),
            str(point["attempt"]),
            *(_number(chart, point.get(chart.key)) for chart in CHARTS),
        ]
        for point in points
    ]


def is_on_all_thumbs(point: Point) -> bool:
    """Whether the step was of the phase after the hints: its loss is another."""
    return bool(point.get("phase") == THUMBS)


def summary(chart: Chart, points: Sequence[Point]) -> str:
    """What the line shows, in a sentence: last, first, least, largest, and where it goes; without
    the steps on all thumbs where they tell nothing beside the others."""
    if chart.is_of_loss:
        points = [point for point in points if not is_on_all_thumbs(point)]
    values = [point[chart.key] for point in points if chart.key in point]
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return _("Nothing measured yet.") if not values else _("No number came out.")
    if len(numbers) == 1:
        return _("One point: %(value)s.") % {"value": _number(chart, numbers[0])}
    words = _("Now %(last)s, at first %(first)s; between %(low)s and %(high)s.") % {
        "last": _number(chart, numbers[-1]),
        "first": _number(chart, numbers[0]),
        "low": _number(chart, min(numbers)),
        "high": _number(chart, max(numbers)),
    }
    return f"{words} {_trend(numbers)}".strip()


SPARK_WIDTH, SPARK_HEIGHT = 80, 20


def sparkline(values: Sequence[Any]) -> str:
    """The numbers as the `points` of an SVG polyline in a box of SPARK_WIDTH by SPARK_HEIGHT; empty
    with less than two."""
    numbers = [(i, v) for i, v in enumerate(values) if isinstance(v, int | float)]
    if len(numbers) < 2:
        return ""
    low, high = min(v for _i, v in numbers), max(v for _i, v in numbers)
    across, height = SPARK_WIDTH - 2, SPARK_HEIGHT - 2
    return " ".join(
        f"{1 + across * i / (len(values) - 1):.1f},"
        f"{1 + height * ((high - v) / (high - low) if high > low else 0.5):.1f}"
        for i, v in numbers
    )


def _number(chart: Chart, value: Any) -> str:
    if isinstance(value, int | float) and math.isfinite(value):
        return written(f"{value:.{chart.digits}f}")
    return "–" if value is None else str(value)


def _trend(numbers: Sequence[float]) -> str:
    """Whether the second half is higher or lower than the first; nothing of less than four."""
    if len(numbers) < 4:
        return ""
    half = len(numbers) // 2
    change = sum(numbers[-half:]) / half - sum(numbers[:half]) / half
    if abs(change) <= STEADY * (max(numbers) - min(numbers)):
        return _("It stays about level.")
    return _("It rises.") if change > 0 else _("It falls.")
