"""The cells as a table and as curves: docs/personas/ gets table.md, curves.html and curves.png."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from bench.personas.aims import aims
from bench.personas.curves import curves, write_png
from bench.personas.legend import introduction, legend
from bench.personas.newcomers import EVERYONE
from bench.personas.older import seeds_of
from bench.personas.pairs import beside
from bench.personas.questions import HELD_OUT
from bench.personas.recipes import AS_SERVED, SERVED, THUMBS_SERVED, VARIATIONS
from bench.personas.rows import (
    DEFAULT,
    GAIN,
    OWN_NATS,
    REACHABLE,
    SHARE,
    Cells,
    better_served,
    grid,
    horizon,
    kept_of_question,
    last,
    lasts,
    longest,
    middle,
    of,
    people_of,
    question_nats,
    races,
    rates,
    shared_shares,
    turns_to_three,
    unseen,
    values,
    well_served,
)
from bench.personas.stages import recipes_of, second_stage, stages
from bench.personas.thumbs import thumbs
from training.config import TrainConfig


def write_report(rows: Cells, folder: Path) -> None:
    """Everything that has run so far; what has not is a dash."""
    cells = longest(rows)
    if not cells:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table(cells), encoding="utf-8")
    ran = {cell["recipe"] for cell in cells}
    shown = [name for name in recipes_of(second_stage(cells)) if name in ran] or sorted(ran)
    figure = curves(cells, shown)
    figure.write_html(folder / "curves.html", include_plotlyjs="cdn", full_html=True)
    write_png(curves([c for c in cells if c["recipe"] in shown], shown), folder / "curves.png")
    print((folder / "table.md").read_text(encoding="utf-8"))


def table(cells: Cells) -> str:
    """The aims, how to read the rest, then per recipe and person the medians over seeds, and what
    they say together."""
    benched = [cell for cell in cells if cell["recipe"] not in AS_SERVED]
    turns = sorted({int(n) for cell in benched for n in cell["evals"]})
    compared = [cell for cell in benched if cell["recipe"] not in VARIATIONS]
    varied = [cell for cell in benched if cell["recipe"] in VARIATIONS]
    said = "Variations of `combine` and `opd`, each in a thing or two: what its parts do."
    parts = [
        introduction(cells), aims(cells), legend(cells),
        served(cells), stages(cells), by_person(compared, turns),
        *means(benched, turns), beside(cells), sooner(cells),
        leaks(cells), thumbs(cells), of_question(cells), health(cells),
        [said, "", *by_person(varied, turns)] if varied else [],
        who(cells),
    ]  # fmt: skip
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def by_person(cells: Cells, turns: Sequence[int]) -> list[str]:
    """A line per person and recipe."""
    rows = []
    for person, recipe in sorted({(c["person"], c["recipe"]) for c in cells}):
        group = of(cells, person=person, recipe=recipe)
        row = [person, recipe, seeds_of(group), *(at(group, n) for n in turns)]
        rows.append([*row, tokens(group), three(group), drift(group), seconds(group)])
    head = ["person", "recipe", "seeds", *(f"{n} turns" for n in turns), "tokens", "three in a row"]
    return grid([*head, "drift, of a limit", "s per update"], rows)


def who(cells: Cells) -> list[str]:
    """What each person says of a reply that breaks their wish, and by what code sees that it does:
    a little less than the letter of some."""
    rows = [[name, EVERYONE[name].hint, EVERYONE[name].rule] for name in people_of(cells)]
    said = "The people, what they tell the agent, and what code checks of a reply."
    return [said, "", *grid(["person", "wish", "what passes"], rows)]


def means(cells: Cells, turns: Sequence[int]) -> list[list[str]]:
    """Each recipe's mean over the people whom a hint serves: well, and clearly better."""
    kept = f"whose wish the hinted base keeps in {REACHABLE} or more"
    gained = f"whose wish the hinted base keeps more often than the base, by {GAIN} or more"
    return [
        mean_over(cells, turns, well_served(cells), kept),
        mean_over(cells, turns, better_served(cells), gained),
    ]


def mean_over(cells: Cells, turns: Sequence[int], people: Sequence[str], which: str) -> list[str]:
    if not people:
        return []
    rows = []
    for recipe in sorted({cell["recipe"] for cell in cells} - set(VARIATIONS)):
        group = of(cells, recipe=recipe)
        ran = [person for person in people if of(group, person=person)]
        if not ran:
            continue
        row = [recipe, f"{len(ran)} of {len(people)}"]
        for n in turns:
            each = [middle(shared_shares(of(group, person=p), n)) for p in ran]
            known = [value for value in each if value is not None]
            of_them = f" (of {len(known)})" if len(known) < len(ran) else ""
            row.append(f"{statistics.fmean(known):.2f}{of_them}" if known else "–")
        rows.append(row)
    return [
        f"Mean satisfied over the people {which}",
        f"({', '.join(people)}; `people` says on how many of them a recipe ran), of the {HELD_OUT}",
        "questions that every row was asked:",
        "",
        *grid(["recipe", "people", *(f"{n} turns" for n in turns)], rows),
    ]


