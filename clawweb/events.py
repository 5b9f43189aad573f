"""Nudges to browsers: what changed and its id, nothing else. Losing one costs a fetch."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 2.0  # a Valkey that hangs must not hold up a rating

What = Literal["turn", "receipt", "job", "adapter"]


def group(user_id: int) -> str:
    """The channel group of one user's browsers."""
    return f"user-{user_id}"


ADMINS = "admins"


def changed(user_id: int, what: What, public_id: str) -> None:
    """Tell the user's browsers (and admins', for jobs) once the change is committed."""
    transaction.on_commit(lambda: _send(user_id, what, public_id), robust=True)


def _send(user_id: int, what: What, public_id: str) -> None:
    groups = [group(user_id), ADMINS] if what in ("job", "adapter") else [group(user_id)]
    message = {"type": "changed", "what": what, "id": public_id}
    try:
        async_to_sync(_send_to)(groups, message)
    except Exception as exc:  # the layer is down: pages poll, rows stay true
        log.warning("no nudge about %s %s: %s", what, public_id, exc)


async def _send_to(groups: list[str], message: dict[str, str]) -> None:
    layer = get_channel_layer()
    async with asyncio.timeout(PATIENCE_SECONDS):
        for name in groups:
            await layer.group_send(name, message)
