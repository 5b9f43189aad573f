"""How much of the machine a user has had, and may have: counted from rows, and from what the user's
row says of erased ones.

What no row knows is no number: replies whose length was not measured are counted as such, beside.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet, Sum
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from clawweb.config import config
from clawweb.disk import MIB, shortage
from clawweb.models import AdapterState, AdapterVersion, JobState, TrainingJob, Turn, User

NO_PHASE = "bad_replies"  # a count among the timings: wrong answers while it was deployed


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What was used of a limit; a limit of 0 is none."""

    used: float
    limit: int
    resets_at: datetime | None  # None = when something is deleted
    unknown: int = 0  # rows that say no number

    @property
    def is_full(self) -> bool:
        return bool(self.limit) and self.used >= self.limit


def tokens_today(user: User) -> Quota:
    """Tokens of prompts and replies since midnight UTC."""
    midnight = day()
    turns = Turn.objects.filter(session__user=user, created_at__gte=midnight)
    ended = turns.filter(finished_at__isnull=False)
    return Quota(
        used=tokens_of(turns) + _erased(user, "erased_tokens", midnight),
        limit=_limit(user, "tokens_per_day"),
        resets_at=midnight + timedelta(days=1),
        unknown=ended.filter(Q(prompt_tokens=None) | Q(reply_tokens=None)).count(),
    )


def training_this_week(user: User) -> Quota:
    """Minutes of jobs that started since Monday, midnight UTC; the one that runs now included."""
    monday = week()
    jobs = TrainingJob.objects.filter(user=user, started_at__gte=monday)
    return Quota(
        used=(seconds_of(jobs) + _erased(user, "erased_seconds", monday)) / 60,
        limit=_limit(user, "training_minutes_per_week"),
        resets_at=monday + timedelta(days=7),
    )


def day() -> datetime:
    """When the day began that tokens are counted in."""
    return timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)


def week() -> datetime:
    """When the week began that minutes of training are counted in."""
    midnight = day()
    return midnight - timedelta(days=midnight.weekday())


def tokens_of(turns: QuerySet[Turn]) -> int:
    """Tokens of the turns' prompts and replies, where they are known."""
    sums = turns.aggregate(prompt=Sum("prompt_tokens"), reply=Sum("reply_tokens"))
    return (sums["prompt"] or 0) + (sums["reply"] or 0)


def seconds_of(jobs: QuerySet[TrainingJob]) -> float:
    """What the jobs measured of their phases, without their waits: in the queue again, for the
    model server. One that ended or is before its gate has measured nothing: then from its start to
    its end; nothing of one that ended, by a clock that was set back, before it began."""
    begun = jobs.exclude(state=JobState.QUEUED, timings={})
    rows = begun.values_list("timings", "started_at", "finished_at")
    return sum(
        sum(phase_seconds(timings).values())
        or max(0.0, ((end or timezone.now()) - start).total_seconds())
        for timings, start, end in rows
    )


def _erased(user: User, what: str, since: datetime) -> float:
    """From the row as it is now: a socket's own user is as old as the socket."""
    row = User.objects.filter(pk=user.pk, **{f"{what}_since": since.date()})
    return row.values_list(what, flat=True).first() or 0


def phase_seconds(timings: dict[str, Any]) -> dict[str, float]:
    """A job's phases with their seconds; what else was measured or counted stands beside them."""
    seconds = {name: value for name, value in timings.items() if isinstance(value, int | float)}
    seconds.pop(NO_PHASE, None)
    return seconds


def disk(user: User) -> Quota:
    """MiB of the versions whose files are there."""
    rows = AdapterVersion.objects.filter(user=user).exclude(state=AdapterState.ERASED)
    size = rows.aggregate(size=Sum("size_bytes"))["size"] or 0
    return Quota(used=size / MIB, limit=config().disk_mib, resets_at=None)


def versions_kept(user: User) -> Quota:
    """Versions whose files are there. More than the limit stay only while they are in use."""
    rows = AdapterVersion.objects.filter(user=user).exclude(state=AdapterState.ERASED)
    return Quota(used=rows.count(), limit=config().versions_kept, resets_at=None)


def _limit(user: User, name: str) -> int:
    """The user's own, or the installation's."""
    own: int | None = getattr(user, name)
    return getattr(config(), name) if own is None else own  # type: ignore[no-any-return]


def has_token_limit(user: User) -> bool:
    return _limit(user, "tokens_per_day") > 0


def full_for_training(user: User) -> str:
    """Why no job may start now, in words; empty while one may. Asks the rows only for limits that
    are set."""
    if words := shortage():
        return words
    if _limit(user, "training_minutes_per_week"):
        minutes = training_this_week(user)
        if minutes.is_full:
            words = _(
                "Your agent has trained %(used)s of %(limit)s minutes this week. It goes on "
                "%(when)s; your ratings wait until then."
            )
            when = _in_words(minutes.resets_at)
            return words % {"used": f"{minutes.used:.0f}", "limit": minutes.limit, "when": when}
    if config().disk_mib:
        space = disk(user)
        if space.is_full:
            words = _(
                "Your versions take %(used)s of %(limit)s MB. Delete old ones under Versions; your "
                "ratings wait until then."
            )
            return words % {"used": f"{space.used:.0f}", "limit": space.limit}
    return ""


def _in_words(at: datetime | None) -> str:
    if at is None:
        return ""
    return _("on %(day)s at %(time)s UTC") % {"day": date_format(at, "l"), "time": f"{at:%H:%M}"}
