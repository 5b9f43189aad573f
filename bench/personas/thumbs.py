"""Thumbs alone: what they have gained on the held-out questions, and whether it may be chance."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from bench.personas.people import PEOPLE
from bench.personas.questions import is_recipe, questions_for
from bench.personas.recipes import AS_SERVED, RECIPES
from bench.personas.rows import SHARE, Cells, grid, last, lasts, of, people_of, values

DRAWS = 10_000  # of the bootstrap


def thumbs(cells: Cells) -> list[str]:
    """What thumbs alone have gained, and whether it may be chance."""
    rows = [
        _line(person, recipe, group)
        for person in people_of(cells)
        for recipe, group in of_thumbs_alone(of(cells, person=person)).items()
    ]
    head = ["person", "recipe", "seeds", "turns", "questions", "base", "gain", "p", "p, seeds too"]
    said = "Thumbs alone: the gain in satisfied since turn 0, and how likely one of 0 or less is"
    how = f"(questions resampled {DRAWS:,} times, each the mean of its seeds; then seeds, too):"
    return [said, how, "", *grid(head, rows)] if rows else []


def of_thumbs_alone(cells: Cells) -> dict[str, Cells]:
    """By recipe of the bench, the rows of those who said no word and had an update."""
    found = {}
    for recipe in sorted({cell["recipe"] for cell in cells} - {*AS_SERVED}):
        group = of(cells, recipe=recipe)
        is_thumb = recipe in RECIPES and RECIPES[recipe].is_thumb
        if is_thumb and any(cell["updates"] for cell in group):
            found[recipe] = group
    return found


def _line(person: str, recipe: str, group: Cells) -> list[str]:
    differences = gains(group)
    gain, p = statistics.fmean(differences), chance(differences)
    turns = lasts(group)
    base = statistics.median(values(group, 0, SHARE))
    of_seeds = f"{chance_of_seeds(group):.3f}" if len(group) > 1 else "–"
    shown = [f"{base:.2f}", f"{gain:+.3f}", f"{p:.4f}", of_seeds]
    return [person, recipe, str(len(group)), turns, str(len(differences)), *shown]


def gains(group: Cells) -> list[float]:
    """Of each held-out question, the mean over seeds of passed at the last turn minus at 0."""
    return [statistics.fmean(each) for each in zip(*_by_seed(group), strict=True)]


def gains_of(group: Cells, turns: str, *, recipes: bool) -> list[float]:
    """As `gains` by then, of the questions that are for a recipe, or of the others."""
    found = []
    for question, *each in zip(_common(group), *_by_seed(group, turns), strict=True):
        if is_recipe(question) is recipes:
            found.append(statistics.fmean(each))
    return found


def _by_seed(group: Cells, turns: str | None = None) -> list[list[int]]:
    """Each seed's gain on each question by then, or by its last turn. Where seeds were asked
    different ones, of those that all were asked."""
    seeds = []
    for cell in group:
        now, then = cell["evals"]["0"]["passed"], cell["evals"][turns or last(cell)]["passed"]
        _, questions = questions_for(PEOPLE[cell["person"]], cell["seed"], len(now))
        triples = zip(questions, now, then, strict=True)
        seeds.append({question: after - before for question, before, after in triples})
    return [[each[question] for question in _common(group)] for each in seeds]


def _common(group: Cells) -> list[str]:
    """The held-out questions that all of them were asked."""
    asked = [
        questions_for(PEOPLE[c["person"]], c["seed"], len(c["evals"]["0"]["passed"]))[1]
        for c in group
    ]
    return [question for question in asked[0] if all(question in each for each in asked)]


def chance_of_seeds(group: Cells, *, draws: int = DRAWS, seed: int = 0) -> float:
    """As `chance`, with the seeds resampled as well: whether other runs would have gained, as far
    as so few can tell."""
    dice = random.Random(seed)
    seeds = _by_seed(group)
    questions = range(len(seeds[0]))
    below = 0
    for _ in range(draws):
        asked = dice.choices(questions, k=len(questions))
        runs = dice.choices(seeds, k=len(seeds))
        below += sum(run[question] for run in runs for question in asked) <= 0
    return (below + 1) / (draws + 1)


def chance(differences: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> float:
    """p of the mean being above 0 by chance: a one-sided bootstrap over questions.

    (b + 1) / (draws + 1), where b resamples have a mean of 0 or less: never 0.
    """
    dice = random.Random(seed)
    count = len(differences)
    below = sum(sum(dice.choices(differences, k=count)) <= 1e-9 for _ in range(draws))
    return (below + 1) / (draws + 1)
