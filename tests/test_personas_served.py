"""What the table says of leaks, of what `make run` serves, and of the default beside its rival."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.personas.aims import aims
from bench.personas.legend import arithmetic, asked_more, by_earlier_trainers
from bench.personas.pairs import beside
from bench.personas.questions import HELD_OUT
from bench.personas.recipes import SERVED, THUMBS_SERVED, TRAINER
from bench.personas.report import table, write_report
from bench.personas.rows import DEFAULT, shared
from bench.personas.stages import FIRST_PEOPLE
from tests.test_personas_report import row_of, thumbed


def leaky(seed: int, recipes: int) -> dict[str, Any]:
    """Of 48 questions and as many recipes all passed; then so many recipes and all the rest."""
    row = thumbed(seed, [1] * 96, [1] * 48 + [1] * recipes + [0] * (48 - recipes))
    row = {**row, "recipe": DEFAULT, "person": "recipes"}
    row["evals"]["0"] |= {"recipes": 1.0, "rest": 1.0}
    row["evals"]["64"] |= {"recipes": recipes / 48, "rest": 1.0}
    return row


def test_a_leak_is_a_loss_that_chance_does_not_explain() -> None:
    def said(*recipes: int) -> str:
        rows = [leaky(seed, count) for seed, count in enumerate(recipes)]
        return next(line for line in aims(rows) if "no leak of a wish about recipes" in line)

    assert "recipes -0.500 (p of a loss 0.000; by seed -0.500 (0.000), -0.5" in said(24, 24, 24)
    assert "the rest +0.000 (p of a loss 1.000; by" in said(24, 24, 24)
    assert said(24, 24, 24).endswith("**no** |")
    assert said(48, 48, 48).endswith("96 questions, 3 seeds | yes |")
    assert said(48, 48).endswith("**no** |")  # too few seeds to say


def test_a_leak_on_one_seed_is_one_whatever_the_others_gain() -> None:
    def verdict(recipes: int) -> str:
        gained = [leaky(seed, 48) for seed in (1, 2)]
        for row in gained:
            row["evals"]["0"]["passed"] = [1] * 48 + [0] * 48
        return next(
            line for line in aims([leaky(0, recipes), *gained]) if "no leak of a wish" in line
        )

    # All of 48 gain in two seeds. In the third so many lose that no draw has none: (44/48)^48 is
    # 0.015, which of three seeds one has in 0.046, and (45/48)^48 0.045, one of three in 0.135.
    assert verdict(44).endswith("**no** |")
    assert verdict(45).endswith("| yes |")


def test_a_leak_by_thumbs_alone_as_served_has_a_line_of_its_own() -> None:
    rows = [{**leaky(seed, 24), "recipe": THUMBS_SERVED} for seed in range(3)]
    told = [line for line in aims(rows) if "no leak of a wish about recipes" in line]
    assert len(told) == 1
    assert "as `make run` serves it, by thumbs alone no leak of a wish about recipes" in told[0]
    assert told[0].endswith("**no** |")


def test_what_hints_that_go_unheard_share_with_thumbs_alone_is_told_once() -> None:
    served = [{**leaky(seed, 48), "recipe": SERVED} for seed in range(3)]
    by_thumbs = [{**row, "recipe": THUMBS_SERVED} for row in served]
    (told,) = [line for line in aims([*served, *by_thumbs]) if "no leak of a wish" in line]
    assert "; by thumbs alone each verdict is the same: the hints go unheard" in told
    other = [*by_thumbs[:2], {**leaky(2, 47), "recipe": THUMBS_SERVED}]
    first, second = [line for line in aims([*served, *other]) if "no leak of a wish" in line]
    assert "by thumbs alone" not in first
    assert "by thumbs alone no leak" in second


def test_a_leak_that_has_gone_by_the_end_is_one_where_it_was() -> None:
    rows = [leaky(seed, 48) for seed in (0, 1, 2)]
    for row in rows:
        ended = row["evals"].pop("64")
        row["evals"] |= {"16": {**ended, "passed": [0] * 48 + [1] * 48}, "32": ended}
    after_16, after_32 = [line for line in aims(rows) if "no leak of a wish about recipes" in line]
    assert after_16.startswith("| after 16 no leak of a wish")
    assert "the rest -1.000 (p of a loss 0.000" in after_16
    assert after_16.endswith("**no** |")
    assert after_32.startswith("| after 32 no leak of a wish")
    assert after_32.endswith("| yes |")


def test_a_leak_of_what_is_served_is_told_beside_the_benchs() -> None:
    rows = [leaky(seed, 48) for seed in (0, 1, 2)]
    rows += [{**leaky(seed, 24), "recipe": SERVED} for seed in (0, 1, 2)]
    ours, served = [line for line in aims(rows) if "no leak of a wish about recipes" in line]
    assert ours.endswith("| yes |")
    assert served.startswith("| after 64 as `make run` serves it no leak of a wish")
    assert served.endswith("**no** |")


def test_thumbs_alone_as_served_are_told_beside_the_benchs() -> None:
    def said(*afters: list[int]) -> str:
        rows = [
            {**thumbed(seed, [1] * 4 + [0] * 20, after), "recipe": THUMBS_SERVED}
            for seed, after in enumerate(afters)
        ]
        (line,) = [line for line in aims(rows) if f"`{THUMBS_SERVED}`, below" in line]
        assert len([line for line in aims(rows) if "thumbs alone above" in line]) == 0
        return line

    better, same = [1] * 24, [1] * 4 + [0] * 20
    assert said(better, better, better).endswith("| short +0.833 after 64, p 0.0001 | yes |")
    assert said(better).endswith("| short +0.833 after 64, p 0.0001 on 1 seed | **no** |")
    assert said(same, same, same).endswith("| short +0.000 after 64, p 1.0000 | **no** |")


def as_served(seed: int, share: int, **more: Any) -> dict[str, Any]:
    """Of 72 questions that nothing was tuned on so many hundredths passed in the end."""
    ends = {"0": 0, "16": share, "32": share}
    evals = {
        n: {"satisfied": 0.9, "nll": 1.0, "passed": [1] * HELD_OUT + [1] * of + [0] * (100 - of)}
        for n, of in ends.items()
    }
    updates = [
        {"steps": 3, "seconds": 60.0, "liked": 0, "accepted": accepted}
        for accepted in (True, False)
    ]
    gate = {"drift": 0.2, "drift_limit": 0.2, "accepted": True}
    gate |= {"drift_elsewhere": 0.04, "drift_elsewhere_limit": 0.19}
    gate |= dict.fromkeys(("repetition", "empty", "cut_off", "length"), 0.0)
    row = row_of(SERVED, seed=seed, turns=38, evals=evals, updates=updates, gate=gate)
    return {**row, **more}


def test_what_make_run_makes_of_them_stands_by_itself_on_questions_never_tuned_on() -> None:
    found = {"satisfied": 0.8, "nll": 1.0, "passed": [1, 0]}
    rows = [as_served(0, 80), as_served(1, 90), as_served(2, 70)]
    rows += [row_of("hinted", evals={"0": found}), row_of(evals={"0": found, "16": found})]
    text = table(rows)
    line = (
        "| short | 3 | 0.00 (0.00–0.00) | 0.80 (0.70–0.90) | 0.80 (0.70–0.90) |"
        " 1.00 (1.00–1.00) | 1.00 (1.00–1.00) | 1.00 (1.00–1.00) | 0.04 (0.19) |"
        " 3 of 6 | 3 | 60 (60–60) |"
    )
    assert line in text
    (asked_less,) = [{**row} for row in rows if row["seed"] == 2 and row["recipe"] == SERVED]
    asked_less["evals"] = {
        n: {"satisfied": 0.5, "nll": 1.0, "passed": [1, 0] * (HELD_OUT // 2)}
        for n in ("0", "8", "16", "32")
    }
    (fewer,) = [
        line
        for line in table([*rows[:2], asked_less]).splitlines()
        if line.startswith("| short | 3 |")
    ]
    assert "| 0.85 (0.80–0.90), 2 of 3 | 0.85 (0.80–0.90), 2 of 3 | 1.00 (0.50–1.00) |" in fewer
    assert fewer.count("|") == line.count("|")  # nothing stands where nobody knows it
    served = f"satisfied after 16 as `make run` serves it (`{SERVED}`, below): 0.90"
    assert f"| {served} | 0.800 (short 0.80) | **no** |" in text
    better = table([row for row in rows if row["seed"] != 2])
    assert f"| {served} | 0.850 (short 0.85 on 2 seeds) | **no** |" in better
    assert "moved back by | 3 of 3 that measured it | yes |" in text
    assert f"| short | {SERVED} |" not in text  # the bench's own table is of the bench's schedule


def test_the_default_stands_beside_its_rival_pair_by_pair() -> None:
    def end(recipe: str, seed: int, passed: list[int]) -> dict[str, Any]:
        found = {"satisfied": 0.5, "nll": 1.0, "passed": passed}
        return row_of(recipe, seed=seed, evals={"0": found, "16": found})

    # Of the four that both were asked: gaps 0.25 and 0.75: 0.5, and sd 0.3536 / sqrt(2) = 0.25.
    rows = [end(DEFAULT, 0, [1, 1, 0, 0] + [0] * 92), end(DEFAULT, 1, [1, 1, 1, 0])]
    rows += [end("opd", 0, [1, 0, 0, 0]), end("opd", 1, [0, 0, 0, 0])]
    assert "| 16 | all | 2 | +0.500 ± 0.250 |" in "\n".join(beside(rows))
    assert beside(rows[:3]) == []
    alike = "| 16 | of one trainer and precision | 2 | +0.500 ± 0.250 |"
    assert alike in "\n".join(beside(rows))
    rows[3]["made_with"] = {"trainer": 4}
    assert "| 16 | all | 2 |" in "\n".join(beside(rows))
    assert "of one trainer" not in "\n".join(beside(rows))
    judged = [row | {"person": "asks", "rules": 1 + (row["seed"] == 0)} for row in rows]
    assert "| 16 | all | 2 |" in "\n".join(beside(judged))
    judged[3]["rules"] = 2  # the other of its seed by rules of before: no pair
    assert beside(judged) == []


def test_the_winner_is_told_apart_by_pairs_that_differ_in_nothing_else() -> None:
    def said(*ours: int, opd: int = 4, trainer: int = TRAINER) -> str:
        """Of eight questions, how many pass after 16: person by person, and so many by opd."""
        rows = []
        for person, count in zip(FIRST_PEOPLE, ours, strict=True):
            for recipe, passed in ((DEFAULT, count), ("opd", opd)):
                found = {"satisfied": 0.5, "nll": 1.0, "passed": [1] * passed + [0] * (8 - passed)}
                row = row_of(recipe, person=person, evals={"0": found, "16": found})
                made = {"made_with": {"trainer": trainer if recipe == "opd" else TRAINER}}
                rows.append(row | made)
        (line,) = [line for line in aims(rows) if "the default is the winner" in line]
        return line

    assert said(7, 7, 8).endswith("differ in nothing else: +0.417 ± 0.042 | yes |")
    assert said(2, 8, 3).endswith("+0.042 ± 0.232 | highest, not told apart |")
    assert said(1, 7, 3).endswith("-0.042 ± 0.220 | **not told apart** |")
    assert said(2, 2, 1).endswith("-0.292 ± 0.042 | **no** |")
    assert said(2, 8, 3, trainer=1).endswith("`opd` 0.500 | yes |")  # by the ranking alone


def test_the_table_says_whose_trainers_its_rows_are() -> None:
    rows = [
        row_of(seed=seed) | {"made_with": {"trainer": trainer}}
        for seed, trainer in ((0, 1), (1, TRAINER))
    ]
    text = table(rows)
    assert f"Of the 2 rows 1 are by today's trainer (number {TRAINER})" in text
    assert "the others by earlier ones (1 by number 1)" in text
    assert f"All 1 rows are by today's trainer (number {TRAINER})." in table(rows[1:])


def test_rows_are_compared_on_the_questions_that_every_row_was_asked() -> None:
    def asked(person: str, passed: list[int]) -> dict[str, Any]:
        return row_of(person=person, evals={"16": {"passed": passed}})

    few, many = [1, 0] * 12, [1, 0] * 12 + [1] * 72
    assert shared(asked("plain", few), 16) == shared(asked("plain", many), 16) == few
    assert shared(asked("plain", few), 32) == []
    rows = [row_of(evals={"0": {"passed": passed}}) for passed in (few, many, many)]
    assert asked_more(rows)[0].startswith("2 rows are of more than 24 questions.")
    assert asked_more(rows[:1]) == []
    halves = [1] * 12 + [0] * 36 + [0, 1] * 6 + [0] * 36  # prose, then recipes: of each the first
    assert shared(asked("recipes", halves), 16) == [1] * 12 + [0, 1] * 6


def test_rows_whose_samples_had_lost_a_part_of_their_version_are_counted() -> None:
    trained = row_of() | {"updates": [{"seconds": 1.0, "liked": 0}]}
    exact, lossy = trained | {"dtype": "fp32"}, trained | {"dtype": "bf16"}
    newer = lossy | {"made_with": {"trainer": 2}}
    assert arithmetic([exact, exact]) == []
    (said,) = arithmetic([exact, lossy, newer])
    assert "2 in bf16, 1 in fp32.\nOf those in bf16 1 were sampled from with less" in said
    assert f"| short | {DEFAULT} | 2, 1 lossy |" in table([lossy, {**newer, "seed": 1}])
    never_sampled = [lossy | {"recipe": name} for name in ("openclaw-hybrid", "sft", "TRL kto")]
    (said,) = arithmetic([exact, *never_sampled])
    assert "lossy" not in said
    (said,) = arithmetic([exact, lossy | {"recipe": "kto"}])  # which is moved back
    assert "in bf16 1 were sampled" in said
    (said,) = arithmetic([exact, newer])
    assert said == "Rows were trained in mixed arithmetic: 1 in bf16, 1 in fp32."


def test_rows_that_answered_anew_less_often_are_marked() -> None:
    def row(recipe: str, liked: int, seed: int, trainer: int = 2) -> dict[str, Any]:
        update = {"seconds": 1.0, "liked": liked}
        made = {"made_with": {"trainer": trainer}}
        return row_of(recipe, seed=seed) | made | {"updates": [update]}

    all_or_nothing = [row(DEFAULT, 0, 0), row(DEFAULT, 8, 1)]
    others = [row("opd-all-sets", 4, 0), row("sft", 4, 0), row("opd-rated-only", 4, 0)]
    todays = row(DEFAULT, 7, 2, trainer=4)
    assert by_earlier_trainers([*all_or_nothing, *others, todays]) == []
    fewer = row("opd", 7, 2)
    assert by_earlier_trainers([fewer])[0].startswith("In 1 rows, `fewer`, some job")
    assert "| short | opd | 1, 1 fewer |" in table([*all_or_nothing, fewer])


def test_rows_whose_hints_were_not_followed_by_thumbs_are_marked() -> None:
    def row(person: str, *liked: int, recipe: str = DEFAULT, trainer: int = 3) -> dict[str, Any]:
        updates = [{"seconds": 1.0, "liked": of} for of in liked]
        made = {"made_with": {"trainer": trainer}}
        return row_of(recipe, person=person) | made | {"updates": updates}

    for same in (
        row("short", 0, 0),  # no like
        row("short", 8, 8),  # nor any dislike
        row("short", 0, 8),  # a job of likes alone has no hint
        row("short", 7, trainer=4),
        row("short", 7, recipe="opd"),
        row("short", 7, recipe="combine-thumbless"),
        row("plain+asks", 6, recipe="combine-unheld"),  # two dislikes
    ):
        assert by_earlier_trainers([same]) == [], same
    for other in (row("short", 7), row("short", 0, 7), row("plain+asks", 0, 4)):
        said = by_earlier_trainers([other])
        assert said[0].startswith("In 1 rows, `thumbless`, a job that had hints"), other
    assert f"| short | {DEFAULT} | 1, 1 thumbless |" in table([row("short", 7)])


def test_rows_that_were_taught_what_the_base_does_not_hear_are_marked() -> None:
    def row(person: str, recipe: str = DEFAULT, trainer: int = 4) -> dict[str, Any]:
        made = {"made_with": {"trainer": trainer}}
        return row_of(recipe, person=person) | made

    for same in (
        row("recipes", trainer=5),
        row("short"),  # names no kind
        row("recipes", "kto"),  # nothing is said
        row("recipes", "thumbs-as-served"),
        row("recipes", "openclaw-opd"),  # does not ask
        row("recipes", "TRL kto"),
    ):
        assert by_earlier_trainers([same]) == [], same
    said = by_earlier_trainers([row("recipes"), row("recipes", "opd")])
    assert said[0].startswith("In 2 rows, `unheard`, hints about one kind")
    assert f"| recipes | {DEFAULT} | 1, 1 unheard |" in table([row("recipes")])


def test_rows_that_collected_what_was_said_once_are_marked() -> None:
    def row(person: str, recipe: str = "combine-collected", trainer: int = 5) -> dict[str, Any]:
        made = {"made_with": {"trainer": trainer}}
        return row_of(recipe, person=person) | made

    for same in (
        row("plain+asks", trainer=6),
        row("short"),  # one wish has no others
        row("plain+asks", DEFAULT),
    ):
        assert by_earlier_trainers([same]) == [], same
    said = by_earlier_trainers([row("plain+asks"), row("greets+short")])
    assert said[0].startswith("In 2 rows, `once`, replies were answered anew")
    assert "| plain+asks | combine-collected | 1, 1 once |" in table([row("plain+asks")])


def test_rows_whose_corrections_were_learned_in_shorter_steps_are_marked() -> None:
    def row(recipe: str, trainer: int = 6) -> dict[str, Any]:
        return row_of(recipe, person="short") | {"made_with": {"trainer": trainer}}

    for same in (
        row("combine-edited", trainer=7),
        row(DEFAULT),  # nothing was written
        row("sft"),
        row("opd-correction-shown"),  # to the teacher alone
    ):
        assert by_earlier_trainers([same]) == [], same
    said = by_earlier_trainers([row("opd-corrected"), row("combine-edited")])
    assert said[0].startswith("In 2 rows, `shorter`, steps grew shorter")
    assert "| short | opd-corrected | 1, 1 shorter |" in table([row("opd-corrected")])


def test_a_report_of_what_no_stage_ranks_draws_what_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(
        "bench.personas.report.write_png",
        lambda figure, path: drawn.extend(trace.name for trace in figure.data),
    )
    write_report([as_served(0, 80)], tmp_path)
    assert drawn == [SERVED]
    assert SERVED in (tmp_path / "curves.html").read_text(encoding="utf-8")
