"""Reads of the inspector: sessions by what is in them, and a session at a glance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import Any

from django.db.models import (
    Count,
    Exists,
    Func,
    IntegerField,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Sum,
)
from django.utils import timezone

from clawweb.models import (
    ChatSession,
    Comparison,
    DropReason,
    Feedback,
    SampleState,
    TrainingSample,
    Turn,
    TurnState,
    User,
)
from clawweb.selectors.chat import blind_turns, sessions_of, turns_holding

# The names that receipts have, and the newest sample of a turn that they stand for
RECEIPTS = {
    "saved": Q(state=SampleState.WAITING) | Q(state=SampleState.READY, turn__session__locked=True),
    "counted": Q(state=SampleState.READY, held_back=False, turn__session__locked=False),
    "held_back": Q(state=SampleState.READY, held_back=True, turn__session__locked=False),
    "in_training": Q(state=SampleState.CLAIMED),
    "learned": Q(state=SampleState.TRAINED),
    "not_used": Q(state=SampleState.DROPPED),
    "superseded": Q(state=SampleState.SUPERSEDED),
    "withdrawn": Q(state=SampleState.WITHDRAWN),
}
VOTES = {"liked": Q(value=1), "disliked": Q(value=-1)}
MINUTE = timedelta(minutes=1)
WHOLE = 60  # turns; a longer session's plain ones are drawn together


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a session must hold to be listed; "" and None ask for nothing. Those about turns must
    all fit one turn."""

    words: str = ""
    vote: str = ""  # of VOTES
    reason: str = ""  # a slug
    version: int | None = None  # 0 = the base model
    receipt: str = ""  # of RECEIPTS
    corrected: bool = False
    source: str = ""  # ui | api
    since: date | None = None  # sessions that were in use on these days, not only begun
    until: date | None = None


def sessions_where(user: User, filters: Filters) -> QuerySet[ChatSession]:
    """The user's sessions that fit, newest first; temporary ones are in no list."""
    found = sessions_of(user).filter(temporary=False)
    if filters.since is not None:
        found = found.filter(updated_at__gte=_at(filters.since, time.min))
    if filters.until is not None:
        found = found.filter(created_at__lte=_at(filters.until, time.max))
    turns = Turn.objects.filter(session=OuterRef("pk"))
    fitting = _fitting(turns, filters)
    if filters.words:
        holding = Exists(turns_holding(fitting, filters.words))
        # A name is not of a turn: it may fit while another turn fits the rest
        named = Q(title__icontains=filters.words)
        return found.filter(holding | (named & Exists(fitting) if fitting is not turns else named))
    return found if fitting is turns else found.filter(Exists(fitting))


def _at(day: date, moment: time) -> datetime:
    """In UTC, as rows are asked for it. The first and the last day of the calendar, which UTC may
    have no such hour of, begin and end there."""
    said = datetime.combine(day, moment)
    try:
        return timezone.make_aware(said).astimezone(UTC)
    except OverflowError:
        return said.replace(tzinfo=UTC)


def _fitting(turns: QuerySet[Turn], filters: Filters) -> QuerySet[Turn]:
    """Of the turns those that fit; the very same queryset when nothing is asked."""
    if filters.vote:
        turns = turns.filter(Exists(newest_feedback().filter(VOTES[filters.vote])))
    if filters.reason:
        named = f'"slug": "{filters.reason}"'  # as JSON stands in the column
        turns = turns.filter(Exists(newest_feedback().filter(reasons__icontains=named)))
    if filters.corrected:
        turns = turns.filter(Exists(newest_feedback().exclude(correction="")))
    if filters.receipt:
        turns = turns.filter(Exists(newest_sample().filter(RECEIPTS[filters.receipt])))
    if filters.version is not None:
        turns = turns.filter(version=filters.version, state__in=[*_ANSWERED])
        # Which version wrote a reply is not told while it is compared blind
        turns = turns.exclude(Exists(_blind_comparisons()))
    if filters.source:
        turns = turns.filter(source=filters.source)
    return turns


