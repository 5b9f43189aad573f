"""What the personas bench makes of its rows: which hold, what a stage lacks, table and aims."""

from __future__ import annotations

import json
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bench.personas.aims import aims
from bench.personas.people import PEOPLE, RULES
from bench.personas.questions import HERE
from bench.personas.report import mean_over, sooner, table, three
from bench.personas.rows import DEFAULT, base_share, better_served, longest
from bench.personas.run import asked_for, done_cells, first_evals
from bench.personas.stages import (
    FIRST_PEOPLE,
    best_methods,
    best_upstream,
    first_stage,
    methods,
    second_stage,
    stages,
)
from bench.personas.thumbs import chance, chance_of_seeds, gains

ENDS = {"satisfied": 0.75}


def row_of(recipe: str = DEFAULT, **more: Any) -> dict[str, Any]:
    found = {"satisfied": 0.5, "nll": 1.0, "passed": [1, 0]}
    row = {"recipe": recipe, "person": "short", "seed": 0, "turns": 16, "evals": {"0": found}}
    return {**row, "rules": RULES, "three": None, "updates": [], "gate": None, **more}


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_cell_that_ran_again_with_more_turns_counts_once(tmp_path: Path) -> None:
    rows = [row_of(), row_of(turns=64), row_of(three=9), row_of(seed=1), row_of(seed=1, three=5)]
    found = longest(done_cells(written(tmp_path / "cells.jsonl", *rows)))
    assert found == [row_of(turns=64), row_of(seed=1, three=5)]
    assert f"| short | {DEFAULT} | 2 |" in table(found)


def test_what_the_base_answered_before_the_first_rating_is_not_asked_again() -> None:
    whole = {"satisfied": 0.5, "passed": [1, 0], "about": [3.0, 4.0]}
    cell = row_of(dtype="fp32", evals={"0": whole})
    others = [
        row_of("hinted", dtype="fp32", seed=1, evals={"0": whole}),  # answered under the hint
        row_of(dtype="bf16", seed=2, evals={"0": whole}),
        row_of(dtype="fp32", seed=3),  # not whole
        row_of(seed=4, evals={"0": whole}),  # says no precision
    ]
    assert first_evals([cell, *others], held_out=2, dtype="fp32") == {("short", 0): whole}
    assert first_evals([cell], held_out=24, dtype="fp32") == {}


def test_the_published_rows_agree_on_what_the_base_answered() -> None:
    seen: dict[tuple[str, int, str, int], Any] = {}
    for row in done_cells(HERE / "results" / "cells.jsonl"):
        if row["recipe"] == "hinted" or "about" not in (first := row["evals"]["0"]):
            continue
        key = row["person"], row["seed"], row.get("dtype", ""), len(first["passed"])
        assert seen.setdefault(key, first)["passed"] == first["passed"], key


def ran(recipe: str, *shares: float, **more: Any) -> list[dict[str, Any]]:
    """Rows of the first stage's people, each with what it satisfied after 16 ratings: tenths."""
    ends = [{"satisfied": s, "passed": [1] * (n := round(10 * s)) + [0] * (10 - n)} for s in shares]
    found = [{"0": {"satisfied": 0.0, "passed": [0] * 10}, "16": end, "32": end} for end in ends]
    pairs = zip(FIRST_PEOPLE, found, strict=False)
    return [row_of(recipe, person=person, evals=evals, **more) for person, evals in pairs]


