"""The words around the tables: what they are, how to read them, and which rows are older."""

from __future__ import annotations

from collections import Counter

from bench.personas.older import MARKS, is_lossy, trainer_of
from bench.personas.questions import HELD_OUT
from bench.personas.recipes import SERVED, TRAINER
from bench.personas.rows import Cells

OTHERWISE = {  # by their mark, what was otherwise in older rows than it is today
    "fewer": (
        "some job took fewer sets of re-answers than it would\n"
        "today (docs/LOG.md, One complaint among seven likes)."
    ),
    "thumbless": (
        "a job that had hints did not end with KTO on the thumbs,\n"
        "as it would today (docs/LOG.md, After every hint)."
    ),
    "unheard": (
        "hints about one kind of request were distilled even where\n"
        "the base did not hear which kind was meant (docs/LOG.md, Left to thumbs)."
    ),
    "once": (
        "replies were answered anew under hints that were said of\n"
        "a single other reply, too (docs/LOG.md, Others before its own)."
    ),
    "shorter": (
        "steps grew shorter as the hint was learned, however little of\n"
        "what was written was (docs/LOG.md, What was changed)."
    ),
    "bare": (
        "the person was content with any reply that ended in a\n"
        "question; today they want an answer, too (docs/LOG.md, A question given back)."
    ),
}


def introduction(cells: Cells) -> list[str]:
    """What this is, for who comes here first."""
    return [
        "# Personas",
        "",
        "Simulated people chat with the agent. Each has one wish about its replies, rates what it",
        "answers and says the wish when a reply breaks it; code checks which replies keep to it.",
        "After every eight ratings a new version of the adapter is trained. The first table says",
        "which of the project's aims are reached; the others compare recipes, ways of training,",
        "person by person. Made by `make bench-personas` (rows: bench/personas/results).",
        "",
        *trainers(cells),
    ]


def legend(cells: Cells) -> list[str]:
    """What the words and marks of the tables mean."""
    return [
        "## How to read the rows",
        "",
        "* A figure is `satisfied / nll` on held-out questions, which nobody rated: the median",
        "  over seeds with its range (`1 of 3`: of so many seeds, where fewer went so far).",
        "* `satisfied`: the share of replies that keep to the person's wish (the last table lists",
        "  the wishes and what passes); more is better. `nll`: the mean of -log p over those",
        "  replies' tokens, by the base model with the wish in its prompt; less is better.",
        "* `hinted`: the untrained base with the wish in its prompt. `memory`: the same base with",
        "  the hints that were told so far.",
        "* `three in a row`: the rated turn by which three replies running had pleased; `never in",
        "  N`: not within N rated turns. No version comes before the first eight ratings: until",
        "  then the base answers.",
        "* `openclaw-*`: the recipes of OpenClaw-RL (`upstream`), rebuilt from its formulas;",
        "  bench/personas/recipes.py says what differs.",
        f"* Updates had no time limit, and every rating trains; but `{SERVED}` is what `make run`",
        "  makes of the same people.",
        "* `tokens`: the mean length of those replies, at first → at the end; at most 160.",
        "* Seconds per update are of several machines, mostly with two or three cells at once.",
        "* Where a row was not asked after so many turns, a shorter run of the same settings may",
        "  say.",
        "* Where no leak is shown, that is no proof that there is none: with so few questions and",
        "  seeds a small loss cannot be told from chance.",
        *_of_some_rows(cells),
    ]


def _of_some_rows(cells: Cells) -> list[str]:
    told = [*arithmetic(cells), *by_earlier_trainers(cells), *asked_more(cells)]
    return ["* " + said.replace("\n", "\n  ") for said in told]


def trainers(cells: Cells) -> list[str]:
    """How many rows are of today's trainer."""
    found = Counter(map(trainer_of, cells))
    if set(found) <= {TRAINER}:
        return [f"All {len(cells)} rows are by today's trainer (number {TRAINER})."]
    earlier = sorted(set(found) - {TRAINER})
    counts = ", ".join(f"{found[number]} by number {number}" for number in earlier)
    return [
        f"Of the {len(cells)} rows {found[TRAINER]} are by today's trainer (number {TRAINER}),",
        f"the others by earlier ones ({counts}).",
        "They stay until they are run again; where today's trainer would learn otherwise a mark",
        "beside the number of seeds says so (below, How to read the rows).",
    ]


def arithmetic(cells: Cells) -> list[str]:
    """Which rows were trained in which precision, if not all in one. Older rows do not say."""
    found = Counter(cell.get("dtype", "an unknown precision") for cell in cells)
    if len(found) < 2:
        return []
    shares = ", ".join(f"{count} in {name}" for name, count in sorted(found.items()))
    older = sum(map(is_lossy, cells))
    but = f"\nOf those in bf16 {older} were sampled from with less than they had learned, `lossy`"
    said = f"{but}\n(docs/LOG.md, Rounding to bf16 once)." if older else ""
    return [f"Rows were trained in mixed arithmetic: {shares}.{said}"]


def by_earlier_trainers(cells: Cells) -> list[str]:
    """How many rows bear which mark, and what that says of them."""
    counts = {mark: sum(map(MARKS[mark], cells)) for mark in OTHERWISE}
    return [
        f"In {counts[mark]} rows, `{mark}`, {said}"
        for mark, said in OTHERWISE.items()
        if counts[mark]
    ]


def asked_more(cells: Cells) -> list[str]:
    """How many rows have more questions behind their shares than the others."""
    count = sum(len(cell["evals"]["0"]["passed"]) > HELD_OUT for cell in cells)
    if not count:
        return []
    return [
        f"{count} rows are of more than {HELD_OUT} questions. Recipes are compared, below and for\n"
        f'the stages, on the {HELD_OUT} that every row was asked: of "recipes" by other samples,\n'
        "so that two recipes that have learned nothing yet may begin there with different shares.",
    ]
