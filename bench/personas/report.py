"""The cells as a table and as curves: docs/personas/ gets table.md, curves.html and curves.png."""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots

from bench.personas.people import PEOPLE
from bench.personas.questions import questions_for
from bench.personas.recipes import RECIPES
from tests.prepare import chromium
from training.config import TrainConfig

Cells = Sequence[dict[str, Any]]
REACHABLE = 0.7  # what the hinted base satisfies of a wish that its student can be asked for
GAIN = 0.3  # by how much more than the base, where a hint says something
DRAWS = 10_000  # of the bootstrap
SHARE = "satisfied"
DEFAULT = TrainConfig().method  # what the product does unless told otherwise
COLUMNS = 3


def write_report(rows: Cells, folder: Path) -> None:
    """Everything that has run so far; what has not is a dash."""
    cells = longest(rows)
    if not cells:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table(cells), encoding="utf-8")
    figure = curves(cells)
    figure.write_html(folder / "curves.html", include_plotlyjs="cdn", full_html=True)
    write_png(figure, folder / "curves.png")
    print((folder / "table.md").read_text(encoding="utf-8"))


def longest(rows: Cells) -> Cells:
    """Of rows of one cell the one with the most turns, of equals the latest: a seed counts once."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in rows:
        key = row["recipe"], row["person"], row["seed"]
        if key not in found or row["turns"] >= found[key]["turns"]:
            found[key] = row
    return list(found.values())


def table(cells: Cells) -> str:
    """Per recipe and person the medians over seeds, then what they say together."""
    turns = sorted({int(n) for cell in cells for n in cell["evals"]})
    columns = [f"{n} turns" for n in turns]
    rows = []
    for person, recipe in sorted({(c["person"], c["recipe"]) for c in cells}):
        group = of(cells, person=person, recipe=recipe)
        row = [person, recipe, str(len(group)), *(at(group, n) for n in turns)]
        rows.append([*row, three(group), drift(group), seconds(group)])
    head = ["person", "recipe", "seeds", *columns, "three in a row", "drift (limit)"]
    lines = [
        "# Personas",
        "",
        "Made by `make bench-personas`; each figure is `satisfied / nll` on held-out questions,",
        "the median over seeds with its range. No update comes before the first full batch.",
        "`openclaw-*` are rebuilt from formulas: bench/personas/recipes.py says what differs.",
        "Updates had no time limit; a job of the product begins no set of re-answers that would",
        f"end after {TrainConfig().train_seconds:.0f} s. `never in N`: not within N rated turns.",
        *arithmetic(cells),
        "",
        *grid([*head, "s per update"], rows),
    ]
    parts = [*means(cells, turns), sooner(cells), leaks(cells), thumbs(cells), health(cells)]
    return "\n".join([*lines, *(line for part in parts if part for line in ["", *part])]) + "\n"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def arithmetic(cells: Cells) -> list[str]:
    """Which rows were trained in which precision, if not all in one. Older rows do not say."""
    found = Counter(cell.get("dtype", "an unknown precision") for cell in cells)
    if len(found) < 2:
        return []
    shares = ", ".join(f"{count} in {name}" for name, count in sorted(found.items()))
    return [f"Rows were trained in mixed arithmetic: {shares}."]


def means(cells: Cells, turns: Sequence[int]) -> list[list[str]]:
    """Each recipe's mean over the people whom a hint serves: well, and clearly better."""
    first = {person: of(cells, person=person) for person in sorted({c["person"] for c in cells})}
    hinted = {p: middle(values(of(group, recipe="hinted"), 0, SHARE)) for p, group in first.items()}
    base = {
        p: middle(values([c for c in group if c["recipe"] != "hinted"], 0, SHARE))
        for p, group in first.items()
    }
    well = [p for p, share in hinted.items() if share is not None and share >= REACHABLE]
    better = [
        p for p, share in hinted.items()
        if share is not None and base[p] is not None and share - base[p] >= GAIN
    ]  # fmt: skip
    kept = f"whose wish the hinted base keeps in {REACHABLE} or more"
    gained = f"whose wish the hinted base keeps more often than the base, by {GAIN} or more"
    return [mean_over(cells, turns, well, kept), mean_over(cells, turns, better, gained)]


def mean_over(cells: Cells, turns: Sequence[int], people: Sequence[str], which: str) -> list[str]:
    if not people:
        return []
    rows = []
    for recipe in sorted({cell["recipe"] for cell in cells}):
        group = of(cells, recipe=recipe)
        ran = [person for person in people if of(group, person=person)]
        row = [recipe, f"{len(ran)} of {len(people)}"]
        for n in turns:
            each = [middle(values(of(group, person=p), n, SHARE)) for p in ran]
            known = [value for value in each if value is not None]
            of_them = f" (of {len(known)})" if len(known) < len(ran) else ""
            row.append(f"{statistics.fmean(known):.2f}{of_them}" if known else "–")
        rows.append(row)
    return [
        f"Mean satisfied over the people {which}",
        f"({', '.join(people)}; `people` says on how many of them a recipe ran):",
        "",
        *grid(["recipe", "people", *(f"{n} turns" for n in turns)], rows),
    ]


