"""Which cells the bench is made of: the full product of recipes, people and seeds would take days.

First every method, rival and upstream recipe on three people with one seed; then the three methods
that did best there, the best upstream recipe and prompt memory on all people with three seeds.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from bench.personas.people import PEOPLE
from bench.personas.recipes import RECIPES, VARIATIONS
from bench.personas.rows import (
    DEFAULT,
    UPSTREAMS,
    Cells,
    cell_of,
    grid,
    middle,
    of,
    shared,
    turns_to_three,
)

Key = tuple[str, str, int]  # recipe, person, seed
FIRST_PEOPLE = ("short", "greets", "recipes")
SEEDS = (0, 1, 2)
FIRST_SEED = SEEDS[0]
JUDGED_AT = 16  # rated turns after which the methods are compared
UPSTREAM_AT = 32  # and upstream's recipes: one batch of theirs is 16
BEST = 3  # of them go on
MARKS = (16, 32, 64)  # rated turns: how far cells went
BESIDE = ("hinted", "memory")  # what the best are shown beside


def first_stage() -> list[Key]:
    recipes = [name for name in RECIPES if name not in VARIATIONS]
    return [(recipe, person, FIRST_SEED) for person in FIRST_PEOPLE for recipe in recipes]


def second_stage(cells: Cells) -> list[Key]:
    """As the first stage's rows have it so far: what ran on more seeds was chosen already, and is
    not compared with what did not. Nor is it chosen anew when a first row is run again: upstream's
    recipes are a question or two apart."""
    first = of(cells, seed=FIRST_SEED)
    upstream = _that_ran_everywhere(cells) or best_upstream(first)
    recipes = [*best_methods(first), *upstream, *BESIDE]
    return [(recipe, person, seed) for seed in SEEDS for person in PEOPLE for recipe in recipes]


def _that_ran_everywhere(cells: Cells) -> list[str]:
    """Upstream's recipes that have rows of all people and seeds."""
    everywhere = set(product(PEOPLE, SEEDS))
    ran: dict[str, set[tuple[str, int]]] = {}
    for cell in cells:
        ran.setdefault(cell["recipe"], set()).add((cell["person"], cell["seed"]))
    return [name for name in ran if name.startswith(UPSTREAMS) and ran[name] >= everywhere]


def best_methods(cells: Cells) -> list[str]:
    """The default and the best others."""
    means = methods(cells)
    others = sorted(means.keys() - {DEFAULT}, key=lambda name: (-means[name], name))
    return [DEFAULT, *others[: BEST - 1]]


def methods(cells: Cells) -> dict[str, float]:
    """The mean satisfied of those of ours that ran on all three people.

    Where the person writes the answer that they want, they say more than others do: not compared.
    """
    return {
        name: mean
        for name, recipe in RECIPES.items()
        if recipe.learns == "train" and not recipe.corrects
        if name not in VARIATIONS and not name.startswith(UPSTREAMS)
        if (mean := mean_satisfied(cells, name, JUDGED_AT)) is not None
    }


def told_answers(cells: Cells) -> dict[str, float]:
    """The same mean of those that are told more than the others."""
    names = (name for name, recipe in RECIPES.items() if recipe.corrects and name not in VARIATIONS)
    means = ((name, mean_satisfied(cells, name, JUDGED_AT)) for name in names)
    return {name: mean for name, mean in means if mean is not None}


def variations(cells: Cells, *, at_least: float) -> dict[str, float]:
    """The same mean of the variations that have it: shown, and no method of their own."""
    means = ((name, mean_satisfied(cells, name, JUDGED_AT)) for name in VARIATIONS)
    return {name: mean for name, mean in means if mean is not None and mean >= at_least}


def best_upstream(cells: Cells) -> list[str]:
    """The one with the most satisfied, of equals the one with the fewest turns until three in a row
    on the three people; none before one of them ran."""
    means = {
        name: mean
        for name in RECIPES
        if name.startswith(UPSTREAMS)
        if (mean := mean_satisfied(cells, name, UPSTREAM_AT)) is not None
    }

    def place(name: str) -> tuple[float, float, str]:
        group = [cell for cell in of(cells, recipe=name) if cell["person"] in FIRST_PEOPLE]
        return -means[name], turns_to_three(group), name

    return sorted(means, key=place)[:1]


def mean_satisfied(cells: Cells, recipe: str, turns: int) -> float | None:
    """Over the three people, on the questions that every row was asked; None if it has not run on
    all."""
    group = of(cells, recipe=recipe)
    shares = (
        [statistics.fmean(passed) for c in of(group, person=p) if (passed := shared(c, turns))]
        for p in FIRST_PEOPLE
    )
    each = [middle(of_person) for of_person in shares]
    known = [share for share in each if share is not None]
    return statistics.fmean(known) if len(known) == len(each) else None


def stages(cells: Cells) -> list[str]:
    """How much of both has run, and how far: what has not is not known. `cells`: one of a key."""
    have = {cell_of(cell): cell["turns"] for cell in cells}
    second = second_stage(cells)
    best = ", ".join(f"`{recipe}`" for recipe in recipes_of(second))
    rows = [_line("first", "all", first_stage(), have), _line("second", best, second, have)]
    said = [
        "What has run. First stage: all recipes but variations on"
        f" {', '.join(FIRST_PEOPLE)}, one seed.",
        f"Second: the best {BEST} methods there after {JUDGED_AT} rated turns, the best of"
        f" upstream's after {UPSTREAM_AT}, and prompt memory, on all people with three seeds.",
        "How far: of the cells whose turns are rated, those that went on for so many or more.",
    ]
    far = [f"to {turns} turns" for turns in MARKS]
    return [*said, "", *grid(["stage", "recipes", "ran", "missing", *far], rows)]


def recipes_of(wanted: Sequence[Key]) -> list[str]:
    return list(dict.fromkeys(recipe for recipe, _, _ in wanted))


def _line(stage: str, recipes: str, wanted: Sequence[Key], have: Mapping[Key, int]) -> list[str]:
    missing = Counter(key[0] for key in wanted if key not in have)
    shown = ", ".join(f"`{name}` {missing[name]}" for name in recipes_of(wanted) if missing[name])
    ran = f"{len(wanted) - missing.total()} of {len(wanted)}"
    rated = [have.get(key, 0) for key in wanted if RECIPES[key[0]].is_rated]
    far = [f"{sum(turns >= mark for turns in rated)} of {len(rated)}" for mark in MARKS]
    return [stage, recipes, ran, shown or "none", *far]
