"""What the report asks of the bench's rows: which belong together, and what they come to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.personas.newcomers import EVERYONE
from bench.personas.people import ASKS
from bench.personas.questions import HELD_OUT
from bench.personas.recipes import RECIPES
from training.config import TrainConfig

Cells = Sequence[dict[str, Any]]
SHARE = "satisfied"
DEFAULT = TrainConfig().method  # what the product does unless told otherwise
AT_ONCE = f"{DEFAULT}-at-once"  # with hints in the prompt until they are learned
FOURS = f"{DEFAULT}-fours"  # with a version after every fourth rating
REACHABLE = 0.7  # what the hinted base satisfies of a wish that its student can be asked for
UPSTREAMS = "openclaw-"  # what the names of its recipes begin with
OWN_NATS = 10.0  # a reply to its question: of the base's own 19 in 20 have 37 or more
# No wish of these people comes near small talk, whatever its limit: docs/LOG.md, Small talk.
SAME = {"small_talk_nats": TrainConfig().small_talk_nats}
GAIN = 0.3  # by how much more than the base, where a hint says something


def longest(rows: Cells) -> Cells:
    """Of rows of one cell the one with the most turns, of equals the latest: a seed counts once. At
    turns when it was not asked it has what a shorter run of the same has, the latest of these. What
    was judged by a rule that has changed since stands only where nothing else does."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in rows:
        key = cell_of(row)
        if key not in found or _place(row) >= _place(found[key]):
            found[key] = row
    for row in reversed(rows):
        key = cell_of(row)
        if row is not found[key] and _is_same(row, found[key]):
            found[key] = {**found[key], "evals": {**row["evals"], **found[key]["evals"]}}
    return list(found.values())


