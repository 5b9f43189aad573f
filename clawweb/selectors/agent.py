"""Reads of what a user's agent has learned: is it better, and what came of everything they said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, Max, Min, OuterRef, QuerySet, Subquery
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from clawweb.models import (
    ACTIVE_JOB,
    GONE_SAMPLE,
    AdapterVersion,
    Event,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.hints import answering_line
from clawweb.selectors.inspector import newest_feedback
from clawweb.selectors.learning import (
    BULKY,
    NEWEST_VOTE,
    Waiting,
    job_json,
    live_adapter,
    trained_on_from,
)
from clawweb.selectors.policy import quiet_words
from clawweb.selectors.quotas import full_for_training

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


def wilson(liked: int, votes: int) -> tuple[float, float]:
    """(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n): Wilson 1927, eq. 5. `votes` > 0."""
    share, z2n = liked / votes, Z * Z / votes
    middle = share + z2n / 2
    reach = Z * math.sqrt(share * (1 - share) / votes + z2n / (4 * votes))
    return max(0.0, (middle - reach) / (1 + z2n)), min(1.0, (middle + reach) / (1 + z2n))


def agent_status(user: User) -> dict[str, Any]:
    """The header's chip: which version answers and how far the next training is."""
    live = live_adapter(user)
    answers = trained_on_from(live)
    job = TrainingJob.objects.filter(user=user, state__in=ACTIVE_JOB).first()
    waiting = Waiting(user)
    return {
        "version": answers.version if answers else 0,
        "adapter": answers.name if answers else None,
        "stands_aside": live.version if live and not answers else None,
        "have": waiting.have,
        "need": waiting.need,
        "paused": user.learning_paused,
        "held_up": full_for_training(user) or quiet_words(waiting.policy, waiting.have),
        **_first_disliked(user, answers),
        "job": job_json(job) if job else None,
    }


def _first_disliked(user: User, live: AdapterVersion | None) -> dict[str, int]:
    """How many of the live version's first five rated replies were disliked, once three are; else
    0. `struggles`, of those in chats of its own: reason enough to offer the way back. `in_older`,
    of those in chats that another version began: its replies, which stand in the prompt, pull there
    for a while what was learned (docs/LOG.md, In one chat)."""
    # By the row, not by its number: what was brought in from elsewhere has numbers of its own.
    before = Turn.objects.filter(session=OuterRef("session"), pk__lt=OuterRef("pk"))
    others = before.filter(turn_type="main").exclude(adapter=live)
    replies = Turn.objects.filter(session__user=user, adapter=live) if live else Turn.objects.none()
    rated = (
        replies.annotate(vote=Subquery(NEWEST_VOTE), in_older=Exists(others))
        .exclude(vote=None)
        .order_by("id")
    )
    counts = {}
    for name, in_older in (("struggles", False), ("in_older", True)):
        votes = rated.filter(in_older=in_older).values_list("vote", flat=True)[:5]
        disliked = sum(vote == -1 for vote in votes)
        counts[name] = disliked if disliked >= 3 else 0
    return counts


def like_rates(user: User) -> list[LikeRate]:
    """Of each version that was rated, the base model first. The newest vote on a reply counts;
    background calls and answers that somebody else's model had to give do not, and of what was
    brought in from elsewhere only the base model's: a version there is none of ours."""
    turns = Turn.objects.filter(
        session__user=user, asked="agent", turn_type="main", fallback=""
    ).annotate(vote=Subquery(NEWEST_VOTE))
    counts: dict[int, list[int]] = {}
    turns = turns.exclude(version__gt=0, adapter=None)
    for version, vote in turns.exclude(vote=None).values_list("version", "vote"):
        counts.setdefault(version, []).append(vote)
    return [
        LikeRate(version=version, liked=sum(vote == 1 for vote in votes), votes=len(votes))
        for version, votes in sorted(counts.items())
    ]


