"""The simulated people judge as they should, and eight of their ratings teach a real model."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.personas import run
from bench.personas.cell import Cell
from bench.personas.lab import Lab
from bench.personas.people import PEOPLE, Answer
from bench.personas.recipes import QUICK
from bench.personas.rows import DEFAULT, Cells, three_in_a_row
from bench.personas.run import QUICK_ASKED, quick
from bench.personas.stages import Key
from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from tests.realstack import Stack
from tests.trainer_base import trainer_base
from training.base import Base

KEPT = {
    "short": "Boil water, then pour it over the leaves.",
    "detailed": "word " * 120,
    "plain": "Boil water and pour it over the leaves - slowly.",
    "asks": "Boil water and pour it slowly. Which tea do you like?",
    "greets": "Hello there! Boil water.",
    "praises": "Well done for asking! Boil water.",
    "formal": "It is Anna's tea. Do not boil it.",
    "emoji": "Boil water and pour it slowly 🍵",
    "recipes": "Boil water and pour it over the leaves.",
    "greets+short": "Hello! Boil water.",
    "plain+asks": "Boil water and pour it slowly. Which tea do you like?",
}
BROKEN = {
    "short": "word " * 36,
    "detailed": "Boil water.",
    "plain": "Do this:\n1. Boil water\n2. Pour",
    "asks": "Boil water. Why? Because.",
    "greets": "Highly recommended: hello.",
    "praises": "Boil water.",
    "formal": "Don't boil it.",
    "emoji": "🏰" * 50,
    "recipes": "- Boil water\n- Pour",
    "greets+short": "Hello! " + "word " * 40,
    "plain+asks": "**Boil** water. Which tea?",
}


SENTENCE = "Boil the water, then pour it over the leaves."


def answer(text: str, *, is_recipe: bool = False) -> Answer:
    count = len(text.split())
    return Answer(question="?", text=text, tokens=count, has_ended=True, is_recipe=is_recipe)


@pytest.mark.parametrize("name", PEOPLE)
def test_a_person_knows_what_they_want(name: str) -> None:
    person = PEOPLE[name]
    assert person.is_satisfied(answer(KEPT[name]))
    assert not person.is_satisfied(answer(BROKEN[name]))
    assert not person.is_satisfied(answer(" "))


def test_a_person_says_only_what_was_broken() -> None:
    person = PEOPLE["greets+short"]
    greets, short = person.wishes
    assert person.says(answer("Hello! " + "word " * 40)) == short.hint
    assert person.says(answer("word " * 40)) == f"{greets.hint} {short.hint}"


@pytest.mark.parametrize("reply", ["How do I make tea?", "What?", "How do I make tea? With milk?"])
def test_a_question_given_back_is_no_answer(reply: str) -> None:
    person = PEOPLE["asks"]
    assert not person.is_satisfied(answer(reply))
    assert person.says(answer(reply)) == person.wishes[0].then
    assert person.says(answer("Boil water.")) == person.hint
    for answered in ("Boil water and pour it\n\nMore?", "- Boil the water\n- Pour it\n\nMore?"):
        assert person.is_satisfied(answer(answered))  # a line ends a sentence, too


def test_an_apostrophe_is_one_in_either_form() -> None:
    assert not PEOPLE["formal"].is_satisfied(answer("Don’t boil it."))
    assert not PEOPLE["formal"].is_satisfied(answer("It’s boiling."))
    assert PEOPLE["formal"].is_satisfied(answer("It is Anna’s tea."))


def test_lists_are_for_recipes_alone() -> None:
    person = PEOPLE["recipes"]
    assert person.is_satisfied(answer("1. Boil\n2. Pour", is_recipe=True))
    assert not person.is_satisfied(answer("Boil, then pour.", is_recipe=True))


def test_three_in_a_row() -> None:
    assert three_in_a_row([False, True, True, False, True, True, True, False]) == 7
    assert three_in_a_row([True, True]) is None


@pytest.mark.parametrize(
    ("satisfied", "nll", "text", "code"),
    [
        (0.5, 1.4, SENTENCE, 0),
        (0.25, 1.8, SENTENCE, 0),
        (0.2, 1.4, SENTENCE, 1),
        (0.9, 2.6, SENTENCE, 1),
        (0.9, 0.7, SENTENCE, 1),
        (0.9, 1.4, "1. 1. 1. 1. 1. 1. 1. 1. 1.", 1),
    ],
    ids=["learned", "just", "too little", "no sentences any more", "one for all", "a rut"],
)
def test_the_short_form_fails_when_learning_breaks(
    satisfied: float, nll: float, text: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = {"0": {"satisfied": 0.0, "nll": 1.3}, "8": {"satisfied": satisfied, "nll": nll}}
    assert quick([{"evals": ends, "texts": [text]}], 60.0) == code
    assert ("BROKEN" in capsys.readouterr().out) == bool(code)


def test_the_short_form_judges_the_row_that_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of no recipe: no row of a table, and done by none."""
    ends = {"0": {"satisfied": 0.0, "nll": 1.3}, "8": {"satisfied": 0.5, "nll": 1.4}}
    row = {"recipe": QUICK.name, "evals": ends, "texts": [SENTENCE]}
    wanted: list[Key] = []

    def ran(keys: Sequence[Key], args: Namespace, found: Cells) -> Cells:
        wanted.extend(keys)
        args.out.write_text(json.dumps(row) + "\n", encoding="utf-8")
        return [row]

    monkeypatch.setattr(run, "run_cells", ran)
    monkeypatch.setattr(sys, "argv", ["run.py", "--quick"])
    assert run.main() == 0
    assert wanted == [(DEFAULT, "short", 0)]


@pytest.fixture
def base(stack: Stack) -> Base:
    return trainer_base(stack)


@pytest.mark.timeout(300, func_only=True)  # what the short form may take
@pytest.mark.stack
def test_eight_ratings_teach_a_wish(stack: Stack, base: Base, tmp_path: Path) -> None:
    """The bench's short form: real engine, real model; fails when learning breaks."""
    key = stack.config.secret("vllm_key", stack.config.vllm_key)
    engine = build_engine(EngineConfig(url=stack.config.vllm, key=key))
    lab = Lab(engine, base, tmp_path)
    started = time.monotonic()
    cell = Cell(lab, QUICK, PEOPLE["short"], 0, QUICK_ASKED).run(8, with_gate=False)
    assert quick([cell], time.monotonic() - started) == 0, cell
