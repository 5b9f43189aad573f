"""What a wish asks for among opposites: by the reason that was ticked, or by its words.

Wishes lie on axes (length, layout, tone …), and two poles of one contradict. A reason names its
pole. A clause of one's own has it when it says no more than a reason's phrase, or one of the ways
of saying it in opposites.json; and what one clause asks for another refuses by a "don't", whatever
it is. A false find would put a rating aside, so nothing is read out of what says more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from pathlib import Path

from clawweb.models import Feedback, FeedbackReason
from clawweb.selectors.wording import Clause, Manner, clauses

Pole = tuple[str, str]  # axis, pole
_Way = tuple[bool, Manner, tuple[str, ...]]  # of a clause: is wanted, how it is put, what
PLACES = frozenset({"firstly", "lastly", "start", "end", "top", "bottom", "beginn", "anfang"})
AS = {  # how a way of saying it may be put, for what is said
    Manner.ASKS: [Manner.ASKS, Manner.BEGS, Manner.PLAIN, Manner.DENIES],
    Manner.BEGS: [Manner.BEGS, Manner.PLAIN, Manner.ASKS],
    Manner.PLAIN: [Manner.PLAIN, Manner.BEGS],
}
MOST_WORDS = 4  # on an axis of its own: what is longer tells of more than one thing


@dataclass(frozen=True, slots=True)
class Said:
    """The poles that words ask for, by axis, and whether they say more than that."""

    poles: dict[str, str]
    says_more: bool


class Axes:
    """The installation's reasons, those that lie on an axis, and what people say of their own."""

    def __init__(self, reasons: Iterable[FeedbackReason]) -> None:
        rows = [reason for reason in reasons if reason.axis]
        self._reasons = {row.slug: (row.axis, row.pole) for row in rows}
        told = [
            (line, (row.axis, row.pole))
            for row in rows
            if row.active
            for line in row.phrases.splitlines()
        ]
        self._ways = _ways() | {way: pole for line, pole in told for way in _ways_of(line)}
        self._poles: dict[str, set[str]] = {}
        for axis, pole in [*self._ways.values(), *self._reasons.values()]:
            self._poles.setdefault(axis, set()).add(pole)

    def of_reason(self, slug: str) -> dict[str, str]:
        return dict([self._reasons[slug]]) if slug in self._reasons else {}

    def of_text(self, text: str) -> Said:
        """Clause by clause. Both poles of one axis say neither."""
        found = [self._pole(clause) or _own_pole(clause) for clause in clauses(text)]
        poles: dict[str, set[str]] = {}
        for axis, pole in filter(None, found):
            poles.setdefault(axis, set()).add(pole)
            if len(self._poles.get(axis, ())) > 2:
                poles.setdefault(_refusal(axis, pole), set()).add("yes")
        clear = {axis: next(iter(which)) for axis, which in poles.items() if len(which) == 1}
        return Said(clear, says_more=None in found or len(clear) < len(poles))

    def of_rating(self, rating: Feedback, hint: str) -> Said:
        """A reason that was ticked says it more plainly than what was written beside it. `hint` is
        what is left of the rating, by now."""
        said, ticked = self._words(rating), self._ticked(rating, hint)
        return Said({**said.poles, **ticked}, says_more=said.says_more and not ticked)

    def left_of(self, rating: Feedback, hint: str, wanted: Mapping[str, str]) -> str:
        """What a rating still asks for when a newer wish contradicts a reason of it: its words, if
        they speak of more than its reasons do and would not be put aside by themselves, with the
        other reasons. Nothing else is taken apart."""
        said, ticked = self._words(rating), self._ticked(rating, hint)
        is_beside = said.says_more or bool(said.poles.keys() - ticked.keys())
        if not ticked or not is_beside or (_against(said.poles, wanted) and not said.says_more):
            return ""
        kept = [
            reason["hint"]
            for reason in _reasons_in(rating, hint)
            if not _against(self.of_reason(reason["slug"]), wanted)
        ]
        return " ".join([*kept, rating.comment])

    def _words(self, rating: Feedback) -> Said:
        return self.of_text(rating.comment if rating.value == -1 else "")

    def _ticked(self, rating: Feedback, hint: str) -> dict[str, str]:
        ticked: dict[str, str] = {}
        for reason in _reasons_in(rating, hint):
            ticked |= self.of_reason(reason["slug"])
        return ticked

    def _pole(self, clause: Clause) -> Pole | None:
        """By a way of saying it, or by refusing that: who wants no feet wants the other of two; of
        several languages, any other. Where in the reply it should be says nothing more."""
        inner = tuple(word for word in clause.subject if word not in PLACES)
        for subject in (clause.subject, inner):
            found = self._as_said(clause.is_wanted, clause.manner, subject)
            if found is not None:
                return found
            if clause.manner is Manner.ASKS and not clause.is_too_much:
                axis, pole = self._as_said(not clause.is_wanted, Manner.ASKS, subject) or ("", "")
                others = self._poles.get(axis, set()) - {pole}
                if len(others) > 1:
                    return _refusal(axis, pole), "no"
                if others:
                    return axis, others.pop()
        return None

    def _as_said(self, is_wanted: bool, manner: Manner, subject: tuple[str, ...]) -> Pole | None:
        """Where the way of saying it asks, so must what is said: "more text", not "text only"."""
        manners = AS.get(manner, [manner])
        ways = ((is_wanted, each, subject) for each in manners)
        return next(filter(None, map(self._ways.get, ways)), None)


def _refusal(axis: str, pole: str) -> str:
    """Of more than two poles, one is refused on an axis of its own: which other, nobody said."""
    return f"{axis}: {pole}"


def _reasons_in(rating: Feedback, hint: str) -> list[dict[str, str]]:
    """Without those that were put aside while the rest of the rating stayed."""
    return [reason for reason in rating.reasons if reason["hint"] in hint]


def _against(poles: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return any(wanted.get(axis, pole) != pole for axis, pole in poles.items())


def _own_pole(clause: Clause) -> Pole | None:
    """On an axis of its own: "mention the year" and its "don't" contradict."""
    is_short = 0 < len(clause.subject) <= MOST_WORDS
    if not is_short or clause.manner is not Manner.ASKS or clause.is_too_much:
        return None
    return f"“{' '.join(clause.subject)}”", "yes" if clause.is_wanted else "no"


@cache
def _ways() -> dict[_Way, Pole]:
    told = json.loads(Path(__file__).with_name("opposites.json").read_text(encoding="utf-8"))
    return {
        way: (axis, pole)
        for axis, poles in told.items()
        for pole, phrases in poles.items()
        for phrase in phrases
        for written in _written_out(phrase)
        for way in _ways_of(written)
    }


def _written_out(phrase: str) -> list[str]:
    """Each that "(too|so) vague" stands for."""
    parts = [part.split("|") for part in re.split(r"[()]", phrase)]
    return ["".join(each) for each in product(*parts)]


@lru_cache(maxsize=1024)
def _ways_of(phrase: str) -> list[_Way]:
    said = (clause for clause in clauses(phrase) if clause.subject)
    return [(clause.is_wanted, clause.manner, clause.subject) for clause in said]