def verdict(rates: Sequence[LikeRate], *, answers: int) -> str:
    """Is the newest rated version better than the one rated before it? In one honest sentence.
    `answers`: the version that answers now, which alone a rollback would take away."""
    if len(rates) < 2:
        return _("There is nothing to compare yet: rate replies of two versions.")
    before, now = rates[-2:]
    names = {"now": version_name(now.version), "before": version_name(before.version)}
    if before.is_few or now.is_few:
        return _("Too few votes to compare %(now)s with %(before)s: ten on each tell more.") % names
    if now.interval[0] > before.interval[1]:
        return _("%(now)s is liked more than %(before)s.") % names
    if now.interval[1] < before.interval[0]:
        if now.version != answers:
            return _("%(now)s is liked less than %(before)s.") % names
        return _("%(now)s is liked less than %(before)s. You can roll it back.") % names
    return _("No clear change from %(before)s to %(now)s: their ranges overlap.") % names


def version_name(version: int) -> str:
    return f"v{version}" if version else _("the base model")


def rated_turns(user: User, *, unused: bool = False) -> QuerySet[Turn]:
    """Turns that the user rated, the one rated last first; or those whose rating is not used, or
    put aside for the opposite."""
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
        idle = [SampleState.DROPPED, SampleState.SUPERSEDED]
        rated = rated.annotate(became=Subquery(newest[:1])).filter(became__in=idle)
    return rated


def funnel(user: User) -> list[tuple[str, int]]:
    """How many ratings got how far: given, usable, learned, and learned by what answers now. Pages
    translate the names, programs get them as they are."""
    counts, learned = stages(user)
    now = learned.filter(adapter__in=answering_line(user)).count()
    return [*counts.items(), (gettext_noop("in what answers now"), now)]


def stages(user: User | None) -> tuple[dict[str, int], QuerySet[TrainingSample]]:
    """Ratings that were given and not taken back, are usable and were learned, with the learned
    samples themselves; everybody's without a user."""
    samples = TrainingSample.objects.filter(replaced_by=None, judgement=None)
    turns = Turn.objects.filter(Exists(newest_feedback().exclude(value=None, comment="")))
    if user is not None:
        samples, turns = samples.filter(user=user), turns.filter(session__user=user)
    learned = samples.filter(state=SampleState.TRAINED)
    counts = {
        gettext_noop("given"): turns.count(),
        gettext_noop("usable"): samples.exclude(
            state__in=[SampleState.DROPPED, *GONE_SAMPLE]
        ).count(),
        gettext_noop("learned"): learned.count(),
    }
    return counts, learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Reign:
    """A time during which one version answered."""

    version: int  # 0 = the base model
    since: datetime
    until: datetime | None  # None = it answers now
    rolled_back: bool  # so it ended


def reigns(user: User) -> list[Reign]:
    """What answered when, from the user's first message here on, oldest first; empty before the
    first version."""
    rows = Event.objects.filter(user=user, kind__in=["adapter_live", "adapter_rolled_back"])
    moves = rows.filter(adapter__isnull=False).order_by("id").select_related("adapter")
    # What was brought in says no template: another installation answered it.
    here = Turn.objects.filter(session__user=user).exclude(template_hash="")
    first = here.aggregate(Min("created_at"))["created_at__min"]
    found: list[Reign] = []
    version, since = 0, first
    for move in moves:
        back = move.kind == "adapter_rolled_back"
        # Going back to an older version is two events: base reigns for no time in between.
        if since is not None and move.at - since >= timedelta(seconds=1):
            found.append(Reign(version=version, since=since, until=move.at, rolled_back=back))
        version, since = 0 if back else move.adapter.version, move.at
    if since is not None and moves:
        found.append(Reign(version=version, since=since, until=None, rolled_back=False))
    return found


def refusals(user: User) -> int:
    """How many versions did not pass their tests; not those that passed and never went live."""
    refused = Event.objects.filter(user=user, kind="adapter_refused")
    return refused.filter(job__state=JobState.REFUSED).count()
