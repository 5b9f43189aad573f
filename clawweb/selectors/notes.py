"""Reads of what a user asked for: each wish once, with where it was said and what came of it.

A ticked reason is one wish however it is worded by now; free words are the same wish when they
differ in case, spaces and the mark at their end alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q, QuerySet
from django.utils.text import Truncator
from django.utils.translation import gettext

from clawweb.models import (
    OPEN_SAMPLE,
    AdapterVersion,
    DropReason,
    FeedbackReason,
    SampleState,
    TrainingJob,
    TrainingSample,
    User,
)
from clawweb.selectors.hints import answering_line, said_at
from clawweb.selectors.learning import BULKY_OF_TURN
from clawweb.selectors.poles import Axes, Said
from training.config import TrainConfig

SHOWN = 8  # places where a wish was said, the newest ones
STUBBORN = 3  # times that a wish is said again, and of more than half of the replies rated since
RECENT = 100  # ratings that say something: among these a chat looks for what is said in vain
WAYS = ("reason", "comment", "correction", "read")  # read: by a judge, from what came next


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A rating that asked for it."""

    session: str
    turn: str
    at: datetime
    state: str  # learned, waiting, aside (for the gate), out (its chat is kept out of training),
    # left (learned, by what does not answer now) or unused


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Of how many rated replies the user said it, before a version that answers now, or one of its
    line, had learned it and since; what other versions wrote is not counted."""

    before: int
    rated_before: int
    since: int
    rated_since: int
    written_since: bool  # they wrote under one of these what they wanted instead

    @property
    def is_stubborn(self) -> bool:
        """Words do not carry it: the model was told, and most of its replies miss it still."""
        return self.since >= STUBBORN and 2 * self.since > self.rated_since


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the user asked for, in whichever words, with what came of it."""

    text: str
    label: str  # of the reason that was ticked; "" for words
    way: str  # one of WAYS
    times: int
    learned: int  # of these, in the version that answers now
    waiting: int  # to be trained on
    aside: int  # kept for the gate, or in chats that are kept out of training
    left: int  # in versions alone that do not answer now, as after a rollback
    newest: datetime
    version: int | None  # the newest version that learned it and stands; None = none has
    by_thumb: bool  # its thumbs alone were learned
    by_method: bool  # as the method left words aside, not as the model does not hear them
    left_version: int | None  # the newest that learned it and was rolled back
    replaced_by: str  # a newer wish that contradicts this one: its label, translated, or words
    refused: int  # of these, in versions alone that did not pass the gate
    is_written: bool  # some reply was also put as they wanted it
    effect: Effect | None  # None = nothing that answers now has learned it
    evidence: list[Evidence]  # newest first

    @property
    def unused(self) -> int:
        return self.times - self.learned - self.waiting - self.aside - self.left

    @property
    def waits(self) -> bool:
        return self.waiting > 0

    @property
    def is_read(self) -> bool:
        """A judge read it from what came next; nobody said it in these words."""
        return self.way == "read"

    @property
    def is_told(self) -> bool:
        """Said of replies, and not written in their place: the same may be said of many."""
        return self.way in ("reason", "comment")

    @property
    def wants_writing(self) -> bool:
        """Whether a reply as the user would have had it may teach what their words did not: most
        replies miss what was learned, or what learned it failed the gate."""
        if self.by_thumb or self.replaced_by or not self.is_told:
            return False
        if self.effect is None:
            return self.fails_the_gate
        return self.effect.is_stubborn and not self.effect.written_since

    @property
    def fails_the_gate(self) -> bool:
        """Said often, and learned by refused versions alone."""
        return self.refused >= STUBBORN and self.version is None and not self.is_written


@dataclass(slots=True)
class Wish:
    """A note while it is gathered: its name, its newest wording, the samples that said it."""

    way: str
    name: str
    text: str
    samples: list[TrainingSample]


def notes_of(user: User) -> list[Note]:
    """What the user asked for, each once, newest first; what was taken back is left out."""
    return [note for _, note in _noted(user, _said(user, deleted=False))]


def stubborn_reasons(user: User) -> set[str]:
    """The reasons by which the user still asks in vain for what was learned, by their slugs."""
    noted = _noted(user, _said(user, deleted=False)[:RECENT])
    return {wish.name for wish, note in noted if wish.way == "reason" and note.wants_writing}


