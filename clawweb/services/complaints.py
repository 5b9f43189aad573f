"""Writes of complaints asked again: the live version answers what an older one answered badly."""

from __future__ import annotations

from django.utils.translation import gettext as _

from clawweb.models import Comparison, Turn, User
from clawweb.selectors.complaints import complaints_of, rechecks_by
from clawweb.selectors.learning import live_adapter
from clawweb.services import comparisons
from clawweb.services.errors import (
    CannotCompare,
    EngineDown,
    NothingToRate,
    NotRecorded,
    QuotaReached,
)


def ask_again(*, user: User, turn: Turn | None = None) -> int:
    """Have the live version answer the newest complaints, or one of them, that it has not answered
    yet; how many are on their way. CannotCompare when base answers; EngineDown."""
    live = live_adapter(user)
    if live is None:
        raise CannotCompare(_("The base model answers now. Your agent's own version comes first."))
    complaints = [row for row in complaints_of(user, live) if turn is None or row.pk == turn.pk]
    answered = rechecks_by(live, complaints)
    asked = 0
    for complaint in complaints:
        if complaint.pk in answered:
            continue
        _forget_empty(complaint)
        try:
            comparisons.open_comparison(
                turn=complaint, other=f"agent@v{live.version}", kind=Comparison.RECHECK
            )
        except (NothingToRate, NotRecorded):
            continue  # it has changed meanwhile
        except (QuotaReached, EngineDown):  # of the line, too
            if not asked:
                raise
            break  # these are on their way, and the rest can be asked for later
        asked += 1
    return asked


def _forget_empty(complaint: Turn) -> None:
    """Answers that never came, or that base gave: they would be waited for."""
    waiting = Comparison.objects.filter(first=complaint, kind=Comparison.RECHECK, verdict="")
    waiting = waiting.filter(second__finished_at__isnull=False)
    (waiting.filter(second__reply="") | waiting.exclude(second__fallback="")).delete()
