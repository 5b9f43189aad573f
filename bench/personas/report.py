"""The cells as a table and as curves: docs/personas/ gets table.md, curves.html and curves.png."""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots

Cells = Sequence[dict[str, Any]]
REACHABLE = 0.7  # what the hinted base satisfies of a wish that its student can be asked for
COLUMNS = 3


def write_report(cells: Cells, folder: Path) -> None:
    """Everything that has run so far; what has not is a dash."""
    if not cells:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table(cells), encoding="utf-8")
    figure = curves(cells)
    figure.write_html(folder / "curves.html", include_plotlyjs="cdn", full_html=True)
    write_png(figure, folder / "curves.png")
    print((folder / "table.md").read_text(encoding="utf-8"))


def table(cells: Cells) -> str:
    """Per recipe and person the medians over seeds, then each recipe's mean over people."""
    turns = sorted({int(n) for cell in cells for n in cell["evals"]})
    lines = [
        "# Personas",
        "",
        "Made by `make bench-personas`; each figure is `satisfied / nll` on held-out questions,",
        "the median over seeds with its range. No update comes before the first full batch.",
        "`openclaw-*` are rebuilt from formulas: bench/personas/recipes.py says what differs.",
        *arithmetic(cells),
        "",
        "| person | recipe | seeds | "
        + " | ".join(f"{n} turns" for n in turns)
        + " | three in a row | drift (limit) | s per update |",
        "|---" * (6 + len(turns)) + "|",
    ]
    for person, recipe in sorted({(c["person"], c["recipe"]) for c in cells}):
        group = of(cells, person=person, recipe=recipe)
        row = [person, recipe, str(len(group)), *(at(group, n) for n in turns)]
        lines.append("| " + " | ".join([*row, three(group), drift(group), seconds(group)]) + " |")
    return "\n".join([*lines, "", *means(cells, turns)]) + "\n"


def arithmetic(cells: Cells) -> list[str]:
    """Which rows were trained in which precision, if not all in one. Older rows do not say."""
    found = Counter(cell.get("dtype", "an unknown precision") for cell in cells)
    if len(found) < 2:
        return []
    shares = ", ".join(f"{count} in {name}" for name, count in sorted(found.items()))
    return [f"Rows were trained in mixed arithmetic: {shares}."]


def means(cells: Cells, turns: Sequence[int]) -> list[str]:
    """Each recipe's mean over the people that the hinted base satisfies."""
    hinted = {c["person"]: c["evals"]["0"]["satisfied"] for c in of(cells, recipe="hinted")}
    reachable = {person for person, share in hinted.items() if share >= REACHABLE}
    if not reachable:
        return []
    lines = [
        f"Mean satisfied over the people whose wish the hinted base keeps in {REACHABLE} or more",
        f"({', '.join(sorted(reachable))}; `people` says on how many of them a recipe ran):",
        "",
        "| recipe | people | " + " | ".join(f"{n} turns" for n in turns) + " |",
        "|---" * (2 + len(turns)) + "|",
    ]
    for recipe in sorted({cell["recipe"] for cell in cells}):
        group = [c for c in of(cells, recipe=recipe) if c["person"] in reachable]
        people = sorted({cell["person"] for cell in group})
        row = [recipe, f"{len(people)} of {len(reachable)}"]
        for n in turns:
            each = [middle(values(of(group, person=p), n, "satisfied")) for p in people]
            known = [value for value in each if value is not None]
            row.append(f"{statistics.fmean(known):.2f}" if known else "–")
        lines.append("| " + " | ".join(row) + " |")
    return lines


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
            heights = [middle(values(group, n, "satisfied")) for n in points]
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
                    line={"color": COLOURS[number % len(COLOURS)]},
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


def write_png(figure: Any, path: Path) -> None:
    """Drawn by the Chromium that the browser tests use."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        page_file = Path(folder) / "curves.html"
        figure.write_html(page_file, include_plotlyjs=True)
        browser = play.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
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


def middle(numbers: Sequence[float]) -> float | None:
    return statistics.median(numbers) if numbers else None


def at(group: Cells, turns: int) -> str:
    shares, nlls = values(group, turns, "satisfied"), values(group, turns, "nll")
    if not shares:
        return "–"
    spread = f" ({min(shares):.2f}–{max(shares):.2f})" if len(shares) > 1 else ""
    return f"{statistics.median(shares):.2f}{spread} / {statistics.median(nlls):.2f}"


def three(group: Cells) -> str:
    found = [cell["three"] for cell in group]
    known = [number for number in found if number is not None]
    if not known:
        return "never" if any(cell["updates"] for cell in group) else "–"
    never = f", {len(found) - len(known)} never" if len(known) < len(found) else ""
    return f"{statistics.median(known):.0f}{never}"


def drift(group: Cells) -> str:
    gates = [cell["gate"] for cell in group if cell["gate"]]
    if not gates:
        return "–"
    values_, limits = [g["drift"] for g in gates], [g["drift_limit"] for g in gates]
    return f"{statistics.median(values_):.2f} ({statistics.median(limits):.2f})"


def seconds(group: Cells) -> str:
    taken = [update["seconds"] for cell in group for update in cell["updates"]]
    return f"{statistics.median(taken):.0f}" if taken else "–"
