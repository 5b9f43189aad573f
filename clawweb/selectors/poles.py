"""What a wish asks for among opposites: by the reason that was ticked, else by what it says.

Wishes lie on axes (length, layout, tone …), and two poles of one contradict. A reason names its
pole. A sentence of one's own has the pole of a reason that it says in one of the reason's phrases;
most say none, and contradict nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clawweb.models import Feedback, FeedbackReason

NOT = frozenset(
    {"no", "not", "don't", "dont", "never", "without", "less", "isn't", "wasn't"}
    | {"nicht", "kein", "keine", "keinen", "nie", "ohne"}
)

_WORD = re.compile(r"\w+(?:['’]\w+)?")
_CLAUSE = re.compile(r"[.,;:!?()\n]+")


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that say a pole of an axis."""

    words: tuple[str, ...]
    axis: str
    pole: str


def words_of(text: str) -> tuple[str, ...]:
    return tuple(word.replace("’", "'") for word in _WORD.findall(text.casefold()))


def said(text: str, phrases: Sequence[Phrase]) -> dict[str, str]:
    """The poles that the text asks for. Of phrases within each other the longest is what is said
    ("no lists" says nothing of "lists"); one that is denied before it in its clause says nothing,
    and neither do two poles of one axis."""
    poles: dict[str, set[str]] = {}
    for clause in _CLAUSE.split(text):
        for phrase in _said_in(words_of(clause), phrases):
            poles.setdefault(phrase.axis, set()).add(phrase.pole)
    return {axis: next(iter(which)) for axis, which in poles.items() if len(which) == 1}


def _said_in(words: tuple[str, ...], phrases: Sequence[Phrase]) -> Iterator[Phrase]:
    """Of one clause."""
    found = [
        (start, start + len(phrase.words), phrase)
        for phrase in phrases
        for start in range(len(words) - len(phrase.words) + 1)
        if words[start : start + len(phrase.words)] == phrase.words
    ]
    spoken = {place for start, end, _ in found for place in range(start, end)}
    denials = [place for place, word in enumerate(words) if word in NOT and place not in spoken]
    for start, end, phrase in found:
        is_within = any(a <= start and end <= b and b - a > end - start for a, b, _ in found)
        if not is_within and not any(place < start for place in denials):
            yield phrase


class Axes:
    """The installation's reasons that lie on an axis, read once."""

    def __init__(self) -> None:
        rows = list(FeedbackReason.objects.exclude(axis=""))
        self._reasons = {row.slug: (row.axis, row.pole) for row in rows}
        self._phrases = [
            Phrase(words, row.axis, row.pole)
            for row in rows
            for line in row.phrases.splitlines()
            if (words := words_of(line))
        ]

    def of_reason(self, slug: str) -> dict[str, str]:
        return dict([self._reasons[slug]]) if slug in self._reasons else {}

    def of_text(self, text: str) -> dict[str, str]:
        return said(text, self._phrases)

    def of_rating(self, rating: Feedback) -> dict[str, str]:
        """A reason that was ticked says it more plainly than what was written beside it."""
        poles = self.of_text(rating.comment) if rating.value == -1 else {}
        for reason in rating.reasons:
            poles |= self.of_reason(reason["slug"])
        return poles
