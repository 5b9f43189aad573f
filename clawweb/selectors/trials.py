"""Reads of trials: which version answers some of the chat's turns in place of the live one."""

from __future__ import annotations

import hashlib

from clawweb.models import AdapterState, AdapterVersion, Turn, User


def trial_of(user: User) -> AdapterVersion | None:
    """The user's version on trial; None once it is live, or gone."""
    trial = AdapterVersion.objects.filter(pk=user.trial_id, user=user, state=AdapterState.STANDBY)
    return trial.first() if user.trial_share else None


def versions_on_trial() -> list[AdapterVersion]:
    """Everybody's."""
    tried = User.objects.filter(trial_share__gt=0).exclude(trial=None).values("trial")
    return list(AdapterVersion.objects.filter(pk__in=tried, state=AdapterState.STANDBY))


def trial_for(turn: Turn, *, base_hash: str) -> AdapterVersion | None:
    """The version on trial, if this turn is one of its share: of what the user's own agent is asked
    in the chat, and what can be rated."""
    is_chat = turn.source == "ui" and turn.turn_type == "main" and turn.recorded
    user = turn.session.user
    if not is_chat or turn.asked != "agent" or percentile(turn.public_id) >= user.trial_share:
        return None
    trial = trial_of(user)
    return trial if trial is not None and trial.base_hash == base_hash else None


def percentile(turn_id: str) -> int:
    """Where the turn falls among a hundred, from 0: the same wherever and whenever it is asked."""
    return int(hashlib.sha256(turn_id.encode()).hexdigest(), 16) % 100
