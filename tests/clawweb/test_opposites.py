"""How much of what people say is read as one of two opposites: of 328 comments, on 18 axes and on
none of them, that were written when the ways of saying it had been collected. What changes these
figures changes those of docs/decisions/0040, too.
"""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest

from clawweb.models import FeedbackReason
from clawweb.selectors.poles import Axes, Said

pytestmark = pytest.mark.django_db

Told = tuple[str, str, Said]  # the axis and pole that a comment asks for, and what is read


def read() -> list[Told]:
    """Of comments on no axis the words themselves stand for it: none contradicts any other."""
    said = json.loads(Path(__file__).with_name("said.json").read_text(encoding="utf-8"))
    axes = Axes(FeedbackReason.objects.all())
    asked = [
        (axis, pole, axes.of_text(text))
        for axis, poles in said["opposites"].items()
        for pole, texts in poles.items()
        for text in texts
    ]
    return [*asked, *((text, "", axes.of_text(text)) for text in said["neither"])]


def test_most_of_what_asks_for_a_pole_is_read_and_hardly_any_wrongly() -> None:
    asked = [(axis, pole, said.poles) for axis, pole, said in read() if pole]
    right = sum(poles.get(axis) == pole for axis, pole, poles in asked)
    opposite = sum(poles.get(axis, pole) != pole for axis, pole, poles in asked)
    assert (right, opposite, len(asked)) == (161, 4, 228)


def test_half_of_the_opposites_contradict_and_nearly_nothing_else_does() -> None:
    found, false = [], []
    for (axis, pole, newer), (other, its_pole, older) in permutations(read(), 2):
        is_opposite = axis == other and pole != its_pole
        contradicts = any(older.poles.get(name, p) != p for name, p in newer.poles.items())
        (found if is_opposite else false).append(contradicts)
    assert (sum(found), len(found)) == (824, 1656)
    assert (sum(false), len(false)) == (44, 105600)