def test_the_second_stage_takes_the_best_that_ran_on_all_three() -> None:
    rows = [
        *ran(DEFAULT, 0.2, 0.2, 0.2), *ran("kto", 0.9, 0.9), *ran("opd", 0.6, 0.6, 0.6),
        *ran("binary", 0.1, 0.2, 0.3), *ran("opd-topk", 0.5, 0.5, 0.8),
        *ran("opd-all-sets", 1.0, 1.0, 1.0), *ran("opd-corrected", 1.0, 1.0, 1.0),
        *ran("openclaw-opd", 0.1, 0.1, 0.1), *ran("openclaw-hybrid", 0.1, 0.1, 0.1, three=20),
    ]  # fmt: skip
    rows = [{**row, "updates": [{"seconds": 1.0}]} for row in rows]
    assert best_methods(rows) == [DEFAULT, "opd", "opd-topk"]  # the default, whatever it reaches
    assert best_upstream(rows) == ["openclaw-hybrid"]
    wanted = second_stage(rows)
    assert len(wanted) == len(set(wanted)) == 6 * len(PEOPLE) * 3
    assert {recipe for recipe, _, _ in wanted} == {
        "opd", "combine", "opd-topk", "openclaw-hybrid", "hinted", "memory",
    }  # fmt: skip
    assert best_upstream(ran("openclaw-opd", 0.1, 0.1)) == []
    later = [*ran("openclaw-hybrid", 0.0, 0.0, 0.0, seed=1), *ran("kto", 1.0, 1.0, 1.0, seed=2)]
    assert second_stage([*rows, *later]) == wanted  # a second seed is of the second stage
    everywhere = [
        row_of("openclaw-hybrid", person=person, seed=seed)
        for person, seed in product(PEOPLE, range(3))
        if seed or person not in FIRST_PEOPLE
    ]
    better = ran("openclaw-opd", 0.2, 0.2, 0.2)  # as its first rows, run again, have it
    assert {recipe for recipe, _, _ in second_stage([*rows, *better])} >= {"openclaw-opd"}
    assert second_stage([*rows, *better, *everywhere]) == wanted
    assert methods(rows)[DEFAULT] == pytest.approx(0.2)
    farther = [*rows, row_of("opd", person="asks", turns=32)]
    first, second = stages(farther)[-2:]
    assert first.endswith(" | 23 of 66 | 0 of 66 | 0 of 66 |")  # rated, and so far
    assert second.endswith("| 13 of 165 | 1 of 165 | 0 of 165 |")
    assert "| 23 of 72 |" in first
    assert "`kto` 1" in first
    assert f"`{DEFAULT}` 30, `opd` 29, `opd-topk` 30" in second


def test_a_stage_is_asked_for_unless_cells_are_named() -> None:
    names = {"recipes": None, "people": None, "seeds": None}
    assert asked_for(Namespace(stage=1, **names), []) == first_stage()
    assert not {"opd-fours", "opd-all-sets"} & {recipe for recipe, _, _ in first_stage()}
    rows = ran("opd", 0.5, 0.5, 0.5)
    assert asked_for(Namespace(stage=2, **names), rows) == second_stage(rows)
    some = Namespace(stage=1, recipes=["opd"], people=None, seeds=[4])
    assert asked_for(some, rows) == [("opd", person, 4) for person in FIRST_PEOPLE]


def test_what_the_base_keeps_is_the_median_of_seeds_and_not_of_rows() -> None:
    def began(seed: int, *passed: int, recipe: str = "opd") -> dict[str, Any]:
        found = {"satisfied": sum(passed) / len(passed), "passed": list(passed)}
        return row_of(recipe, seed=seed, evals={"0": found})

    rows = [began(0, 1, 1), began(0, 1, 1, recipe="kto"), began(1, 0, 0), began(2, 0, 1)]
    assert base_share(rows, "short") == 0.5
    asked_more = began(0, 0, 0, 1, 0, recipe="binary")
    assert base_share([asked_more, *rows[:2]], "short") == 0.25
    assert base_share([began(0, 1, 1, recipe="hinted")], "short") is None


