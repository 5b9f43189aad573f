"""Reads of what a job may take: the ready samples that its method can use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from clawweb.models import TrainingSample
from training.config import CHOOSABLE, TrainConfig


def chosen_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings on a job's row those that it could be given."""
    return {name: config[name] for name in CHOOSABLE if name in config}


def usable_among(
    ready: QuerySet[TrainingSample], method: str, config: Mapping[str, Any] = {}
) -> QuerySet[TrainingSample]:
    """Those of the ready ones. Left out are those that wait for another method, as they would come
    back from each job and keep newer ones from it: hinted replies that were not sampled plainly
    (greedy, a grammar, …), where this one trains by the probabilities of sampling."""
    settings = TrainConfig(**chosen_settings(config), method=method)
    return ready.filter(turn__logprobs__isnull=False) if settings.needs_logprobs else ready


def why_nothing(ready: QuerySet[TrainingSample], method: str) -> str:
    """Why a job by this method would have nothing to learn from."""
    if not ready.exists():
        return _("There is no counted rating to learn from. Rate a reply of your agent first.")
    words = _(
        "The method %(method)s, with these settings, learns from none of your counted ratings: "
        "their replies were not sampled plainly. They wait for a job that trains otherwise."
    )
    return words % {"method": method}
