"""What the people with whom nothing was tuned are content with, and that they are no others."""

from __future__ import annotations

import pytest

from bench.personas.newcomers import EVERYONE, NEWCOMERS
from bench.personas.people import PEOPLE, Answer

KEPT = {
    "steps": "1. Boil the water.\n2. Pour it.",
    "paragraph": "Boil the water. Then pour it over the leaves.",
    "few": "Boil it. Pour it. Wait for a while.",
    "example": "Many leaves do well, for example mint.",
    "named": "Boil the water, Sam, then pour it.",
    "summed": "Boil the water, pour it over the leaves and wait for long. In short, wait.",
    "titled": "**Tea**\n\nBoil the water.",
    "simple": "The cat sat on the mat.",
}
BROKEN = {
    "steps": "- Boil the water.\n- Pour it.",
    "paragraph": "Boil the water.\n\nThen pour it. Wait.",
    "few": "Boil it. " * 6,
    "example": "Many leaves do well, the exemplary mint too.",
    "named": "Samuel boils the water and pours it.",
    "summed": "In short, boil the water, pour it over the leaves and wait for long.",
    "titled": "Boil the **water**.",
    "simple": "Consider the temperature appropriate for delicate varieties.",
}


def reply(text: str, *, has_ended: bool = True) -> Answer:
    return Answer(question="How is tea made?", text=text, tokens=40, has_ended=has_ended)


@pytest.mark.parametrize("name", NEWCOMERS)
def test_a_newcomer_is_content_with_what_they_asked_for(name: str) -> None:
    person = NEWCOMERS[name]
    assert person.is_satisfied(reply(KEPT[name]))
    assert not person.is_satisfied(reply(BROKEN[name]))
    assert person.says(reply(BROKEN[name])) == person.hint
    assert not person.is_satisfied(reply(""))


@pytest.mark.parametrize("name", ["paragraph", "few"])
def test_a_reply_that_was_cut_off_has_no_length(name: str) -> None:
    assert not NEWCOMERS[name].is_satisfied(reply(KEPT[name], has_ended=False))


def test_newcomers_are_none_of_those_with_whom_it_was_tuned() -> None:
    assert not NEWCOMERS.keys() & PEOPLE.keys()
    assert len(EVERYONE) == len(NEWCOMERS) + len(PEOPLE)
    known = {wish.hint for person in PEOPLE.values() for wish in person.wishes}
    assert not known & {person.hint for person in NEWCOMERS.values()}