_ANSWERED = (TurnState.COMPLETE, TurnState.STOPPED, TurnState.INTERRUPTED)


def _blind_comparisons() -> QuerySet[Any]:
    mine = Q(first=OuterRef("pk")) | Q(second=OuterRef("pk"))
    return Comparison.objects.filter(mine, kind=Comparison.BLIND, verdict="")


def newest_feedback() -> QuerySet[Feedback]:
    """Of an outer turn, the feedback that counts."""
    newer = Feedback.objects.filter(turn=OuterRef("turn"), pk__gt=OuterRef("pk"))
    return Feedback.objects.filter(~Exists(newer), turn=OuterRef("pk"))


def newest_sample() -> QuerySet[TrainingSample]:
    """Of an outer turn, the sample that its receipt tells of."""
    newer = TrainingSample.objects.filter(turn=OuterRef("turn"), pk__gt=OuterRef("pk"))
    return TrainingSample.objects.filter(~Exists(newer), turn=OuterRef("pk"))


def _noted(turns: QuerySet[Turn]) -> QuerySet[Turn]:
    """The turns with `is_liked`, `is_disliked`, `is_corrected` and `is_learned`."""
    return turns.annotate(
        is_liked=Exists(newest_feedback().filter(value=1)),
        is_disliked=Exists(newest_feedback().filter(value=-1)),
        is_corrected=Exists(newest_feedback().exclude(correction="")),
        is_learned=Exists(
            TrainingSample.objects.filter(turn=OuterRef("pk"), state=SampleState.TRAINED)
        ),
    )


_COUNTS = {"turns": Count("pk", filter=Q(turn_type="main"))} | {
    name: Count("pk", filter=Q((f"is_{name}", True)))
    for name in ("liked", "disliked", "corrected", "learned")
}


def stats_of(sessions: QuerySet[ChatSession]) -> dict[str, int]:
    """Of these sessions: how many, with how many turns that are none of the background, and how
    many liked, disliked, corrected and learned ones."""
    turns = Turn.objects.filter(session__in=sessions.order_by().values("pk"))
    return {"sessions": sessions.count(), **_noted(turns).aggregate(**_COUNTS)}


def notes_in(sessions: Iterable[ChatSession]) -> dict[int, dict[str, int]]:
    """The same counts of each session, by its key."""
    turns = _noted(Turn.objects.filter(session__in=[row.pk for row in sessions]))
    return {row["session"]: row for row in turns.values("session").annotate(**_COUNTS).order_by()}


def versions_of(user: User) -> list[int]:
    """Numbers of the versions that have written replies of the user, newest first, last the
    base."""
    found = Turn.objects.filter(session__user=user, state__in=_ANSWERED)
    return sorted(found.values_list("version", flat=True).distinct().order_by(), reverse=True)


# A session


class JsonLength(Func):
    """How many items a JSON list has; NULL for NULL."""

    function = "JSON_ARRAY_LENGTH"
    output_field = IntegerField()

    def as_postgresql(self, compiler: Any, connection: Any, **more: Any) -> Any:
        return self.as_sql(compiler, connection, function="JSONB_ARRAY_LENGTH", **more)


