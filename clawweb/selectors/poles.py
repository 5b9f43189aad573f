"""What a wish asks for among opposites: by the reason that was ticked, or by its words.

Wishes lie on axes (length, layout, tone …), and two poles of one contradict. A reason names its
pole. A sentence of one's own has it when it says no more than one of the reason's phrases: a false
find would put a rating aside, so nothing is read out of a longer one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clawweb.models import Feedback, FeedbackReason

# Words that say nothing by themselves of what is asked for.
_FILLERS = """
please just a an the bit lot much far way really very still again always next time i i'd like want
would prefer it this that be answer answers reply replies response responses your you me my give
make write keep them they then also ok okay
bitte etwas ein eine einen bisschen noch viel sehr immer mal doch das die der deine dein antwort
antworten ich hätte gern gerne will möchte es sie mir gib mach schreib dann auch
"""
FILLERS = frozenset(_FILLERS.split())
# These say what a reply was, "it was brief", and no wish; but where something was too much.
BEING = frozenset({"was", "were", "is", "are", "it's", "that's", "you're", "ist", "sind", "war"})
TOO = frozenset({"too", "zu", "enough"})
_WORD = re.compile(r"\w+(?:'\w+)?")
_CLAUSE = re.compile(r"[.,;:!?()\n]+|\band\b|\bund\b|\bbut\b|\baber\b")


@dataclass(frozen=True, slots=True)
class Said:
    """The poles that words ask for, by axis, and whether they say more than that."""

    poles: dict[str, str]
    says_more: bool


def key(text: str) -> tuple[str, ...]:
    """What is left of a phrase or a clause without the words that say nothing."""
    words = _WORD.findall(text.casefold().replace("’", "'"))
    empty = FILLERS if TOO.isdisjoint(words) else FILLERS | BEING
    return tuple(word for word in words if word not in empty)


class Axes:
    """The installation's reasons, those that lie on an axis."""

    def __init__(self, reasons: Iterable[FeedbackReason]) -> None:
        rows = [reason for reason in reasons if reason.axis]
        self._reasons = {row.slug: (row.axis, row.pole) for row in rows}
        self._phrases = {
            key(line): (row.axis, row.pole)
            for row in rows
            if row.active
            for line in row.phrases.splitlines()
            if key(line)
        }

    def of_reason(self, slug: str) -> dict[str, str]:
        return dict([self._reasons[slug]]) if slug in self._reasons else {}

    def of_text(self, text: str) -> Said:
        """Clause by clause. Both poles of one axis say neither."""
        clauses = [found for part in _CLAUSE.split(text.casefold()) if (found := key(part))]
        said = [self._phrases.get(clause) for clause in clauses]
        poles: dict[str, set[str]] = {}
        for axis, pole in filter(None, said):
            poles.setdefault(axis, set()).add(pole)
        clear = {axis: next(iter(which)) for axis, which in poles.items() if len(which) == 1}
        return Said(clear, says_more=None in said or len(clear) < len(poles))

    def of_rating(self, rating: Feedback) -> Said:
        """A reason that was ticked says it more plainly than what was written beside it."""
        said = self.of_text(rating.comment if rating.value == -1 else "")
        ticked: dict[str, str] = {}
        for reason in rating.reasons:
            ticked |= self.of_reason(reason["slug"])
        return Said({**said.poles, **ticked}, says_more=said.says_more and not ticked)