def _noted(user: User, said: Iterable[TrainingSample]) -> list[tuple[Wish, Note]]:
    reasons = {row.slug: row for row in FeedbackReason.objects.all()}
    wishes = _wishes(said)
    over = _contradicted(wishes, reasons)
    answers = set(answering_line(user))
    rated = _rated(user, answers)
    return [
        (wish, _note(wish, reasons, over.get((wish.way, wish.name), ""), answers, rated))
        for wish in wishes
    ]


def samples_saying(user: User, text: str) -> tuple[str, str, list[TrainingSample]]:
    """How a note is said, its name and the samples behind it; ("", "", []) when there is none."""
    for wish in _wishes(_said(user, deleted=True)):
        if _normal(wish.text) == _normal(text):
            return wish.way, wish.name, wish.samples
    return "", "", []


def _standing(user: User) -> QuerySet[TrainingSample]:
    """What no newer rating has replaced, and nobody took back."""
    rows = TrainingSample.objects.filter(user=user, replaced_by=None)
    return rows.exclude(state__in=[SampleState.WITHDRAWN, SampleState.ERASED])


def _rated(user: User, answers: set[int]) -> dict[int, int]:
    """How many replies of the base (0) and of each of these versions the user gave a thumb."""
    rows = _standing(user).filter(judgement=None, turn__session__deleted_at=None)
    base = Q(turn__adapter=None, turn__version=0)
    rows = rows.filter(base | Q(turn__adapter__in=answers)).exclude(reward=None).order_by()
    return dict(rows.values_list("turn__version").annotate(Count("turn", distinct=True)))


def _said(user: User, *, deleted: bool) -> QuerySet[TrainingSample]:
    """The samples that ask for something and that no newer rating has replaced, newest first."""
    rows = _standing(user).exclude(hint="", correction="")
    if not deleted:
        rows = rows.filter(turn__session__deleted_at=None)
    found = rows.select_related("turn__session", "adapter", "job", "feedback", "judgement")
    return found.defer(*BULKY_OF_TURN, "token_effects").order_by("-id")


def _wishes(samples: Iterable[TrainingSample]) -> list[Wish]:
    wishes: dict[tuple[str, str], Wish] = {}
    for sample in samples:
        for way, name, text in _words(sample):
            wish = wishes.setdefault((way, name), Wish(way, name, text, []))
            wish.samples.append(sample)
    return list(wishes.values())


def _words(sample: TrainingSample) -> Iterator[tuple[str, str, str]]:
    """Each thing that the sample asks for: the way it was said, its name, its words."""
    said = sample.feedback
    if said is None:
        yield "read", _normal(sample.hint), sample.hint
        return
    for reason in said.reasons:
        yield "reason", reason["slug"], reason["hint"]
    if said.comment and said.value == -1:  # praise is no instruction
        yield "comment", _normal(said.comment), said.comment
    if said.correction:
        yield "correction", _normal(said.correction), said.correction


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!… ")


def _contradicted(
    wishes: list[Wish], reasons: dict[str, FeedbackReason]
) -> dict[tuple[str, str], str]:
    """Wishes for one pole of an axis while a newer rating asks for another, with that one's label,
    or its words."""
    axes = Axes(reasons.values())
    wins: dict[str, tuple[str, int, str]] = {}  # axis -> pole, the sample, what it says
    over: dict[tuple[str, str], str] = {}
    at = said_at(sample for wish in wishes for sample in wish.samples)
    for wish in sorted(wishes, key=lambda wish: _holds(wish, at), reverse=True):
        reason = reasons.get(wish.name) if wish.way == "reason" else None
        said, holds = _said_by(wish, axes), _holds(wish, at)
        against = [wins[axis] for axis, pole in said.poles.items() if axis in wins
                   if wins[axis][0] != pole]  # fmt: skip
        if not against and holds:
            name = gettext(reason.label) if reason else Truncator(wish.text).chars(60)
            for axis, pole in said.poles.items():
                wins.setdefault(axis, (pole, holds, name))
        # Not what was said in one breath.
        elif against and against[0][1] > (holds or _newest(wish, at)) and not said.says_more:
            over[wish.way, wish.name] = against[0][2]
    return over


