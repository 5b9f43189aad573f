"""Which pole of which axis words ask for: by the shipped reasons' phrases."""

from __future__ import annotations

import pytest

from clawweb.models import Consent, FeedbackReason, User
from clawweb.selectors.hints import hints_to_prompt
from clawweb.selectors.poles import Axes
from clawweb.services import accounts, feedback
from tests.factories import down, make_turn

pytestmark = pytest.mark.django_db

SHORT, LONG = {"length": "short"}, {"length": "long"}
PROSE, LIST = {"layout": "prose"}, {"layout": "list"}


@pytest.mark.parametrize(
    ("text", "poles"),
    [
        ("Shorter, please.", SHORT),
        ("That was far TOO LONG", SHORT),
        ("No, keep it short!", SHORT),  # what stands in another clause denies nothing
        ("I want more detail.", LONG),
        ("Bitte ausführlicher.", LONG),
        ("Zu lang.", SHORT),
        ("No lists, please", PROSE),  # not "lists"
        ("please don’t use bullet points", PROSE),
        ("Please do not use lists.", PROSE),
        ("Use bullet points.", LIST),
        ("Give me a numbered list, and be brief.", LIST | SHORT),
        ("no lists and keep it short", PROSE | SHORT),  # its own "no" denies no more
        ("Less formal!", {"tone": "casual"}),
        ("Please sound more formal", {"tone": "formal"}),
        ("This is not too long.", {}),  # denied
        ("I never asked you to be longer", {}),
        ("Shorter at first, then in detail", {}),  # both poles
        ("My name is Sam and I live in Norway.", {}),
        ("What is the longest river?", {}),
        ("Say it in rhyme.", {}),
        ("", {}),
    ],
)
def test_words_ask_for_a_pole(text: str, poles: dict[str, str]) -> None:
    assert Axes().of_text(text) == poles


def test_no_phrase_of_a_reason_asks_for_the_other_pole() -> None:
    axes = Axes()
    rows = FeedbackReason.objects.exclude(phrases="")
    assert len(rows) == 6
    for row in rows:
        for line in row.phrases.splitlines():
            assert axes.of_text(line) == {row.axis: row.pole}, line


def test_an_admin_adds_a_phrase() -> None:
    FeedbackReason.objects.filter(slug="greet_me").update(phrases="say hello\n\n  Greet Me ")
    assert Axes().of_text("Always greet me first") == {"greeting": "greet"}
    FeedbackReason.objects.filter(slug="greet_me").update(axis="")
    assert Axes().of_text("Always greet me first") == {}


def test_words_contradict_reasons_and_each_other(alice: User) -> None:
    accounts.set_consent(user=alice, consent=Consent.TRAIN, prompt_hints=True)
    alice.refresh_from_db()

    def comment(text: str) -> None:
        changes = {"value": -1, "comment": text}
        feedback.rate_turn(turn=make_turn(alice), author=alice, changes=changes)

    down(make_turn(alice), "too_long")
    comment("My name is Sam, and I like lists of films.")
    comment("Please give me more detail.")
    name, detail = "My name is Sam, and I like lists of films.", "Please give me more detail."
    assert hints_to_prompt(alice) == [detail, name]
    comment("Shorter, please.")
    assert hints_to_prompt(alice)[:2] == ["Shorter, please.", name]
    assert detail not in hints_to_prompt(alice)