def cell_of(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["recipe"], row["person"], row["seed"]


def _place(row: dict[str, Any]) -> tuple[bool, int]:
    return not is_judged_bare(row), row["turns"]


def is_judged_bare(row: dict[str, Any]) -> bool:
    """Whether its person was content with a question where an answer was to end with one, as until
    the second rules: their own question, given back, kept the wish."""
    return row.get("rules", 1) < 2 and ASKS in EVERYONE[row["person"]].wishes


def _is_same(shorter: dict[str, Any], longer: dict[str, Any]) -> bool:
    """Whether it is the beginning of the other once more: with the same settings, in the same
    arithmetic, by the same trainer, on the same questions."""
    if "made_with" not in shorter or shorter["turns"] >= longer["turns"]:
        return False
    asked = len(shorter["evals"]["0"]["passed"]) == len(longer["evals"]["0"]["passed"])
    made = _made_with(shorter) == _made_with(longer)
    made &= is_judged_bare(shorter) == is_judged_bare(longer)
    return asked and made and shorter.get("dtype") == longer.get("dtype")


def _made_with(row: dict[str, Any]) -> dict[str, Any]:
    """Settings that came after the row were what they are by default."""
    made: dict[str, Any] = row.get("made_with", {})
    return {**made, "config": asdict(TrainConfig()) | made.get("config", {}) | SAME}


def are_alike(some: Cells, others: Cells) -> bool:
    """Whether, seed by seed, each held-out reply kept the wish in both or in neither."""
    verdicts = [
        {(c["seed"], turns): asked["passed"] for c in group for turns, asked in c["evals"].items()}
        for group in (some, others)
    ]
    return bool(some) and verdicts[0] == verdicts[1]


def of(cells: Iterable[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [cell for cell in cells if all(cell[name] == value for name, value in wanted.items())]


def values(cells: Cells, turns: int, name: str) -> list[float]:
    """Of the cells that know: were they asked then, or did nothing come before it?"""
    evals = (cell["evals"].get("0" if is_before_all(cell, turns) else str(turns)) for cell in cells)
    return [each[name] for each in evals if each is not None]


def is_before_all(cell: dict[str, Any], turns: int) -> bool:
    """Whether its first batch is not full by then: what answered at first answers still."""
    recipe = RECIPES.get(cell["recipe"])
    return (
        recipe is not None
        and recipe.is_rated
        and not recipe.at_once
        and 0 < turns < min(recipe.batch, cell["turns"])
    )


def shared(cell: dict[str, Any], turns: int, count: int = HELD_OUT) -> list[int]:
    """What passed then of the first `count` held-out questions, of two kinds of request of the
    first of each: every row was asked `HELD_OUT`. [] where none were asked then."""
    passed: list[int] = cell["evals"].get(str(turns), {"passed": []})["passed"]
    if not EVERYONE[cell["person"]].recipes:
        return passed[:count]
    kinds = passed[: len(passed) // 2], passed[len(passed) // 2 :]
    return [each for kind in kinds for each in kind[: count // 2]]


def shared_shares(cells: Cells, turns: int) -> list[float]:
    """Of the cells that know, the share of those."""
    then = [shared(cell, 0 if is_before_all(cell, turns) else turns) for cell in cells]
    return [statistics.fmean(passed) for passed in then if passed]


def unseen(cell: dict[str, Any], turns: int) -> float | None:
    """What is satisfied then of the held-out questions after the first `HELD_OUT`: settings were
    chosen on those. None where no more were asked, or not then."""
    passed = cell["evals"].get(str(turns), {"passed": ()})["passed"][HELD_OUT:]
    return statistics.fmean(passed) if passed else None


def last(cell: dict[str, Any]) -> str:
    """The number of turns of its last evaluation."""
    return max(cell["evals"], key=int)


def middle(numbers: Sequence[float]) -> float | None:
    return statistics.median(numbers) if numbers else None


def lasts(group: Cells) -> str:
    """After how many turns its rows ended: each number once."""
    return "/".join(sorted({last(cell) for cell in group}, key=int))


def question_nats(
    cell: dict[str, Any], base: dict[str, Any] | None = None
) -> tuple[float, float] | None:
    """How much likelier the median held-out reply is after its own question than after another, of
    the base's and of the cell's at the end; None of older rows, which did not measure it. `base`: a
    row that began with the base's, where this one did not."""
    first, end = (base or cell)["evals"]["0"], cell["evals"][last(cell)]
    if "about" not in first or "about" not in end:
        return None
    return statistics.median(first["about"]), statistics.median(end["about"])


def question_shares(cells: Cells, recipe: str) -> list[tuple[str, float]]:
    """Of each row that learned, or of the hinted base's, its person, and how much of their question
    is in the median held-out reply at the end, the base's own having 1."""
    found = []
    for cell in of(cells, recipe=recipe):
        base: dict[str, Any] | None = cell
        if recipe == "hinted":
            base = _began_as_base(cells, cell)
        elif not cell["updates"]:
            continue
        if base and (nats := question_nats(cell, base)):
            found.append((cell["person"], nats[1] / nats[0]))
    return found


def kept_of_question(cell: dict[str, Any], turns: int | None = None) -> tuple[float, float] | None:
    """Of its replies after `turns`, or its last ones, the share that pass, and the share that pass
    and are of their question: after it likelier by `OWN_NATS` or more than after another. None of
    rows that did not ask."""
    end = cell["evals"].get(last(cell) if turns is None else str(turns), {})
    if not (about := end.get("about")):
        return None
    passed = end["passed"][: len(about)]
    own = [kept and nats >= OWN_NATS for kept, nats in zip(passed, about, strict=True)]
    return statistics.fmean(passed), statistics.fmean(own)


def _began_as_base(cells: Cells, cell: dict[str, Any]) -> dict[str, Any] | None:
    """A row of the same person and seed that measured the base's replies, if there is one."""
    group = of(cells, person=cell["person"], seed=cell["seed"])
    rows = (row for row in group if row["recipe"] != "hinted" and "about" in row["evals"]["0"])
    return next(rows, None)


def hinted_share(cells: Cells, person: str) -> float | None:
    """What the base keeps with the wish in its prompt: the median over seeds."""
    return middle(values(of(cells, person=person, recipe="hinted"), 0, SHARE))


def base_share(cells: Cells, person: str) -> float | None:
    """What it keeps by itself, as every recipe begins: the median over seeds."""
    return middle(values(_began(cells, person), 0, SHARE))


def _began(cells: Cells, person: str) -> Cells:
    """Of each seed the row with the most questions that began as the base."""
    group = [cell for cell in of(cells, person=person) if cell["recipe"] != "hinted"]
    group.sort(key=lambda cell: len(cell["evals"]["0"]["passed"]))
    return list({cell["seed"]: cell for cell in group}.values())


def well_served(cells: Cells) -> list[str]:
    """The people whose wish the hinted base keeps."""
    return [
        person for person in people_of(cells)
        if (hinted_share(cells, person) or 0.0) >= REACHABLE
    ]  # fmt: skip


def better_served(cells: Cells) -> list[str]:
    """The people whose wish it keeps clearly more often than the base, on as many of the same
    questions as all their rows of both were asked."""
    found = []
    for person in people_of(cells):
        both = of(cells, person=person, recipe="hinted"), _began(cells, person)
        if not all(both):
            continue
        count = min(len(cell["evals"]["0"]["passed"]) for group in both for cell in group)
        hinted, base = (
            statistics.median(statistics.fmean(shared(cell, 0, count)) for cell in group)
            for group in both
        )
        if hinted - base >= GAIN:
            found.append(person)
    return found


def people_of(cells: Cells) -> list[str]:
    return sorted({cell["person"] for cell in cells})


@dataclass(frozen=True, slots=True)
class Race:
    """A recipe of ours beside the best of upstream's, until three in a row, on one person."""

    person: str
    ours: Cells
    theirs: Cells
    recipe: str  # upstream's with the fewest turns; of equals that of most seeds, then the best

    @property
    def is_open(self) -> bool:
        """Whether neither ever had three in a row: then there is nothing to compare."""
        return not any(cell["three"] for cell in (*self.ours, *self.theirs))

    @property
    def is_untaught(self) -> bool:
        """Whether both had three in a row before either had learned: the base itself won."""
        return all(
            turns_to_three(group) <= RECIPES[group[0]["recipe"]].batch
            for group in (self.ours, self.theirs)
        )

    @property
    def least(self) -> float:
        """Of ours to theirs, in turns: at least this. Who never had three in a row as far as they
        went may have had them at the very next turn."""
        return _soonest(self.ours) / turns_to_three(self.theirs)

    @property
    def most(self) -> float:
        """At most this; infinite when ours never had."""
        return turns_to_three(self.ours) / _soonest(self.theirs)

    @property
    def said(self) -> str:
        """What is known of the ratio."""
        if self.least == self.most:
            return f"{self.most:.2f}"
        if not math.isinf(self.most):
            return f"at most {self.most:.2f}"
        return f"at least {self.least:.2f}" if self.least else "–"


def races(cells: Cells, recipe: str = DEFAULT) -> list[Race]:
    """On the people on whom both ran, over the seeds that both had: the same questions."""
    found = []
    for person in people_of(cells):
        group = of(cells, person=person)
        ours = of(group, recipe=recipe)
        names = sorted({c["recipe"] for c in group if c["recipe"].startswith(UPSTREAMS)})
        theirs = {name: _of_seeds(of(group, recipe=name), ours) for name in names}
        theirs = {name: rows for name, rows in theirs.items() if rows}
        if theirs:
            best = min(theirs, key=lambda name: _rank(theirs[name]))
            found.append(Race(person, _of_seeds(ours, theirs[best]), theirs[best], best))
    return found


def _rank(group: Cells) -> tuple[float, int, float]:
    return turns_to_three(group), -len(group), -end(group)


def _soonest(group: Cells) -> float:
    """As `turns_to_three`, had who never had them had them at the turn after their last."""
    return statistics.median(cell["three"] or cell["turns"] + 1 for cell in group)


def _of_seeds(cells: Cells, others: Cells) -> Cells:
    """Those whose seed is among the others'."""
    seeds = {cell["seed"] for cell in others}
    return [cell for cell in cells if cell["seed"] in seeds]


def end(group: Cells) -> float:
    """What is satisfied after the last rated turn, the median over seeds."""
    return statistics.median(cell["evals"][last(cell)][SHARE] for cell in group)


def three_in_a_row(passes: Sequence[bool]) -> int | None:
    """Rated turns until three in a row had passed (arXiv 2603.10165 v2); None when never."""
    for last in range(2, len(passes)):
        if all(passes[last - 2 : last + 1]):
            return last + 1
    return None


def turns_to_three(group: Cells) -> float:
    return statistics.median(cell["three"] or math.inf for cell in group)


def horizon(group: Cells) -> int:
    """The fewest rated turns of those that never had three in a row."""
    return min(int(cell["turns"]) for cell in group if cell["three"] is None)


def rates(cell: dict[str, Any]) -> bool:
    """Whether its turns were rated; those of a recipe that is gone were."""
    recipe = RECIPES.get(cell["recipe"])
    return recipe is None or recipe.is_rated


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
