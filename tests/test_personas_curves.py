"""The rows as curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.personas.curves import curves, write_png
from bench.personas.people import RULES
from bench.personas.rows import DEFAULT
from tests.test_personas_report import row_of


def kept(count: int) -> dict[str, Any]:
    """So many of ten."""
    return {"satisfied": count / 10, "nll": 1.0, "passed": [1] * count + [0] * (10 - count)}


def test_a_curve_is_the_median_over_seeds_with_its_range() -> None:
    rows = [
        row_of(seed=seed, evals={"0": kept(0), "8": kept(share)})
        for seed, share in enumerate((5, 9, 6))
    ]
    rows[0]["evals"]["16"] = kept(8)
    rows += [row_of("hinted", evals={"0": kept(7)})]
    rows += [row_of("opd-fours", evals={"0": kept(1), "8": kept(2)})]
    learned, level, other = curves(rows, [DEFAULT, "hinted"]).data
    assert list(learned.x) == ["0", "8", "16"]
    assert list(learned.y) == [0.0, 0.6, 0.8]
    assert list(learned.error_y.array) == pytest.approx([0.0, 0.3, 0.0])
    assert list(learned.error_y.arrayminus) == pytest.approx([0.0, 0.1, 0.0])
    assert list(learned.marker.symbol) == ["circle", "circle", "circle-open"]  # one seed alone
    assert (list(level.x), list(level.y)) == (["0", "16"], [0.7, 0.7])
    assert learned.visible is True
    assert other.visible == "legendonly"  # a click shows it


def test_a_figure_says_what_its_points_are_and_which_an_earlier_rule_judged() -> None:
    rows = [
        row_of(recipe, person="asks", rules=rules, evals={"0": kept(0), "8": kept(5)})
        for recipe, rules in ((DEFAULT, RULES), ("opd", 1))
    ]
    figure = curves(rows, [DEFAULT, "opd"])
    ours, older = figure.data
    assert set(ours.marker.symbol) == {"circle"}
    assert set(older.marker.symbol) == {"x"}
    for word in ("median over seeds", "Open:", "Crosses:", "Dashed:"):
        assert word in figure.layout.annotations[-1].text


def test_without_a_browser_the_curves_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    write_png(None, tmp_path / "curves.png")
    assert "there is no Chromium" in capsys.readouterr().out
    assert not (tmp_path / "curves.png").exists()
