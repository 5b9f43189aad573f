"""The rows as curves: satisfied against rated turns, a panel per person."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots

from bench.personas.rows import SHARE, Cells, middle, of, people_of, values
from tests.prepare import chromium

COLUMNS = 3
COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f",
    "#bcbd22", "#17becf", "#003f5c", "#ffa600", "#58508d", "#bc5090", "#ff6361", "#00a878",
)  # fmt: skip
DASHES = ("solid", "dot", "dash")  # where there are more recipes than colours


def curves(cells: Cells) -> Any:
    """Satisfied against rated turns, one panel per person, one line per recipe."""
    people = people_of(cells)
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