def test_recipes_are_compared_on_the_questions_that_every_row_was_asked() -> None:
    def asked(recipe: str, first: int, *, later: int | None = None) -> dict[str, Any]:
        """Of the 24 that every row was asked so many pass, and of 72 more, if it was asked them."""
        passed = [1] * first + [0] * (24 - first)
        if later is not None:
            passed += [1] * later + [0] * (72 - later)
        found = {"satisfied": sum(passed) / len(passed), "nll": 1.0, "passed": passed}
        return row_of(recipe, evals={"0": found, "16": found})

    rows = [asked("hinted", 18), asked("opd", 12), asked(DEFAULT, 12, later=0)]
    assert better_served(rows) == []  # 0.75 and 0.5: by the 96 it would be 0.75 and 0.125
    assert better_served([*rows[:1], asked(DEFAULT, 6, later=72)]) == ["short"]  # 0.25, not 0.81
    more = asked("hinted", 18, later=72), asked(DEFAULT, 12, later=0)
    assert better_served(more) == ["short"]  # where both were asked more, that says it surer
    lines = mean_over(rows, [16], ["short"], "whom it serves")
    shown = {line.split(" | ")[0]: line.split(" | ")[-1] for line in lines}
    assert shown[f"| {DEFAULT}"] == shown["| opd"] == "0.50 |"


def test_never_is_later_than_every_turn() -> None:
    tried = {"updates": [{"seconds": 1.0}]}
    rows = [row_of(seed=0, three=11, **tried), row_of(seed=1, **tried)]
    assert three(rows) == "never in 16, 11 at best"  # the median of 11 and never
    assert three([*rows, row_of(seed=2, three=5, turns=32, **tried)]) == "11 (5–11), 1 never in 16"
    assert three([row_of("memory")]) == "never in 16"  # it learns nothing, but its turns are rated
    assert three([row_of("base")]) == "–"


def test_ours_stands_beside_the_best_of_upstreams() -> None:
    rows = [
        row_of(three=11), row_of("openclaw-opd", turns=32), row_of("openclaw-hybrid", turns=32),
        row_of(person="plain", three=4), row_of("openclaw-opd", person="plain", three=16),
        row_of("openclaw-hybrid", person="plain", three=8),
        row_of(person="asks"), row_of("openclaw-opd", person="asks", three=8),
        row_of(person="greets"), row_of("openclaw-opd", person="greets"),
        row_of(person="emoji", three=3),
    ]  # fmt: skip
    lines = sooner(rows)
    assert "| asks | 1 | never in 16 | 8 | openclaw-opd | at least 2.12 |" in lines
    assert "| greets | 1 | never in 16 | never in 16 | openclaw-opd | – |" in lines
    assert "| plain | 1 | 4 | 8 | openclaw-hybrid | 0.50 |" in lines
    assert "| short | 1 | 11 | never in 32 | openclaw-hybrid | at most 0.33 |" in lines
    assert len(lines) == 2 + 2 + 4
    ours = [row_of(three=15), row_of(seed=1, three=6)]  # each seed is asked its own questions
    assert "| short | 1 | 15 | 19 | openclaw-opd | 0.79 |" in sooner(
        [*ours, row_of("openclaw-opd", three=19)]
    )
    assert sooner([row_of(three=11), row_of("openclaw-opd", seed=1, three=19)]) == []
    nearer = row_of("openclaw-opd", turns=64, evals={"0": {"satisfied": 0.5}, "64": ENDS})
    rows = [row_of(three=11), row_of("openclaw-hybrid", turns=32), nearer]
    assert "| short | 1 | 11 | never in 64 | openclaw-opd | at most 0.17 |" in sooner(rows)
    theirs = [row_of("openclaw-opd", seed=seed, turns=32) for seed in (0, 1)]
    rows = [row_of(three=11), row_of(seed=1, three=12), row_of("openclaw-hybrid"), *theirs]
    assert "| short | 2 | 12 (11–12) | never in 32 | openclaw-opd | at most 0.35 |" in sooner(rows)


def test_of_an_even_number_of_seeds_one_that_never_had_three_is_bounded_by_itself() -> None:
    theirs = [row_of("openclaw-opd", three=6), row_of("openclaw-opd", seed=1, turns=32)]
    rows = [row_of(three=16), row_of(seed=1, three=16), *theirs]
    assert any(line.endswith("at most 0.82 |") for line in sooner(rows))  # 16 of (6 + 33) / 2


