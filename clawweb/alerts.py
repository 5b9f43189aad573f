"""What in a job's points deserves a look: rules over plain dicts. Pure; the clock is given."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from clawweb.figures import is_on_all_thumbs

Point = dict[str, Any]
JUMP = 5.0  # times the median of the gradient norms before it
JUMP_AFTER, JUMP_OF = 3, 20  # a median needs so many norms, and is of at most so many
KL_BASE_LIMIT = 0.5  # nats per token; the gate lets a version drift a tenth of that by itself
KL_BACKWARDS = 2.0  # times the distance that the attempt began with
KL_SMALL = 0.05  # below it a distance may double and mean nothing
CLIPPED = 0.3  # of the words; PPO runs in good order clip a tenth
SILENT = timedelta(seconds=120)
SILENT_STEPS = 5  # or so many times what the last step took


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing to look at: the rule, the chart and the step it is marked at, and its words."""

    rule: str
    key: str  # of a chart; empty: all charts
    step: int
    mark: str  # a word or two beside the line
    text: str  # a sentence for the list
    value: float | None = None


def alerts(points: Sequence[Point], *, is_training: bool, now: datetime) -> list[Alert]:
    """All rules over a job's points in the order of their steps; each names its first step in an
    attempt only, so that one cause is one alert."""
    found: list[Alert] = []
    for attempt in dict.fromkeys(point["attempt"] for point in points):
        own = [point for point in points if point["attempt"] == attempt]
        for rule in _RULES:
            first = {alert.key: alert for alert in reversed(list(rule(own)))}
            found += first.values()
    if is_training and is_silent(points, now):
        found.append(_stalled(points[-1]))
    return sorted(found, key=lambda alert: alert.step)


def is_silent(points: Sequence[Point], now: datetime) -> bool:
    """Whether the step after the last one is long overdue. Before the first nobody can say."""
    if not points:
        return False
    usual = timedelta(seconds=points[-1].get("seconds", 0.0))
    return bool(now - points[-1]["at"] > max(SILENT, SILENT_STEPS * usual))


def _numbers(points: Sequence[Point], key: str) -> Iterator[tuple[Point, float]]:
    for point in points:
        if isinstance(value := point.get(key), int | float):
            yield point, value


def _not_a_number(points: Sequence[Point]) -> Iterator[Alert]:
    for point in points:
        for key, value in point.items():
            if value in ("nan", "inf", "-inf"):
                yield Alert(
                    rule="not_a_number",
                    key=key,
                    step=point["step"],
                    mark=_("no number"),
                    text=_("The sums of this step came out as no number. Training ended there."),
                )


def _gradient_jump(points: Sequence[Point]) -> Iterator[Alert]:
    before: deque[float] = deque(maxlen=JUMP_OF)
    was_on_thumbs = False
    for point, norm in _numbers(points, "grad_norm"):
        if is_on_all_thumbs(point) != was_on_thumbs:
            before.clear()  # another loss has norms of its own
        was_on_thumbs = is_on_all_thumbs(point)
        if len(before) >= JUMP_AFTER and norm > JUMP * statistics.median(before):
            yield Alert(
                rule="gradient_jump",
                key="grad_norm",
                step=point["step"],
                mark=_("jump"),
                text=_("This step pulled more than five times as hard as those before it."),
                value=norm,
            )
        before.append(norm)


def _far_from_base(points: Sequence[Point]) -> Iterator[Alert]:
    for point, distance in _numbers(points, "kl_base"):
        if distance > KL_BASE_LIMIT:
            yield Alert(
                rule="far_from_base",
                key="kl_base",
                step=point["step"],
                mark=_("too far"),
                text=_("The version moves far from the base model; it may stop making sense."),
                value=distance,
            )


def _backwards(points: Sequence[Point]) -> Iterator[Alert]:
    first: float | None = None
    for point, distance in _numbers(points, "kl"):
        first = distance if first is None else first
        if distance > KL_SMALL and distance > KL_BACKWARDS * first:
            yield Alert(
                rule="backwards",
                key="kl",
                step=point["step"],
                mark=_("backwards"),
                text=_("It is further from what was asked for than when it began."),
                value=distance,
            )


def _clipped(points: Sequence[Point]) -> Iterator[Alert]:
    for point, share in _numbers(points, "clip_share"):
        if share > CLIPPED:
            yield Alert(
                rule="clipped",
                key="clip_share",
                step=point["step"],
                mark=_("held back"),
                text=_("Much of this step was held back: it wanted to go too far at once."),
                value=share,
            )


def _no_advantage(points: Sequence[Point]) -> Iterator[Alert]:
    for point, share in _numbers(points, "zero_advantage"):
        if share == 1:
            yield Alert(
                rule="no_advantage",
                key="zero_advantage",
                step=point["step"],
                mark=_("nothing to learn"),
                text=_("All thumbs of this step were as expected: they taught nothing."),
                value=share,
            )


def _stalled(point: Point) -> Alert:
    return Alert(
        rule="stalled",
        key="",
        step=point["step"],
        mark=_("silent since"),
        text=_("No step has ended for a while. The worker may be busy, or gone."),
    )


_RULES: tuple[Callable[[Sequence[Point]], Iterator[Alert]], ...] = (
    _not_a_number,
    _gradient_jump,
    _far_from_base,
    _backwards,
    _clipped,
    _no_advantage,
)
