"""Reads of the training policy: what starts a job by itself, and when none starts."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb.config import config
from clawweb.models import TrainingPolicy
from training.config import METHODS


def training_policy() -> TrainingPolicy:
    """The admins'; an empty one where they have none."""
    return TrainingPolicy.objects.first() or TrainingPolicy()


def batch_of(policy: TrainingPolicy) -> int:
    """How many counted ratings start a job by themselves."""
    return policy.batch or config().batch


def method_of(policy: TrainingPolicy) -> str:
    """How training learns where nobody says how."""
    return policy.method or METHODS[0]


def quiet_until(policy: TrainingPolicy, now: datetime) -> datetime | None:
    """When the quiet hours end that `now` (UTC) is in; None outside of them."""
    first, end = policy.quiet_from, policy.quiet_until
    if first is None or end is None:
        return None
    time = now.time()
    over_midnight = first > end
    is_quiet = (time >= first or time < end) if over_midnight else first <= time < end
    if not is_quiet:
        return None
    ends = datetime.combine(now.date(), end, tzinfo=now.tzinfo)
    return ends if ends > now else ends + timedelta(days=1)


def quiet_words(policy: TrainingPolicy, have: int) -> str:
    """Why a full batch starts no job now, in words; empty while it may, or is not full."""
    end = quiet_until(policy, timezone.now()) if have >= batch_of(policy) else None
    words = _("No training starts by itself before %(time)s UTC. You can start one yourself.")
    return words % {"time": f"{end:%H:%M}"} if end else ""