def sooner(cells: Cells) -> list[str]:
    """Rated turns until three in a row: ours against the best of upstream's, person by person."""
    rows = []
    for person in sorted({cell["person"] for cell in cells}):
        group = of(cells, person=person)
        ours = of(group, recipe=DEFAULT)
        names = sorted({c["recipe"] for c in group if c["recipe"].startswith("openclaw-")})
        if not ours or not names:
            continue
        best = min(names, key=lambda name: turns_to_three(of(group, recipe=name)))
        theirs = of(group, recipe=best)
        mine, other = turns_to_three(ours), turns_to_three(theirs)
        if math.isinf(mine):
            ratio = "–"
        elif math.isinf(other):
            ratio = f"below {mine / horizon(theirs):.2f}"
        else:
            ratio = f"{mine / other:.2f}"
        rows.append([person, three(ours), three(theirs), best, ratio])
    said = f"Rated turns until three in a row, `{DEFAULT}` against the best of upstream's recipes:"
    head = ["person", DEFAULT, "upstream", "which", "ratio"]
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
        rows.append([recipe, str(len(ran)), "/".join(sorted({last(c) for c in ran})), *shares])
    head = ["recipe", "seeds", "turns", "recipes at 0", "recipes then", "rest at 0", "rest then"]
    said = "Does a wish about recipes leak? Satisfied among the recipes, and among the rest:"
    return [said, "", *grid(head, rows)] if rows else []


def thumbs(cells: Cells) -> list[str]:
    """What thumbs alone have gained, and whether it may be chance."""
    rows = []
    for person, recipe in sorted({(c["person"], c["recipe"]) for c in cells}):
        group = of(cells, person=person, recipe=recipe)
        if recipe not in RECIPES or RECIPES[recipe].words or not any(c["updates"] for c in group):
            continue
        differences = gains(group)
        gain, p = statistics.fmean(differences), chance(differences)
        turns = "/".join(sorted({last(c) for c in group}, key=int))
        row = [person, recipe, str(len(group)), turns, str(len(differences))]
        base = statistics.median(values(group, 0, SHARE))
        rows.append([*row, f"{base:.2f}", f"{gain:+.3f}", f"{p:.4f}"])
    head = ["person", "recipe", "seeds", "turns", "questions", "base", "gain", "p"]
    said = "Thumbs alone: the gain in satisfied since turn 0, and how likely one of 0 or less is"
    how = f"(questions resampled {DRAWS:,} times, each the mean of its seeds):"
    return [said, how, "", *grid(head, rows)] if rows else []


def gains(group: Cells) -> list[float]:
    """Of each held-out question, the mean over seeds of passed at the last turn minus at 0.

    Where seeds were asked different questions, of those that all were asked.
    """
    seeds = []
    for cell in group:
        now, then = cell["evals"]["0"]["passed"], cell["evals"][last(cell)]["passed"]
        _, questions = questions_for(PEOPLE[cell["person"]], cell["seed"], len(now))
        triples = zip(questions, now, then, strict=True)
        seeds.append({question: after - before for question, before, after in triples})
    common = [question for question in seeds[0] if all(question in each for each in seeds)]
    return [statistics.fmean(each[question] for each in seeds) for question in common]


def chance(differences: Sequence[float], *, draws: int = DRAWS, seed: int = 0) -> float:
    """p of the mean being above 0 by chance: a one-sided bootstrap over questions.

    (b + 1) / (draws + 1), where b resamples have a mean of 0 or less: never 0.
    """
    dice = random.Random(seed)
    count = len(differences)
    below = sum(sum(dice.choices(differences, k=count)) <= 1e-9 for _ in range(draws))
    return (below + 1) / (draws + 1)


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
    """Older rows did not measure it."""
    ends = [(cell["evals"]["0"], cell["evals"][last(cell)]) for cell in group]
    about = [[statistics.median(e["about"]) for e in both] for both in ends if "about" in both[0]]
    if not about:
        return "–"
    before, after = zip(*about, strict=True)
    return f"{statistics.median(before):.0f} → {statistics.median(after):.0f} ({min(after):.0f})"