def test_the_table_says_when_its_rows_mix_precisions() -> None:
    rows = [row_of(dtype="fp32"), row_of(seed=1, dtype="bf16"), row_of(seed=2)]
    assert "1 in an unknown precision, 1 in bf16, 1 in fp32" in table(rows)
    assert "mixed" not in table([row_of(dtype="fp32"), row_of(seed=1, dtype="fp32")])


def thumbed(seed: int, before: list[int], after: list[int]) -> dict[str, Any]:
    """A row of thumbs alone; which held-out questions passed at 0 and at 64."""
    ends = {"0": before, "4": before, "64": after}
    evals = {
        n: {"satisfied": sum(passed) / len(passed), "nll": 1.0, "passed": passed}
        for n, passed in ends.items()
    }
    return row_of("kto", seed=seed, turns=64, evals=evals, updates=[{"seconds": 1.0}])


def test_a_gain_is_paired_by_question_over_seeds() -> None:
    rows = [thumbed(0, [0, 0, 1], [1, 0, 0]), thumbed(1, [0, 1, 0], [1, 1, 0])]
    assert gains(rows) == [1.0, 0.0, -0.5]


def test_a_gain_is_paired_by_question_where_more_were_asked() -> None:
    """Half of the questions to who wants lists for recipes are recipes, however many are asked."""
    rows = [
        {**thumbed(0, [0, 0], [1, 0]), "person": "recipes"},  # a question, a recipe
        {**thumbed(1, [0, 0, 1, 1], [1, 1, 0, 1]), "person": "recipes"},  # two of each
    ]
    assert gains(rows) == [1.0, -0.5]


def test_chance_is_the_share_of_resamples_without_a_gain() -> None:
    assert chance([1.0] * 8) == pytest.approx(1 / 10_001)  # no resample can fail
    assert chance([0.0] * 8) == 1.0
    # of two questions, +1 and -1, a resample is (-, -), (-, +), (+, -) or (+, +): 3 of 4 gain none
    assert chance([1.0, -1.0]) == pytest.approx(0.75, abs=0.02)
    # one +1 among three: none of three draws hits it in (2/3)^3
    assert chance([1.0, 0.0, 0.0]) == pytest.approx(8 / 27, abs=0.02)
    rows = [thumbed(seed, [0] * 24, [1] * 12 + [0] * 12) for seed in range(3)]
    assert "| short | kto | 3 | 64 | 24 | 0.00 | +0.500 | 0.0001 | 0.000 |" in table(rows)
    # One of three seeds gains: no draw of three has it in (2/3)^3.
    rows = [thumbed(seed, [0] * 24, [int(seed == 0)] * 24) for seed in range(3)]
    assert chance(gains(rows)) == pytest.approx(1 / 10_001)
    assert chance_of_seeds(rows) == pytest.approx(8 / 27, abs=0.02)


def test_the_table_shows_leaks_health_and_who_gains_from_a_hint() -> None:
    found = {"satisfied": 0.5, "nll": 1.0, "passed": [1, 0], "recipes": 0.25, "rest": 0.75}
    better = {**found, "satisfied": 0.9, "passed": [1] * 9 + [0], "recipes": 1.0, "rest": 0.8}
    good = {**better, "satisfied": 0.75, "passed": [1, 0, 1, 1]}
    gate = {
        "repetition": 0.02, "empty": 0.0, "cut_off": 0.5, "length": 30.0, "drift": 0.1,
        "drift_limit": 0.2, "accepted": True,
    }  # fmt: skip
    asked = {"0": {**found, "about": [60.0, 50.0]}, "16": {**better, "about": [0.0, 40.0]}}
    rows = [
        row_of("hinted", evals={"0": better}),
        row_of("opd", evals=asked, gate=gate),
        row_of("hinted", person="plain", evals={"0": good}),
        row_of("opd", person="plain", evals={"0": found}),
    ]
    text = table(rows)
    assert "keeps in 0.7 or more\n(plain, short;" in text
    assert "by 0.3 or more\n(short;" in text
    assert (
        "| opd | 0.020 (0.020) | 0.000 (0.000) | 0.500 (0.500) | 30 (30) | 55 → 20 (20) | 1 of 1 |"
        in text
    )
    one = table(rows[:2])
    assert "| opd | 1 | 16 | 0.25 | 1.00 | 0.75 | 0.80 |" in one


