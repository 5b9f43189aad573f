"""Nudges to browsers: what changed and its id, nothing else. Losing one costs a fetch."""

from __future__ import annotations

import logging
from typing import Literal

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

log = logging.getLogger(__name__)

What = Literal["turn", "receipt", "job", "adapter"]


def group(user_id: int) -> str:
    """The channel group of one user's browsers."""
    return f"user-{user_id}"


ADMINS = "admins"


def changed(user_id: int, what: What, public_id: str) -> None:
    """Tell the user's browsers (and admins', for jobs) once the change is committed."""
    transaction.on_commit(lambda: _send(user_id, what, public_id), robust=True)


def _send(user_id: int, what: What, public_id: str) -> None:
    layer = get_channel_layer()
    message = {"type": "changed", "what": what, "id": public_id}
    try:
        async_to_sync(layer.group_send)(group(user_id), message)
        if what in ("job", "adapter"):
            async_to_sync(layer.group_send)(ADMINS, message)
    except Exception as exc:  # the layer is down: pages poll, rows stay true
        log.warning("no nudge about %s %s: %s", what, public_id, exc)
