"""Nudges to browsers: what changed and its id, nothing else. Losing one costs a fetch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Literal

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from channels_redis.core import RedisChannelLayer
from django.db import transaction

from clawweb.orm import calling_loop

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 2.0  # a Valkey that hangs must not hold up a rating


class Layer(RedisChannelLayer):
    """Channels' layer, whose wait for nudges ends when it is told to.

    On Python 3.11 `asyncio.wait_for`, by which redis-py writes, may lose a cancellation
    (python/cpython#86296). A socket that closed in that moment would never end: its task and its
    connection to Valkey would wait on.
    """

    brpop_timeout = 1  # seconds of one wait, by one socket of a process for all: as late it is seen

    async def _brpop_with_clean(self, index: int, channel: str, timeout: int) -> Any:
        found = await super()._brpop_with_clean(index, channel, timeout)  # taken up again if left
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return found


What = Literal["session", "turn", "receipt", "job", "adapter", "transfer", "comparison"]


def group(user_id: int) -> str:
    """The channel group of one user's browsers."""
    return f"user-{user_id}"


ADMINS = "admins"


def changed(user_id: int, what: What, *public_ids: str) -> None:
    """Tell the user's browsers (and admins', for jobs) once the change is committed."""
    if public_ids:
        transaction.on_commit(lambda: _send(user_id, what, public_ids), robust=True)


def look_again(user_id: int) -> None:
    """Tell the user's sockets, once the change is committed, to see whether they may stay open."""
    transaction.on_commit(lambda: _pass_on([group(user_id)], [{"type": "look_again"}]), robust=True)


def _send(user_id: int, what: What, public_ids: Sequence[str]) -> None:
    groups = [group(user_id), ADMINS] if what in ("job", "adapter") else [group(user_id)]
    _pass_on(groups, [{"type": "changed", "what": what, "id": name} for name in public_ids])


def _pass_on(groups: Sequence[str], messages: Sequence[dict[str, str]]) -> None:
    loop = calling_loop()
    if loop is not None:  # it has a connection; another loop would have to make one first
        asyncio.run_coroutine_threadsafe(_send_to(groups, messages), loop)
    else:
        async_to_sync(_send_to)(groups, messages)


async def _send_to(groups: Sequence[str], messages: Sequence[dict[str, str]]) -> None:
    layer = get_channel_layer()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for name in groups:
                for message in messages:
                    await layer.group_send(name, message)
    except Exception as exc:  # the layer is down: pages poll, rows stay true
        log.warning("no nudge about %s: %s", messages, exc)
