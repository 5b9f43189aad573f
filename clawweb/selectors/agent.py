"""Reads of what a user's agent has learned: is it better, and what came of everything they said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Exists, Max, OuterRef, QuerySet, Subquery
from django.utils.translation import gettext as _

from clawweb.models import (
    GONE_SAMPLE,
    OPEN_SAMPLE,
    AdapterVersion,
    Event,
    SampleState,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.learning import BULKY, BULKY_OF_TURN, NEWEST_VOTE

Z = 1.96  # of a 95 % interval
FEW = 10  # votes below which a share says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeRate:
    """How one version's replies were rated. `low` and `high`: Wilson's 95 % interval."""

    version: int  # 0 = the base model
    liked: int
    votes: int

    @property
    def share(self) -> float:
        return self.liked / self.votes

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.liked, self.votes)

    @property
    def is_few(self) -> bool:
        return self.votes < FEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the user asked for, in whichever words, with what came of it."""

    text: str
    times: int
    newest: datetime
    version: int | None  # the newest version that learned it; None = none has
    waits: bool  # some of it is yet to be trained on
    is_read: bool  # a judge read it from what came next; nobody said it in these words
    session: str  # where it was said last
    turn: str


def wilson(liked: int, votes: int) -> tuple[float, float]:
    """(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n): Wilson 1927, eq. 5. `votes` > 0."""
    share, z2n = liked / votes, Z * Z / votes
    middle = share + z2n / 2
    reach = Z * math.sqrt(share * (1 - share) / votes + z2n / (4 * votes))
    return max(0.0, (middle - reach) / (1 + z2n)), min(1.0, (middle + reach) / (1 + z2n))


def like_rates(user: User) -> list[LikeRate]:
    """Of each version that was rated, the base model first. The newest vote on a reply counts;
    background calls and answers that somebody else's model had to give do not."""
    turns = Turn.objects.filter(
        session__user=user, asked="agent", turn_type="main", fallback=""
    ).annotate(vote=Subquery(NEWEST_VOTE))
    counts: dict[int, list[int]] = {}
    for version, vote in turns.exclude(vote=None).values_list("version", "vote"):
        counts.setdefault(version, []).append(vote)
    return [
        LikeRate(version=version, liked=sum(vote == 1 for vote in votes), votes=len(votes))
        for version, votes in sorted(counts.items())
    ]


def verdict(rates: Sequence[LikeRate]) -> str:
    """Is the newest rated version better than the one rated before it? In one honest sentence."""
    if len(rates) < 2:
        return _("There is nothing to compare yet: rate replies of two versions.")
    before, now = rates[-2:]
    names = {"now": version_name(now.version), "before": version_name(before.version)}
    if before.is_few or now.is_few:
        return _("Too few votes to compare %(now)s with %(before)s: ten on each tell more.") % names
    if now.interval[0] > before.interval[1]:
        return _("%(now)s is liked more than %(before)s.") % names
    if now.interval[1] < before.interval[0]:
        return _("%(now)s is liked less than %(before)s. You can roll it back.") % names
    return _("No clear change from %(before)s to %(now)s: their ranges overlap.") % names


def version_name(version: int) -> str:
    return f"v{version}" if version else _("the base model")


def notes_of(user: User) -> list[Note]:
    """What the user asked for, each text once, newest first; what was taken back is left out."""
    shown = _noted(user).filter(turn__session__deleted_at=None)
    texts: dict[str, list[TrainingSample]] = {}
    for sample in shown.select_related("turn__session", "adapter").order_by("-id"):
        texts.setdefault(_words(sample), []).append(sample)
    return [_note(text, samples) for text, samples in texts.items()]


def _note(text: str, samples: Sequence[TrainingSample]) -> Note:
    learned = [
        sample.adapter.version
        for sample in samples
        if sample.state == SampleState.TRAINED
        and sample.adapter is not None
        and sample.adapter.rolled_back_at is None
    ]
    return Note(
        text=text,
        times=len(samples),
        newest=samples[0].created_at,
        version=max(learned, default=None),
        waits=any(sample.state in OPEN_SAMPLE for sample in samples),
        is_read=all(sample.feedback_id is None for sample in samples),
        session=samples[0].turn.session.public_id,
        turn=samples[0].turn.public_id,
    )


def samples_saying(user: User, text: str) -> list[TrainingSample]:
    """The samples behind a note."""
    rows = _noted(user).select_related("turn").order_by("id")
    return [sample for sample in rows if _words(sample) == text]


def _noted(user: User) -> QuerySet[TrainingSample]:
    """The samples that ask for something and that nothing has replaced."""
    said = TrainingSample.objects.filter(user=user, replaced_by=None).exclude(state__in=GONE_SAMPLE)
    return said.exclude(hint="", correction="").defer(*BULKY_OF_TURN)


def _words(sample: TrainingSample) -> str:
    return sample.hint or sample.correction


def rated_turns(user: User, *, unused: bool = False) -> QuerySet[Turn]:
    """Turns that the user rated, the one rated last first; or those whose rating is not used."""
    rated = (
        Turn.objects.filter(session__user=user, session__deleted_at=None)
        .annotate(said_last=Max("feedback__id"))
        .exclude(said_last=None)
        .select_related("session", "session__user", "adapter")
        .prefetch_related("feedback", "samples", "samples__job", "samples__adapter")
        .defer(*BULKY)
        .order_by("-said_last")
    )
    if unused:
        newest = TrainingSample.objects.filter(turn=OuterRef("pk")).order_by("-id").values("state")
        rated = rated.annotate(became=Subquery(newest[:1])).filter(became=SampleState.DROPPED)
    return rated


def funnel(user: User) -> list[tuple[str, int]]:
    """How many ratings got how far: given, usable, learned, and learned by what answers now."""
    samples = TrainingSample.objects.filter(user=user, replaced_by=None, judgement=None)
    standing = AdapterVersion.objects.filter(pk=OuterRef("adapter_id"), rolled_back_at=None)
    given = Turn.objects.filter(session__user=user, feedback__isnull=False).distinct().count()
    usable = samples.exclude(state__in=[SampleState.DROPPED, *GONE_SAMPLE])
    learned = samples.filter(state=SampleState.TRAINED)
    return [
        (_("given"), given),
        (_("usable"), usable.count()),
        (_("learned"), learned.count()),
        (_("in versions that stand"), learned.filter(Exists(standing)).count()),
    ]


def milestones(user: User) -> list[dict[str, Any]]:
    """When versions went live and were taken back, newest first."""
    kinds = ["adapter_live", "adapter_rolled_back", "adapter_refused"]
    rows = Event.objects.filter(user=user, kind__in=kinds).select_related("adapter")
    return [
        {"kind": row.kind, "version": row.adapter.version if row.adapter else 0, "at": row.at}
        for row in rows.order_by("-id")[:20]
    ]
