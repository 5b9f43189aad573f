"""What simulated people write instead of a reply: the reply, changed as little as it takes."""

from __future__ import annotations

import pytest

from bench.personas.edits import EDITS, edited
from bench.personas.people import PEOPLE, Answer

TEXT = """Don't worry, it's easy. Wash them well.

1. **Cut** them
2. Boil them, until they're soft. Then let the"""
WHOLE = TEXT.removesuffix(" Then let the")
PLAIN = "Don't worry, it's easy. Wash them well. Cut them. Boil them, until they're soft."


def reply(text: str, *, has_ended: bool = False, is_recipe: bool = False) -> Answer:
    question = "How do I cook tomatoes?"  # of 23 letters: the last of four ways, or of three
    return Answer(
        question=question, text=text, tokens=160, has_ended=has_ended, is_recipe=is_recipe
    )


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("short", WHOLE),
        ("plain", PLAIN),
        ("asks", f"{WHOLE} Have you tried that before?"),
        ("greets", f"Hey, nice to hear from you! {WHOLE}"),
        ("praises", f"Great job looking into this! {WHOLE}"),
        (
            "formal",
            "Do not worry, it is easy. Wash them well.\n\n1. **Cut** them\n"
            "2. Boil them, until they are soft.",
        ),
        ("emoji", f"Don't worry, it's easy. ✨ {WHOLE.split('easy. ')[1]} ✨"),
        ("recipes", PLAIN),
        ("greets+short", f"Hey, nice to hear from you! {WHOLE}"),
        ("plain+asks", f"{PLAIN} Have you tried that before?"),
    ],
)
def test_an_edit_keeps_the_wish_and_all_else(name: str, wanted: str) -> None:
    assert not PEOPLE[name].is_satisfied(reply(TEXT))
    assert edited(PEOPLE[name], reply(TEXT)) == wanted


def test_a_recipe_becomes_a_list() -> None:
    answer = reply("Wash them. Cut them.", has_ended=True, is_recipe=True)
    assert edited(PEOPLE["recipes"], answer) == "1. Wash them.\n2. Cut them."


def test_a_first_sentence_that_is_too_long_is_cut() -> None:
    text = edited(PEOPLE["short"], reply("very " * 40 + "long.", has_ended=True))
    assert text == "very " * 29 + "very."


def test_who_wants_more_would_have_to_write_it() -> None:
    assert PEOPLE["detailed"].wishes[0] not in EDITS
    answer = Answer(question="Why?", text="Because.", tokens=3, has_ended=True)
    assert edited(PEOPLE["detailed"], answer) == ""
