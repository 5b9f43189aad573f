"""The default beside another recipe, pair by pair of the same person and seed."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import product
from typing import Any

from bench.personas.older import trainer_of
from bench.personas.rows import DEFAULT, Cells, grid, is_judged_bare, of, shared

RIVAL = "opd"  # the default before
ALIKE = "of one trainer and precision"


@dataclass(frozen=True, slots=True)
class Gap:
    """The default's share minus the other's: the mean of so many pairs, and its standard error."""

    pairs: int
    mean: float
    error: float

    @property
    def is_told_apart(self) -> bool:
        return abs(self.mean) > 2 * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ± {self.error:.3f}"


def gap(cells: Cells, other: str, turns: int, *, alike: bool) -> Gap | None:
    """On the questions that both were asked by then, by pairs that were judged by the same rules;
    `alike`: that differ in nothing but the recipe. None of less than two pairs."""
    ours, theirs = (
        {_pair(c, alike): passed for c in of(cells, recipe=name) if (passed := shared(c, turns))}
        for name in (DEFAULT, other)
    )
    both = [zip(ours[key], theirs[key], strict=False) for key in ours.keys() & theirs.keys()]
    gaps = [statistics.fmean(our - their for our, their in pair) for pair in both]
    if len(gaps) < 2:
        return None
    error = statistics.stdev(gaps) / math.sqrt(len(gaps))
    return Gap(len(gaps), statistics.fmean(gaps), error)


def _pair(cell: dict[str, Any], alike: bool) -> tuple[Any, ...]:
    made = (trainer_of(cell), cell.get("dtype")) if alike else ()
    return (cell["person"], cell["seed"], is_judged_bare(cell), *made)


def beside(cells: Cells) -> list[str]:
    """The default and its nearest rival: all pairs, and those that differ in nothing else."""
    rows = [
        [str(turns), ALIKE if alike else "all", str(found.pairs), str(found)]
        for turns, alike in product((8, 16, 32), (False, True))
        if (found := gap(cells, RIVAL, turns, alike=alike))
    ]
    said = [
        f"`{DEFAULT}` minus `{RIVAL}` in satisfied, by person and seed (± the mean's standard",
        "error; within two of which neither is the better). Of all pairs most differ in trainer",
        "and precision, too:",
    ]
    return [*said, "", *grid(["turns", "rows", "pairs", "difference"], rows)] if rows else []
