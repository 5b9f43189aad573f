"""Which rows of the personas' bench hold for the recipes as they are."""

from __future__ import annotations

import statistics
from argparse import Namespace
from pathlib import Path

from bench.personas.people import PEOPLE
from bench.personas.questions import HERE
from bench.personas.recipes import RECIPES, SERVED, made_with
from bench.personas.report import table
from bench.personas.rows import AT_ONCE, DEFAULT, kept_of_question, longest, of, unseen, values
from bench.personas.run import done_cells, is_done, write_row
from bench.personas.stages import FIRST_SEED, methods
from clawweb.config import ROOT
from tests.test_personas_report import row_of, written

PUBLISHED = HERE / "results" / "cells.jsonl"


def test_a_row_of_another_recipe_than_todays_is_not_done(tmp_path: Path) -> None:
    now = made_with(RECIPES[DEFAULT])
    path = tmp_path / "cells.jsonl"
    for other in ({**now, "batch": 16}, {**now, "config": {**now["config"], "lr": 1e-3}}):
        assert done_cells(written(path, row_of(made_with=other, turns=64))) == []
    assert done_cells(written(path, row_of())) == [row_of()]  # it says nothing of its settings
    older = {name: value for name, value in now["config"].items() if name != "demonstrations"}
    new = row_of(made_with={**now, "config": older})  # that setting came later, as a choice
    assert done_cells(written(path, new)) == [new]
    shown = row_of("opd-shown", made_with={**now, "config": older})
    assert done_cells(written(path, shown)) == []
    assert done_cells(written(path, row_of(made_with={**now, "trainer": 0}))) == []
    first = row_of(made_with={**now, "trainer": 1})
    assert done_cells(written(path, first)) == [first]
    del older["kto_beside"]  # nor was that, which is nothing but to one person
    early = [row_of(person=who, made_with={**now, "config": older}) for who in ("recipes", "asks")]
    assert done_cells(written(path, *early)) == early[1:]
    del older["liked_weight"]  # nor that: who has one wish, or liked nothing, had none of it
    wishes = {"plain": 1, "plain+asks": 0, "greets+short": 1}  # replies liked, by person
    kinds = [
        row_of(person=who, made_with={**now, "config": older}, updates=[{"liked": liked}])
        for who, liked in wishes.items()
    ]
    assert done_cells(written(path, *kinds)) == kinds[:2]
    args = Namespace(turns=16, held_out=2)
    assert is_done(new, args)
    assert not is_done(new, Namespace(turns=32, held_out=2))
    assert not is_done(new, Namespace(turns=16, held_out=96))
    assert not is_done(new, Namespace(turns=None, held_out=2))  # all turns are asked for
    assert is_done(row_of("hinted", turns=32), Namespace(turns=None, held_out=2))  # it has none
    assert is_done(row_of(turns=64), Namespace(turns=None, held_out=2))


def test_a_row_that_another_rule_judged_stands_only_where_nothing_else_does(tmp_path: Path) -> None:
    older = row_of(person="asks", turns=64, rules=1)
    newer = row_of(person="asks")
    assert longest([older]) == [older]
    assert longest([newer, older]) == [newer]
    args = Namespace(turns=16, held_out=2)
    assert not is_done(older, args)
    assert is_done(newer, args)
    assert is_done(row_of(rules=1), args)  # whose rules are what they were


def test_a_line_that_was_not_written_to_its_end_is_no_row(tmp_path: Path) -> None:
    path = written(tmp_path / "cells.jsonl", row_of())
    with path.open("a", encoding="utf-8") as file:
        file.write('{"recipe": "opd", "per')
    assert done_cells(path) == [row_of()]
    write_row(row_of(seed=1), path)  # and costs the next none
    assert done_cells(path) == [row_of(), row_of(seed=1)]


