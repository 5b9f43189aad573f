"""Fewer points of a trace, the same ones each time: ends, extremes and gaps stay. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

Value = float | str | None  # a number; "nan", "inf" or "-inf"; None where nothing was measured
MOST = 2_000  # points per trace that a browser draws without a pause
_KINDS = 4  # of points that a bucket may keep: least, largest, not measured, not a number
FEWEST = 2 + _KINDS


def kept(values: Sequence[Value], most: int = MOST) -> list[int]:
    """Which values to draw: indices, ascending, at most `most` of them.

    First and last stay. Between them, of each of equally many values the least, the largest, the
    first that was not measured and the first that is no number: a spike or a gap is not averaged
    away. Raises ValueError when `most` is below FEWEST.
    """
    if most < FEWEST:
        raise ValueError(f"a trace needs at least {FEWEST} points")
    if len(values) <= most:
        return list(range(len(values)))
    kinds = 2 + any(value is None for value in values) + any(map(is_no_number, values))
    buckets = (most - 2) // kinds
    inner = len(values) - 2
    found = {0, len(values) - 1}
    for bucket in range(buckets):
        start, end = 1 + inner * bucket // buckets, 1 + inner * (bucket + 1) // buckets
        found |= _of_bucket(values, range(start, end))
    return sorted(found)


def is_no_number(value: Value) -> bool:
    """Whether it was measured and came out as NaN or infinite."""
    return isinstance(value, str) or (value is not None and not math.isfinite(value))


def _of_bucket(values: Sequence[Value], indices: range) -> set[int]:
    numbers = [(value, i) for i in indices if isinstance(value := values[i], int | float)]
    numbers = [(value, i) for value, i in numbers if math.isfinite(value)]
    found = {min(numbers)[1], max(numbers)[1]} if numbers else set()
    for marks in (lambda value: value is None, is_no_number):
        first = next((i for i in indices if marks(values[i])), None)
        if first is not None:
            found.add(first)
    return found