def curves(cells: Cells) -> Any:
    """Satisfied against rated turns, one panel per person, one line per recipe."""
    people = sorted({cell["person"] for cell in cells})
    recipes = sorted({cell["recipe"] for cell in cells})
    rows = -(-len(people) // COLUMNS)
    figure = make_subplots(rows=rows, cols=COLUMNS, subplot_titles=people, shared_yaxes=True)
    named: set[str] = set()
    for index, person in enumerate(people):
        place = {"row": index // COLUMNS + 1, "col": index % COLUMNS + 1}
        for number, recipe in enumerate(recipes):
            group = of(cells, person=person, recipe=recipe)
            points = sorted({int(n) for cell in group for n in cell["evals"]})
            heights = [middle(values(group, n, SHARE)) for n in points]
            if len(points) == 1:  # it does not learn: a level
                points, heights = [0, max(int(n) for c in cells for n in c["evals"])], heights * 2
            if not points:
                continue
            figure.add_trace(
                go.Scatter(
                    x=points,
                    y=heights,
                    name=recipe,
                    legendgroup=recipe,
                    showlegend=recipe not in named,
                    line={
                        "color": COLOURS[number % len(COLOURS)],
                        "dash": DASHES[number // len(COLOURS) % len(DASHES)],
                    },
                    mode="lines+markers",
                ),
                **place,
            )
            named.add(recipe)
    figure.update_yaxes(range=[-0.02, 1.02])
    figure.update_xaxes(title_text="rated turns", row=rows)
    figure.update_yaxes(title_text="satisfied", col=1)
    figure.update_layout(height=320 * rows + 80, width=1200, template="plotly_white")
    return figure


COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f",
    "#bcbd22", "#17becf", "#003f5c", "#ffa600", "#58508d", "#bc5090", "#ff6361", "#00a878",
)  # fmt: skip

DASHES = ("solid", "dot", "dash")  # where there are more recipes than colours


def write_png(figure: Any, path: Path) -> None:
    """Drawn by the Chromium that the browser tests use; without one there is no picture."""
    if not (program := chromium()):
        print(f"{path.name} is not drawn: there is no Chromium", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        page_file = Path(folder) / "curves.html"
        figure.write_html(page_file, include_plotlyjs=True)
        browser = play.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1220, "height": int(figure.layout.height)})
        page.goto(page_file.as_uri())
        page.wait_for_selector(".main-svg")
        page.screenshot(path=path)
        browser.close()


def of(cells: Iterable[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [cell for cell in cells if all(cell[name] == value for name, value in wanted.items())]


def values(cells: Cells, turns: int, name: str) -> list[float]:
    return [cell["evals"][str(turns)][name] for cell in cells if str(turns) in cell["evals"]]


def last(cell: dict[str, Any]) -> str:
    """The number of turns of its last evaluation."""
    return max(cell["evals"], key=int)


def middle(numbers: Sequence[float]) -> float | None:
    return statistics.median(numbers) if numbers else None


def at(group: Cells, turns: int) -> str:
    shares, nlls = values(group, turns, SHARE), values(group, turns, "nll")
    if not shares:
        return "–"
    spread = f" ({min(shares):.2f}–{max(shares):.2f})" if len(shares) > 1 else ""
    return f"{statistics.median(shares):.2f}{spread} / {statistics.median(nlls):.2f}"


def three(group: Cells) -> str:
    """The median over seeds; one that never had three in a row counts as later than all turns."""
    ran = [cell for cell in group if rates(cell)]
    if not ran:
        return "–"
    median = turns_to_three(ran)
    if math.isinf(median):
        return f"never in {horizon(ran)}"
    never = sum(cell["three"] is None for cell in ran)
    return f"{median:.0f}" + (f", {never} never in {horizon(ran)}" if never else "")


def turns_to_three(group: Cells) -> float:
    return statistics.median(cell["three"] or math.inf for cell in group)


def horizon(group: Cells) -> int:
    """The fewest rated turns of those that never had three in a row."""
    return min(int(cell["turns"]) for cell in group if cell["three"] is None)


def rates(cell: dict[str, Any]) -> bool:
    """Whether its turns were rated; those of a recipe that is gone were."""
    recipe = RECIPES.get(cell["recipe"])
    return recipe is None or recipe.is_rated


def drift(group: Cells) -> str:
    gates = [cell["gate"] for cell in group if cell["gate"]]
    if not gates:
        return "–"
    values_, limits = [g["drift"] for g in gates], [g["drift_limit"] for g in gates]
    return f"{statistics.median(values_):.2f} ({statistics.median(limits):.2f})"


def seconds(group: Cells) -> str:
    updates = [update for cell in group for update in cell["updates"]]
    taken = [u["seconds"] for u in updates if u["seconds"] is not None]  # None: it was paused
    return f"{statistics.median(taken):.0f}" if taken else "–"