def session_facts(session: ChatSession) -> dict[str, Any]:
    """The session in numbers. Tokens are None when none were counted."""
    turns = session.turns.all()
    blind = blind_turns(session)
    written = turns.filter(state__in=_ANSWERED, fallback="").exclude(pk__in=blind)
    numbers = written.values_list("version", flat=True).distinct().order_by("version")
    sums = turns.aggregate(
        read=Sum(JsonLength("prompt_ids")),
        written=Sum(JsonLength("response_ids")),
        ended=Max("finished_at"),
    )
    return {
        **_noted(turns).aggregate(**_COUNTS),
        **sums,
        "versions": list(numbers),
        "blind": bool(blind),
        "took_a_while": bool(sums["ended"]) and sums["ended"] - session.created_at >= MINUTE,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A turn on the map, or several plain ones in a row."""

    id: str
    number: int  # from 1
    page: int
    marks: tuple[str, ...]  # of MARKS, the weightiest first; none: plain
    until: int  # the last turn's number; the same for one turn

    @property
    def mark(self) -> str:
        return self.marks[0] if self.marks else "plain"


MARKS = ("corrected", "disliked", "liked", "judged", "error", "dropped")
_FAILED = (TurnState.FAILED, TurnState.INTERRUPTED)


def ticks_of(session: ChatSession, per_page: int) -> list[Tick]:
    """All turns of the session in order, with what is noted about each.

    In a session of more than WHOLE turns, plain ones that follow each other on one page are one
    tick: the map of two thousand turns stays one that can be read.
    """
    marks = _marks_of(session)
    rows = session.turns.order_by("id").values_list("pk", "public_id")
    ticks = [
        Tick(
            id=public_id,
            number=number,
            page=(number - 1) // per_page + 1,
            marks=marks.get(pk, ()),
            until=number,
        )
        for number, (pk, public_id) in enumerate(rows, 1)
    ]
    return ticks if len(ticks) <= WHOLE else list(_drawn_together(ticks))


def _drawn_together(ticks: list[Tick]) -> Iterable[Tick]:
    for (page, is_noted), group in groupby(ticks, key=lambda tick: (tick.page, bool(tick.marks))):
        row = list(group)
        if is_noted:
            yield from row
        else:
            first, last = row[0], row[-1]
            yield Tick(id=first.id, number=first.number, page=page, marks=(), until=last.number)


def _marks_of(session: ChatSession) -> dict[int, tuple[str, ...]]:
    """What is noted about each turn, by its key; three flat queries however long the session."""
    found: dict[int, set[str]] = {}
    for pk in session.turns.filter(state__in=_FAILED).values_list("pk", flat=True):
        found.setdefault(pk, set()).add("error")
    said = Feedback.objects.filter(turn__session=session).order_by("id")
    newest = {turn: row for turn, *row in said.values_list("turn_id", "value", "correction")}
    for turn, (value, correction) in newest.items():
        marks = found.setdefault(turn, set())
        if value is not None:
            marks.add("liked" if value == 1 else "disliked")
        if correction:
            marks.add("corrected")
    samples = TrainingSample.objects.filter(turn__session=session).order_by("id")
    for turn, state, judged, why in samples.values_list(
        "turn_id", "state", "judgement_id", "drop_reason"
    ):
        marks = found.setdefault(turn, set())
        marks.discard("dropped")  # of an older one
        if judged:
            marks.add("judged")
        if state == SampleState.DROPPED and why != DropReason.NO_SIGNAL:
            marks.add("dropped")
    return {pk: tuple(m for m in MARKS if m in marks) for pk, marks in found.items() if marks}


def rests_before(turns: Iterable[Turn], *, least: timedelta) -> dict[int, datetime]:
    """By a turn's key, since when nothing had been said before it, where that is `least` or more
    ago."""
    rests: dict[int, datetime] = {}
    before: Turn | None = None
    for turn in turns:
        ended = before.finished_at if before else None
        if ended is not None and turn.created_at - ended >= least:
            rests[turn.pk] = ended
        before = turn
    return rests


def instead_of(session: ChatSession) -> dict[int, tuple[int, str]]:
    """Of each turn that was asked where an earlier one stands (a reply asked for again, an edited
    message, a further choice): the number and id of the first one there, by the turn's row."""
    rows = session.turns.order_by("pk").values_list("pk", "public_id", "parent_id", "turn_type")
    first: dict[int | None, tuple[int, str]] = {}
    found = {}
    for number, (pk, public_id, parent, turn_type) in enumerate(rows, 1):
        if turn_type == "main" and first.setdefault(parent, (number, public_id))[1] != public_id:
            found[pk] = first[parent]
    return found