def _holds(wish: Wish, at: Mapping[int, int]) -> int:
    """When it was said last, of what teaches it or will; 0 when nothing does."""
    states = (*OPEN_SAMPLE, SampleState.TRAINED)
    holding = (at[s.pk] for s in wish.samples if s.state in states and _is_in(s, wish))
    return max(holding, default=0)


def _newest(wish: Wish, at: Mapping[int, int]) -> int:
    return max(at[sample.pk] for sample in wish.samples)


def _is_in(sample: TrainingSample, wish: Wish) -> bool:
    """Whether the sample has not let go of it: a reason that was contradicted goes alone where the
    words beside it said more."""
    if wish.way == "correction":
        return bool(sample.correction)
    said = sample.feedback.reasons if sample.feedback and wish.way == "reason" else []
    return all(each["hint"] in sample.hint for each in said if each["slug"] == wish.name)


def _said_by(wish: Wish, axes: Axes) -> Said:
    """A correction is an answer, and what a judge read was said by nobody: they have no pole."""
    if wish.way == "reason":
        return Said(axes.of_reason(wish.name), says_more=False)
    return axes.of_text(wish.text if wish.way == "comment" else "")


def _note(
    wish: Wish,
    reasons: dict[str, FeedbackReason],
    over: str,
    answers: set[int],
    rated: dict[int, int],
) -> Note:
    states = [
        _state(sample, answers) if _is_in(sample, wish) else "unused" for sample in wish.samples
    ]
    taught = [
        (sample.adapter, sample)
        for sample in wish.samples
        if sample.state == SampleState.TRAINED
        and sample.adapter is not None
        and _is_in(sample, wish)
    ]
    standing = [(row.version, sample) for row, sample in taught if row.rolled_back_at is None]
    left = [row.version for row, _ in taught if row.rolled_back_at is not None]
    reason = reasons.get(wish.name) if wish.way == "reason" else None
    return Note(
        text=wish.text,
        label=reason.label if reason else "",
        way=wish.way,
        times=len(wish.samples),
        learned=states.count("learned"),
        waiting=states.count("waiting"),
        aside=states.count("aside") + states.count("out"),
        left=states.count("left"),
        newest=wish.samples[0].created_at,
        version=max((version for version, _ in standing), default=None),
        by_thumb=bool(standing) and all(sample.by_thumb for _, sample in standing),
        by_method=all(_leaves_words_aside(sample.job) for _, sample in standing),
        left_version=max(left, default=None),
        replaced_by=over,
        refused=sum(sample.drop_reason == DropReason.REFUSED for sample in wish.samples),
        is_written=any(sample.correction for sample in wish.samples),
        effect=_effect(wish, [row for row, _ in taught if row.pk in answers], answers, rated),
        evidence=[
            Evidence(
                session=sample.turn.session.public_id,
                turn=sample.turn.public_id,
                at=sample.created_at,
                state=state,
            )
            for sample, state in zip(wish.samples[:SHOWN], states, strict=False)
        ],
    )


def _effect(
    wish: Wish, learned_by: list[AdapterVersion], answers: set[int], rated: dict[int, int]
) -> Effect | None:
    first = min((row.version for row in learned_by), default=None)
    if first is None:
        return None
    said = [sample for sample in wish.samples if sample.feedback and sample.reward is not None]
    of_base = [s for s in said if s.turn.adapter_id is None and s.turn.version == 0]
    of_line = [sample for sample in said if sample.turn.adapter_id in answers]
    since = [sample for sample in of_line if sample.turn.version >= first]
    return Effect(
        before=len(of_base) + len(of_line) - len(since),
        rated_before=sum(n for version, n in rated.items() if version < first),
        since=len(since),
        rated_since=sum(n for version, n in rated.items() if version >= first),
        written_since=any(sample.correction for sample in since),
    )


def _leaves_words_aside(job: TrainingJob | None) -> bool:
    return job is not None and not TrainConfig(method=job.method).distils


def _state(sample: TrainingSample, answers: set[int]) -> str:
    if sample.state in OPEN_SAMPLE:
        if sample.turn.session.locked and sample.state != SampleState.CLAIMED:
            return "out"
        return "aside" if sample.held_back else "waiting"
    if sample.state != SampleState.TRAINED or sample.adapter_id is None:
        return "unused"
    return "learned" if sample.adapter_id in answers else "left"