def test_a_line_may_end_within_a_letter_and_hold_what_else_ends_lines(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    row = row_of(texts=["Boil\u2028water\x85and pour."])
    write_row(row, path)
    with path.open("ab") as file:
        file.write('{"recipe": "opd", "texts": ["🍵'.encode()[:-2])
    assert done_cells(path) == [row]


def test_the_published_rows_are_of_todays_settings() -> None:
    assert len(done_cells(PUBLISHED)) == len(PUBLISHED.read_text(encoding="utf-8").splitlines())


def test_the_published_table_is_what_the_published_rows_say() -> None:
    cells = longest(done_cells(PUBLISHED))
    shown = ROOT / "docs" / "personas" / "table.md"
    assert table(cells) == shown.read_text(encoding="utf-8")


def test_the_default_is_the_winner_of_the_published_rows() -> None:
    cells = longest(done_cells(PUBLISHED))
    means = methods(of(cells, seed=FIRST_SEED))
    assert len(means) > 3
    assert means[DEFAULT] == max(means.values())


def test_the_readme_says_what_the_published_rows_say() -> None:
    cells = longest(done_cells(PUBLISHED))
    said = (ROOT / "README.md").read_text(encoding="utf-8")

    def after(recipe: str, person: str, turns: int) -> str:
        """As served, of questions that were never tuned on; else of all."""
        ran = of(cells, recipe=recipe, person=person)
        found = values(ran, turns, "satisfied")
        if recipe == SERVED:
            found = [share for c in ran if (share := unseen(c, turns)) is not None]
        return f"{statistics.median(found):.2f}"

    for person in ("short", "detailed", "plain", "formal"):
        assert f"{after(SERVED, person, 0)} → {after(SERVED, person, 16)}" in said, person
    assert f"({after(SERVED, 'plain', 32)} after 32)" in said
    untold = ("praises", "asks", "greets+short", "emoji", "plain+asks")
    edited, told = (
        sorted(after(recipe, person, 16) for person in untold)
        for recipe in ("combine-edited", DEFAULT)
    )
    assert f"{edited[0]} to {edited[-1]} after 16 ratings" in said
    assert f"by their words alone {told[0]} to {told[-1]}" in said


def test_a_shorter_row_of_the_very_same_says_what_the_longer_was_not_asked() -> None:
    first, end, early, other = (
        {"satisfied": share, "nll": 1.0, "passed": [1, 0]} for share in (0.0, 1.0, 0.5, 0.9)
    )
    made = {"made_with": made_with(RECIPES[DEFAULT]), "dtype": "bf16"}
    long = row_of(turns=32, evals={"0": first, "32": end}, **made)
    short = row_of(turns=8, evals={"0": other, "8": early}, **made)
    for rows in ([long, short], [short, long]):
        (found,) = longest(rows)
        assert found["evals"] == {"0": first, "8": early, "32": end}
        assert found["turns"] == 32
    before = {**made["made_with"]["config"]}
    del before["small_talk_nats"]  # that setting came later
    older = {**long, "made_with": {**made["made_with"], "config": before}}
    again = {**short, "evals": {"0": other, "8": other}}  # it ran once more
    assert longest([short, older, again])[0]["evals"] == {"0": first, "8": other, "32": end}
    asked_more = {"0": {**first, "passed": [1, 0, 1]}, "8": early}
    for not_same in (
        {"dtype": "fp32"},
        {"made_with": {**made["made_with"], "trainer": 1}},
        {"evals": asked_more},
        {"turns": 32},
    ):
        assert "8" not in longest([{**short, **not_same}, long])[0]["evals"], not_same
    assert "8" not in longest([row_of(turns=8, evals=short["evals"]), long])[0]["evals"]


def test_until_its_first_batch_is_full_what_answered_at_first_answers() -> None:
    assert [values([row_of()], turns, "satisfied") for turns in (0, 4, 7)] == [[0.5]] * 3
    assert values([row_of()], 8, "satisfied") == []
    for recipe in ("memory", "hinted", AT_ONCE):  # told at once, never, or before their first
        assert values([row_of(recipe)], 4, "satisfied") == [], recipe
    assert values([row_of(turns=2)], 4, "satisfied") == []  # it never came to that


def test_the_table_says_by_what_code_sees_that_a_wish_is_kept() -> None:
    hint = PEOPLE["short"].hint
    told = f"| short | {hint} | 35 words or fewer, and the reply ended by itself |"
    assert told in table([row_of()])
    assert all(wish.rule for person in PEOPLE.values() for wish in person.wishes)


def test_what_keeps_a_wish_and_answers_nothing_is_told_apart() -> None:
    end = {"satisfied": 0.75, "nll": 1.0, "passed": [1, 1, 0, 1, 1], "about": [40.0, 9.9, 50.0, 10]}
    row = row_of(turns=32, evals={**row_of()["evals"], "32": end})
    assert kept_of_question(row) == (0.75, 0.5)  # of the four that were asked about
    assert kept_of_question(row_of()) is None
    hinted = row_of("hinted", evals={"0": {**end, "satisfied": 0.8}})
    shown = table([row, hinted])
    assert f"| short | {DEFAULT} | 1 | 0.75 | 0.50 |" in shown
    told = "| the same after 32 by replies of their question (below): 0.95 | 0.500 (short"
    assert told in shown
    later = {**end, "about": [40.0] * 4}  # a longer row is asked what it was after 32
    longer = {**row, "turns": 64, "evals": {**row["evals"], "64": later}}
    assert (kept_of_question(longer), kept_of_question(longer, 32)) == ((0.75, 0.75), (0.75, 0.5))
    assert kept_of_question(longer, 16) is None
    assert told in table([longer, hinted])