def test_variations_of_the_default_have_a_table_of_their_own() -> None:
    evals = {"0": {"satisfied": 0.9, "nll": 1.0, "passed": [1, 0]}}
    text = table([row_of(name, evals=evals) for name in ("opd", "hinted", "opd-fours")])
    compared, varied = text.split("Variations of `combine`")
    assert "| short | opd | 1 |" in compared
    assert "| opd | 1 of 1 |" in compared
    assert "| short | opd-fours | 1 |" in varied
    assert "| opd-fours | 1 of 1 |" not in text


def test_the_aims_stand_beside_what_the_default_reaches() -> None:
    def ours(person: str, share: float, nll: float, **more: Any) -> dict[str, Any]:
        found = {"satisfied": share, "nll": nll, "passed": [1, 0]}
        then = dict.fromkeys(("16", "32"), found)
        evals = {"0": {**found, "satisfied": 0.2, "nll": 1.0}, **then}
        return row_of(person=person, turns=32, evals=evals, **more)

    def hinted(person: str, share: float) -> dict[str, Any]:
        found = {"satisfied": share, "nll": 1.2, "passed": [1, 0]}
        return row_of("hinted", person=person, evals={"0": found})

    gate = {"drift": 0.2, "drift_limit": 0.2, "accepted": True}
    for name in ("repetition", "empty", "cut_off", "length"):
        gate[name] = 0.0
    rows = [
        hinted("short", 0.8), hinted("plain", 0.7), hinted("asks", 0.1),
        ours("short", 0.96, 1.30, gate={**gate, "drift_limit": 0.1996}, three=8),
        ours("plain", 0.86, 1.36, gate={**gate, "drift": 0.21, "accepted": False, "question": 0.4}),
        ours("asks", 0.10, 1.30),  # whose hint the base does not follow: not in the means
        ours("emoji", 0.10, 1.30, three=20),
        row_of("openclaw-opd", turns=32), row_of("openclaw-opd", person="plain", turns=32, three=9),
        row_of("openclaw-opd", person="emoji", turns=32),
        row_of("openclaw-opd", person="asks", turns=32),
        row_of("combine-at-once", person="plain", three=4),
        row_of("combine-fours", person="plain", three=6),
        ours("detailed", 0.86, 1.30, three=8), row_of("openclaw-opd", person="detailed", three=16),
    ]  # fmt: skip
    more = [{**row, "seed": seed} for row in rows if row["person"] == "short" for seed in (1, 2)]
    lines = aims([*rows, *more])
    assert "the hinted base keeps in 0.7 or more (plain, short)." in lines
    few = "on 1 seed"
    satisfied = f"0.910 (plain 0.86 {few}, short 0.96)"
    assert lines[7:] == [
        f"| satisfied after 16 rated turns: 0.90 | {satisfied} | **no** |",
        f"| satisfied after 32 rated turns: 0.95 | {satisfied} | **no** |",
        "| nll after 32 within 0.15 of the hinted base's, or lower |"
        f" plain +0.16 {few}, short +0.10 | **no** |",
        "| these people's last versions' drift at most the hinted base's own + 0.05 | 3 of 4 |"
        " **no** |",
        "| the same of everybody's: the last versions' drift at most the hinted base's own + 0.05"
        " | 3 of 4 | **no** |",
        "| no person's replies degenerate: the gate accepts the last versions | 3 of 4, not plain;"
        " 1 of these for their drift; 3 from before the gate asked whether replies are of the"
        " question | **no** |",
        "| rated turns until three in a row: 0.5 of upstream's best or less | 1 of 3 people (short"
        f" at most 0.24); not plain at least 3.67 {few}; a first version comes after 8, so 11 is"
        f" its soonest; while hints in the prompt hold until then (`combine-at-once`): plain 0.44"
        f" {few}; with a version after every fourth (`combine-fours`): plain 0.67"
        f" {few}; not known: emoji at most 0.61 {few}; not counted, as both had them before their"
        f" first version: detailed 0.50 {few}; nor where neither has had them so far: asks |"
        " **no** |",
    ]
    lines = aims([row for row in [*rows, *more] if row["person"] == "short"])
    assert [line.rsplit("|", 2)[1].strip() for line in lines[7:10]] == ["yes"] * 3
    assert aims([row_of("base")]) == []
    assert table(rows).index("The aims") < table(rows).index("| person |")