def served(cells: Cells) -> list[str]:
    """What a job of the product makes of the same people, on questions that were never tuned on."""
    group = [cell for cell in cells if cell["recipe"] in AS_SERVED]
    asked = {int(n) for cell in group for n in cell["evals"] if unseen(cell, int(n)) is not None}
    turns, rows = sorted(asked), []
    for recipe, person in product(AS_SERVED, people_of(group)):
        ran = of(group, recipe=recipe, person=person)
        if not ran:
            continue
        updates = [update for cell in ran for update in cell["updates"]]
        refused = sum(not update["accepted"] for update in updates)
        steps = statistics.median(update["steps"] for update in updates)
        other = [[s for cell in ran if (s := unseen(cell, n)) is not None] for n in turns]
        first = [shared_shares(ran, n) for n in turns]
        shares = [f"{spread(each)}{few(each, ran)}" for each in (*other, *first)]
        drifts, limits = (
            statistics.median(cell["gate"][name] for cell in ran)
            for name in ("drift_elsewhere", "drift_elsewhere_limit")
        )
        told = f"{person}, thumbs alone" if recipe == THUMBS_SERVED else person
        row = [told, seeds_of(ran), *shares, f"{drifts:.2f} ({limits:.2f})"]
        rows.append([*row, f"{refused} of {len(updates)}", f"{steps:.0f}", seconds(ran)])
    names = [f"{n} turns" for n in turns] + [f"the first {HELD_OUT}, {n}" for n in turns]
    head = ["person", "seeds", *names, "drift elsewhere (limit)"]
    said = [
        f"What `make run` makes of the same people (`{SERVED}`; of those who give thumbs and never",
        f"say a word: `{THUMBS_SERVED}`). Unlike in the rest of this page, no set of re-answers",
        f"begins that would end after {TrainConfig().train_seconds:.0f} s, every fifth rating after"
        " a first version is kept for",
        "the gate, so that jobs begin at 8, 18, 28, 38 rated turns, and a version that the gate",
        "refuses answers nobody. The shares are of satisfied replies, to held-out questions other",
        f"than the first {HELD_OUT}, which settings were chosen on; theirs stand beside them, as",
        "some rows were asked no more. Drift: on questions other than those by which a version is",
        "moved back. Seconds: with the gate's.",
    ]
    return [*said, "", *grid([*head, "refused", "steps", "s per update"], rows)] if rows else []


def sooner(cells: Cells) -> list[str]:
    """Rated turns until three in a row: ours against the best of upstream's, person by person."""
    rows = []
    for race in races(cells):
        seeds = str(len(race.ours))
        both = [three(race.ours), three(race.theirs)]
        rows.append([race.person, seeds, *both, race.recipe, race.said])
    said = f"Rated turns until three in a row, `{DEFAULT}` against the best of upstream's recipes:"
    head = ["person", "seeds", DEFAULT, "upstream", "which", "ratio"]
    return [said, "", *grid(head, rows)] if rows else []


def leaks(cells: Cells) -> list[str]:
    """Does a hint about one kind of request leak into the others?"""
    rows = []
    group = [cell for cell in cells if "rest" in cell["evals"]["0"]]
    for recipe in sorted({cell["recipe"] for cell in group}):
        ran = of(group, recipe=recipe)
        shares = [
            f"{statistics.median(found[kind] for found in ends):.2f}"
            for kind in ("recipes", "rest")
            for ends in ([c["evals"]["0"] for c in ran], [c["evals"][last(c)] for c in ran])
        ]
        rows.append([recipe, str(len(ran)), lasts(ran), *shares])
    head = ["recipe", "seeds", "turns", "recipes at 0", "recipes then", "rest at 0", "rest then"]
    said = "Does a wish about recipes leak? Satisfied among the recipes, and among the rest:"
    return [said, "", *grid(head, rows)] if rows else []


