"""Writes of forgetting: training without what learned from a deleted chat, and the end of all that
an agent has learned.

A version cannot unlearn. What learned from a chat that is gone is marked, and can be left behind.
"""

from __future__ import annotations

import logging
import shutil
import uuid

from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils.translation import gettext as _

from clawweb import valkey
from clawweb.config import config
from clawweb.engine import get_engine
from clawweb.events import changed
from clawweb.models import (
    ACTIVE_JOB,
    AdapterState,
    AdapterVersion,
    ChatSession,
    Event,
    GateResult,
    SavedView,
    TrainingJob,
    Transfer,
    Turn,
    User,
)
from clawweb.selectors.learning import live_adapter
from clawweb.services import audit, erasure, jobs, quotas, serving, transfers, versions
from clawweb.services.errors import AlreadyTraining, ServiceError
from rollouts.errors import EngineUnavailable, RolloutError
from rollouts.types import Policy

log = logging.getLogger(__name__)


def train_without(user: User) -> tuple[AdapterVersion | None, TrainingJob | None, str]:
    """Leave the versions behind that learned from deleted chats: the newest one before them answers
    (None = base), and what they learned elsewhere counts again and is trained at once.

    Or why it is not trained now (nothing is left, a quota, the disk), in words; then there is no
    job.
    """
    live = live_adapter(user)
    if live is None or live.forgot_at is None:
        raise ServiceError(_("What answers now has not learned from a deleted chat."))
    active = TrainingJob.objects.filter(user=user, state__in=ACTIVE_JOB).first()
    if active is not None:
        raise AlreadyTraining(_("A version is being trained. Wait for it or cancel the job first."))
    back = versions.leave_behind(user)
    try:
        return back, jobs.queue_job(user=user), ""
    except ServiceError as exc:  # they are left behind all the same
        return back, None, str(exc)


def erase_learning(user: User) -> None:
    """Erase every chat, rating, sample, job and version of the user, and the files made of them.

    The account, its keys and its settings stay, not its saved views. A running job is fenced first:
    whatever its worker still writes finds no row. Version numbers are not used again: those rows
    stay, empty.
    """
    with transaction.atomic():
        held = AdapterVersion.objects.filter(user=user).exclude(state=AdapterState.ERASED)
        names = list(held.values_list("name", flat=True))
        turns = erasure.in_valkey(Turn.objects.filter(session__user=user))
        files = list(Transfer.objects.filter(user=user).values_list("public_id", flat=True))
        audit.record("erase_learning", user, before={"versions": len(names)})
        erasure.fence(user)
        Transfer.objects.filter(user=user).update(lease_token=str(uuid.uuid4()))
        _bury(user, names)
        _erase_rows(user)
        changed(user.pk, "session", "all")
        changed(user.pk, "adapter", "all")
    valkey.forget_texts(turns)
    for name in files:
        transfers.remove_files(name)
    _erase_files(user, names)


def _bury(user: User, names: list[str]) -> None:
    """A tombstone for each chat and version: that it was erased, and nothing of what it was."""
    chats = ChatSession.objects.filter(user=user).values_list("public_id", flat=True)
    erasure.bury(erasure.SESSION, *chats)
    erasure.bury(erasure.VERSION, *names)


def _erase_rows(user: User) -> None:
    """In the order in which rows hang on each other."""
    User.objects.filter(pk=user.pk).update(
        trial=None, trial_share=0, reward_mean=0.0, reward_variance=1.0, reward_count=0
    )
    own_jobs = TrainingJob.objects.filter(user=user)
    quotas.keep_use(user.pk, turns=Turn.objects.filter(session__user=user), jobs=own_jobs)
    ChatSession.objects.filter(user=user).delete()  # with turns, ratings, samples, comparisons
    own_jobs.delete()  # with metrics
    Event.objects.filter(user=user).delete()
    Transfer.objects.filter(user=user).delete()
    SavedView.objects.filter(user=user).delete()
    own = AdapterVersion.objects.filter(user=user)
    GateResult.objects.filter(adapter__in=own).delete()
    own.update(
        state=AdapterState.ERASED,
        note="",
        live_before=[],
        pinned=False,
        live_at=None,  # else ratings would be kept aside for a gate with nothing to compare
        forgot_at=None,
        rolled_back_at=None,
    )


def _erase_files(user: User, names: list[str]) -> None:
    """Out of the model server first: it would die on the next use of a version without files."""
    for name in names:
        try:
            async_to_sync(get_engine().unload)(Policy(adapter=name))
        except EngineUnavailable:
            pass  # it comes back with what is live, which is nothing of this user's
        except RolloutError as exc:
            log.warning("%s is not unloaded, the sweep removes it: %s", name, exc)
            return
    shutil.rmtree(config().var / serving.home_of(user.pk), ignore_errors=True)
