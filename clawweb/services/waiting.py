"""Writes of turns that nobody has begun: how many may wait, who leaves the line, who waited too
long. In which order they are taken is in selectors/waiting.py."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, Min, Q
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb.config import config
from clawweb.events import changed
from clawweb.models import Turn, TurnState, User
from clawweb.sentences import NOBODY_CAME
from clawweb.services import quotas
from clawweb.services.errors import QueueFull

SHARE = 4  # one user may fill this part of the line: a quarter
LONGEST_RETRY = 60  # seconds


def check_room(user: User) -> None:
    """QuotaReached or QueueFull when this user can be given no further reply just now."""
    quotas.check_tokens(user)
    check_line(user)


def check_line(user: User) -> None:
    """QueueFull when no further reply of this user may wait; it says when to try again."""
    most = config().queue_turns
    if not most:
        return
    line = Turn.objects.filter(state=TurnState.PENDING).aggregate(
        all=Count("pk"), own=Count("pk", filter=Q(session__user=user)), since=Min("created_at")
    )
    if line["own"] >= max(1, most // SHARE):
        text = _("%(count)s of your replies are waiting already. Try again in %(seconds)s s.")
    elif line["all"] >= most:
        text = _("Very many people are asking just now. Please try again in %(seconds)s s.")
    else:
        return
    # In a tenth of what the first in line has waited, a tenth of the line has gone on.
    waited = (timezone.now() - line["since"]).total_seconds()
    seconds = min(LONGEST_RETRY, max(1, math.ceil(waited / 10)))
    raise QueueFull(text % {"count": line["own"], "seconds": seconds}, retry_after=seconds)


def take_back(turn: Turn) -> bool:
    """Stop a reply before anybody begins it; False when somebody has."""
    return _end(turn, state=TurnState.STOPPED, stop_requested=True)


def give_up() -> int:
    """Fail the replies that nobody has begun for so long; how many."""
    seconds = config().queue_seconds
    since = timezone.now() - timedelta(seconds=seconds)
    late = Turn.objects.select_related("session").filter(
        state=TurnState.PENDING, created_at__lt=since
    )
    error = NOBODY_CAME % {"n": f"{seconds:.0f}"}
    ended = [
        _end(turn, state=TurnState.FAILED, error=error, error_code="overloaded") for turn in late
    ]
    return sum(ended)


def _end(turn: Turn, **values: Any) -> bool:
    pending = Turn.objects.filter(pk=turn.pk, state=TurnState.PENDING)
    with transaction.atomic():
        ended = bool(pending.update(finished_at=timezone.now(), **values))
        if ended:
            changed(turn.session.user_id, "turn", turn.public_id)
    return ended
