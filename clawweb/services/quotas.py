"""What is refused because a user has had enough for now, and what was used in rows that are erased.
Reads are in selectors/quotas.py."""

from __future__ import annotations

import math
from datetime import datetime

from django.db.models import Case, F, QuerySet, Value, When
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb import disk
from clawweb.models import TrainingJob, Turn, User
from clawweb.selectors import quotas
from clawweb.sentences import counted
from clawweb.services.errors import DiskFull, QuotaReached


def check_tokens(user: User) -> None:
    """QuotaReached once the day's tokens are used up; says when there are new ones."""
    if not quotas.has_token_limit(user):
        return  # nobody waits for a sum that nobody needs
    today = quotas.tokens_today(user)
    if today.is_full and today.resets_at:
        seconds = math.ceil((today.resets_at - timezone.now()).total_seconds())
        raise QuotaReached(
            _(
                "You have used %(used)s of %(limit)s tokens today. There are new ones at 00:00 "
                "UTC, in %(time)s."
            )
            % {
                "used": counted(today.used),
                "limit": counted(today.limit),
                "time": _duration(seconds),
            },
            retry_after=seconds,
        )


def check_training(user: User) -> None:
    """QuotaReached while the user's minutes or disk are used up; DiskFull while everybody's is."""
    check_disk()
    words = quotas.full_for_training(user)
    if words:
        raise QuotaReached(words)


def check_disk() -> None:
    """DiskFull while too little is free for anything big to start."""
    words = disk.shortage()
    if words:
        raise DiskFull(words)


def keep_use(
    user_id: int, *, turns: QuerySet[Turn], jobs: QuerySet[TrainingJob] | None = None
) -> None:
    """Onto the user what quotas count of rows that are erased next: who deletes a chat has had its
    tokens all the same. In the transaction that erases them."""
    day, week = quotas.day(), quotas.week()
    _keep(user_id, "erased_tokens", day, quotas.tokens_of(turns.filter(created_at__gte=day)))
    if jobs is not None:
        seconds = quotas.seconds_of(jobs.filter(started_at__gte=week))
        _keep(user_id, "erased_seconds", week, seconds)


def _keep(user_id: int, what: str, since: datetime, used: float) -> None:
    """One write: what is erased elsewhere at the same time is added, too."""
    if used:
        same = When(**{f"{what}_since": since.date()}, then=F(what) + used)
        values = {what: Case(same, default=Value(used)), f"{what}_since": since.date()}
        User.objects.filter(pk=user_id).update(**values)


def _duration(seconds: int) -> str:
    hours, minutes = divmod(-(-seconds // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
