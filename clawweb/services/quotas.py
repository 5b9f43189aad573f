"""What is refused because a user has had enough for now. Reads are in selectors/quotas.py."""

from __future__ import annotations

import math

from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb import disk
from clawweb.models import User
from clawweb.selectors import quotas
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
                "used": f"{today.used:,}",
                "limit": f"{today.limit:,}",
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


def _duration(seconds: int) -> str:
    hours, minutes = divmod(-(-seconds // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
