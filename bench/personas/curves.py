"""The rows as curves: satisfied against rated turns, a panel per person."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots

from bench.personas.rows import Cells, is_judged_bare, of, people_of, shared_shares
from tests.prepare import chromium

COLUMNS = 4
COLOURS = (
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#e377c2", "#bcbd22", "#17becf",
    "#003f5c", "#ffa600", "#58508d", "#bc5090", "#ff6361", "#00a878",
)  # fmt: skip
DASHES = ("solid", "dot", "dash")  # where there are more recipes than colours
LEVEL = {"color": "#8a8a8a", "dash": "dash"}  # what does not learn
PANEL, MARGIN, BELOW = 230, 120, 100  # pixels
SAID = (
    "Held-out replies that keep the wish, after so many rated turns: the median over seeds, bars"
    " from the least to the most.<br>Open: fewer seeds than at the line's other points. Crosses:"
    " some seeds were judged by an earlier, easier rule. Dashed: the base told the wish."
)


def curves(cells: Cells, shown: Sequence[str]) -> Any:
    """Satisfied against rated turns, one panel per person, one line per recipe: the median over
    seeds, and bars from the least to the most, of the questions that every row was asked. Points
    are open where fewer seeds went so far, and crosses where a rule that has changed since judged
    some. Recipes that are not `shown` appear when their name is clicked."""
    people, turns = people_of(cells), sorted({int(n) for c in cells for n in c["evals"]})
    recipes = [*shown, *sorted({cell["recipe"] for cell in cells} - set(shown))]
    rows = -(-len(people) // COLUMNS)
    figure = make_subplots(
        rows=rows, cols=COLUMNS, subplot_titles=people, shared_yaxes=True,
        vertical_spacing=0.3 / rows, horizontal_spacing=0.02,
    )  # fmt: skip
    named: set[str] = set()
    for index, person in enumerate(people):
        place = {"row": index // COLUMNS + 1, "col": index % COLUMNS + 1}
        for number, recipe in enumerate(recipes):
            group = of(cells, person=person, recipe=recipe)
            if not group:
                continue
            look = {
                "name": recipe,
                "legendgroup": recipe,
                "legendrank": number,
                "showlegend": recipe not in named,
                "visible": True if recipe in shown else "legendonly",
            }
            figure.add_trace(line(group, turns, style(number), look), **place)
            named.add(recipe)
    # As far apart as they are few: it is the first ratings that count.
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=list(map(str, turns)))
    figure.update_yaxes(range=[-0.04, 1.04])
    figure.update_xaxes(title_text="rated turns", row=rows)
    figure.update_yaxes(title_text="satisfied", col=1)
    figure.update_layout(
        height=PANEL * rows + MARGIN + BELOW, width=1200, template="plotly_white",
        legend={"orientation": "h", "y": 1.0 + 60 / (PANEL * rows), "yanchor": "bottom"},
        margin={"l": 60, "r": 20, "t": MARGIN, "b": BELOW},
    )  # fmt: skip
    # Below: above there are as many lines of names as there are recipes.
    figure.add_annotation(
        text=SAID, font={"size": 13}, align="left", showarrow=False,
        x=0, y=0, xref="paper", yref="paper", xanchor="left", yanchor="top", yshift=-52,
    )  # fmt: skip
    return figure


def line(
    group: Cells, turns: Sequence[int], drawn: dict[str, str], look: dict[str, Any]
) -> go.Scatter:
    """One recipe on one person."""
    shares = {n: found for n in turns if (found := shared_shares(group, n))}
    if not (learns := len(shares) > 1):  # a level, all the way
        (level,) = shares.values()
        shares = {turns[0]: level, turns[-1]: level}
    middles = [statistics.median(each) for each in shares.values()]
    pairs = list(zip(shares.values(), middles, strict=True))
    counts = [len(each) for each in shares.values()]
    point = "x" if any(map(is_judged_bare, group)) else "circle"
    return go.Scatter(
        x=[str(n) for n in shares],
        y=middles,
        mode="lines+markers" if learns else "lines",
        line=drawn if learns else LEVEL,
        marker={"symbol": [point if n == max(counts) else f"{point}-open" for n in counts]},
        customdata=counts,
        hovertemplate="%{y:.2f} after %{x}, seeds: %{customdata}",
        error_y={
            "array": [max(each) - middle for each, middle in pairs],
            "arrayminus": [middle - min(each) for each, middle in pairs],
            "thickness": 1,
            "width": 2,
            "visible": learns,
        },
        **look,
    )


def style(number: int) -> dict[str, str]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "dash": DASHES[number // len(COLOURS) % len(DASHES)],
    }


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