def test_a_version_that_has_lost_the_question_is_named() -> None:
    def asked(person: str, seed: int, *about: float) -> dict[str, Any]:
        found = {"satisfied": 0.5, "nll": 1.0, "passed": [1, 0]}
        evals = {"0": {**found, "about": [60.0, 40.0, 80.0]}, "16": {**found, "about": about}}
        return row_of(person=person, seed=seed, evals=evals, updates=[{"seconds": 1.0}])

    older = row_of(updates=[{"seconds": 1.0}])  # did not measure it
    kept, lost = asked("short", 0, 15.0, 90.0, 0.0), asked("emoji", 0, 14.9, 90.0, 0.0)
    (line,) = [line for line in aims([older, kept, lost]) if "of the question" in line]
    assert line.endswith("| 1 of 2 that measured it, not emoji 1 | **no** |")
    (line,) = [line for line in aims([older, kept]) if "of the question" in line]
    assert line.endswith("| 1 of 1 that measured it | yes |")
    told = {"satisfied": 0.5, "nll": 1.0, "passed": [1, 0], "about": [14.0, 2.0, 90.0]}
    hinted = row_of("hinted", evals={"0": told})  # beside the base's own, not its own
    (line,) = [line for line in aims([hinted, kept]) if "of the question" in line]
    assert line.endswith("| 1 of 1 that measured it; of the hinted base's own 0 of 1 | yes |")


def test_an_aim_of_thumbs_alone_asks_for_a_base_between() -> None:
    sure = [thumbed(seed, [1, 1, 0, 0], [1, 1, 1, 1]) for seed in range(3)]
    (line,) = [line for line in aims(sure) if "thumbs alone" in line]
    assert line.startswith(
        "| thumbs alone above the base, p < 0.05: short (base 0.50) | `kto` +0.5"
    )
    assert line.endswith(
        "4 questions, 3 seeds | **no** |"
    )  # of two gains in four 1 draw in 16 has none
    many = [thumbed(seed, [1] * 4 + [0] * 20, [1] * 24) for seed in range(3)]
    many[1]["gate"] = {"accepted": False}
    (line,) = [line for line in aims(many) if "thumbs alone" in line]
    assert line.endswith("3 seeds, of which the gate refuses the last version of 1 | yes |")
    (line,) = [line for line in aims(many[:2]) if "thumbs alone" in line]
    assert line.endswith("2 seeds, of which the gate refuses the last version of 1 | **no** |")
    other = row_of(person="plain")  # whom the base satisfies in a half, and nobody has asked
    assert "plain (base 0.50) | not run | **no** |" in "\n".join(aims([*sure, other]))
    never = [thumbed(seed, [0] * 24, [1] * 24) for seed in range(3)]
    assert not any("thumbs alone" in line for line in aims(never))  # nothing to tell thumbs apart


def test_the_table_says_how_long_replies_are_at_first_and_at_the_end() -> None:
    found = {"satisfied": 0.5, "nll": 1.0, "passed": [1, 0]}
    rows = [
        row_of(seed=seed, evals={"0": {**found, "tokens": 140.0}, "16": {**found, "tokens": end}})
        for seed, end in enumerate((40.0, 50.4))
    ]
    assert "| 140 → 45 (40–50) |" in table(rows)
    assert "→" not in table([row_of()]).split("| person |")[1]  # an older row does not say