def of_question(cells: Cells) -> list[str]:
    """What is satisfied by replies that answer nothing: of what is compared on all people."""
    rows = []
    for person, recipe in product(people_of(cells), recipes_of(second_stage(cells))):
        group = of(cells, person=person, recipe=recipe)
        if found := [both for cell in group if (both := kept_of_question(cell))]:
            shares = (spread(each) for each in zip(*found, strict=True))
            rows.append([person, recipe, str(len(found)), *shares])
    said = [
        f"Satisfied after the last turn, and by replies of their question: {OWN_NATS:.0f} nats or",
        f"more likelier after it than after the next one (the first {HELD_OUT} held-out replies).",
    ]
    head = ["person", "recipe", "seeds", "satisfied", "and of the question"]
    return [*said, "", *grid(head, rows)] if rows else []


def health(cells: Cells) -> list[str]:
    """Do replies degenerate? The gate's measures of the last versions, all people together."""
    rows = []
    for recipe in sorted({cell["recipe"] for cell in cells}):
        tested = [cell for cell in of(cells, recipe=recipe) if cell["gate"]]
        gates = [cell["gate"] for cell in tested]
        if not gates:
            continue
        shares = [
            [gate[name] for gate in gates if gate[name] is not None]
            for name in ("repetition", "empty", "cut_off")
        ]
        both = [f"{statistics.median(s):.3f} ({max(s):.3f})" if s else "–" for s in shares]
        lengths = [gate["length"] for gate in gates]
        accepted = sum(gate["accepted"] for gate in gates)
        shortest = f"{statistics.median(lengths):.0f} ({min(lengths):.0f})"
        rows.append([recipe, *both, shortest, asked_for(tested), f"{accepted} of {len(gates)}"])
    head = ["recipe", "repeated 4-grams", "empty", "cut off", "tokens", "of the question"]
    said = [
        "Do replies degenerate? The gate's measures at the end, the median of all cells (worst).",
        "`of the question`: how much likelier a held-out reply is after its own question than",
        "after another, in nats by the base, the median reply's; at first → at the end (worst):",
    ]
    return [*said, "", *grid([*head, "gate accepts"], rows)] if rows else []


def asked_for(group: Cells) -> str:
    about = [nats for cell in group if (nats := question_nats(cell)) is not None]
    if not about:
        return "–"
    before, after = zip(*about, strict=True)
    return f"{statistics.median(before):.0f} → {statistics.median(after):.0f} ({min(after):.0f})"


def at(group: Cells, turns: int) -> str:
    shares, nlls = values(group, turns, SHARE), values(group, turns, "nll")
    if not shares:
        return "–"
    return f"{spread(shares)} / {spread(nlls)}{few(shares, group)}"


def few(known: Sequence[float], group: Cells) -> str:
    """On how many of the seeds, where it is not all."""
    return f", {len(known)} of {len(group)}" if 0 < len(known) < len(group) else ""


def tokens(group: Cells) -> str:
    """The mean length of held-out replies, at first and after the last turn."""
    ends = [(cell["evals"]["0"], cell["evals"][last(cell)]) for cell in group]
    lengths = [(first["tokens"], end["tokens"]) for first, end in ends if "tokens" in first]
    if not lengths:
        return "–"
    before, after = zip(*lengths, strict=True)
    return f"{statistics.median(before):.0f} → {spread(after, 0)}"


def spread(numbers: Sequence[float], digits: int = 2) -> str:
    """Their median, and their range."""
    if not numbers:
        return "–"
    low, median, high = (
        f"{number:.{digits}f}"
        for number in (min(numbers), statistics.median(numbers), max(numbers))
    )
    return f"{median} ({low}–{high})" if len(numbers) > 1 else median


def three(group: Cells) -> str:
    """The median over seeds; one that never had three in a row counts as later than all turns."""
    ran = [cell for cell in group if rates(cell)]
    if not ran:
        return "–"
    had = [cell["three"] for cell in ran if cell["three"] is not None]
    never = f"never in {horizon(ran)}" if len(had) < len(ran) else ""
    median = turns_to_three(ran)
    if math.isinf(median):
        return f"{never}, {min(had)} at best" if had else never
    ends = f" ({min(had)}–{max(had)})" if len(had) > 1 else ""
    return f"{median:.0f}{ends}" + (f", {len(ran) - len(had)} {never}" if never else "")


def drift(group: Cells) -> str:
    gates = [cell["gate"] for cell in group if cell["gate"]]
    limit = f" of {statistics.median(g['drift_limit'] for g in gates):.2f}" if gates else ""
    return f"{spread([g['drift'] for g in gates])}{limit}"


def seconds(group: Cells) -> str:
    """Of its updates; one that was paused has none."""
    updates = [update for cell in group for update in cell["updates"]]
    return spread([u["seconds"] for u in updates if u["seconds"] is not None], digits=0)
