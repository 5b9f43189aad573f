"""Valkey: the token log of running replies and wake-up calls. Never the truth, always with a TTL.

What an entry of `gen:{turn}` says is in clawweb/streams.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import redis
import redis.asyncio

from clawweb.config import config

TTL_SECONDS = 3600
MAX_ENTRIES = 5000
MAX_READERS = 10_000  # connections that one event loop's readers keep
WAKE = "gen:wake"  # a list of new turns' ids that generators wait on
WAKE_ENTRIES = 64  # those beyond it, and those of the last minute, are found by their rows
LONG_QUEUE = 1000  # messages, of a kilobyte each
STOP = "gen:stop"  # a channel of turn ids

ValkeyError = redis.RedisError


def gen_key(public_id: str) -> str:
    return f"gen:{public_id}"


def connect() -> redis.Redis:
    """A client for sync code; refuses to hang when the server is gone."""
    return redis.Redis.from_url(
        config().redis, socket_timeout=2, socket_connect_timeout=2, decode_responses=True
    )


@lru_cache(maxsize=4)
def _shared(url: str) -> redis.Redis:
    """A client whose connections are kept: making one takes longer than any of these calls."""
    return redis.Redis.from_url(
        url, socket_timeout=2, socket_connect_timeout=2, decode_responses=True
    )


def connect_async(
    *, read_seconds: float = 5.0, max_connections: int | None = None
) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(
        config().redis,
        socket_timeout=read_seconds,
        socket_connect_timeout=2,
        decode_responses=True,
        max_connections=max_connections,
    )


_Owner = AsyncGenerator[redis.asyncio.Redis, None]
_CLIENTS: WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[str, tuple[_Owner, redis.asyncio.Redis]]
] = WeakKeyDictionary()


async def kept_client() -> redis.asyncio.Redis:
    """This event loop's client: its connections are kept until the loop ends. Making one takes
    longer than any reading."""
    loop, url = asyncio.get_running_loop(), config().redis
    if url not in (clients := _CLIENTS.setdefault(loop, {})):
        owner = _until_the_loop_ends(connect_async(max_connections=MAX_READERS))
        clients[url] = (owner, await anext(owner))
    return clients[url][1]


async def _until_the_loop_ends(client: redis.asyncio.Redis) -> _Owner:
    """A loop closes its unfinished generators when it ends."""
    try:
        yield client
    finally:
        await client.aclose()


def wake_generator(public_id: str) -> None:
    """Tell an idle generator of a new turn. Without Valkey it finds the row within a second."""
    try:
        calls = _shared(config().redis).pipeline(transaction=False)
        calls.rpush(WAKE, public_id).ltrim(WAKE, -WAKE_ENTRIES, -1).expire(WAKE, 60).execute()
    except ValkeyError:
        return


def call_stop(public_id: str) -> None:
    """Tell generators at once. Without Valkey they read the row's flag within a second."""
    try:
        _shared(config().redis).publish(STOP, public_id)
    except ValkeyError:
        return


def is_unread(queue: str) -> bool:
    """Whether so much waits in this queue of Celery's that nobody seems to read it."""
    try:
        return bool(_shared(config().redis).llen(queue) >= LONG_QUEUE)
    except ValkeyError:
        return False


def keep_text(public_id: str, content: dict[str, Any]) -> None:
    """The texts of a turn that is not recorded; raises ValkeyError when they cannot be kept."""
    _shared(config().redis).set(f"text:{public_id}", json.dumps(content), ex=TTL_SECONDS)


def forget_texts(public_ids: Iterable[str]) -> None:
    """The texts of these turns, kept aside or being written. Without Valkey there are none."""
    keys = [key for name in public_ids for key in (f"text:{name}", gen_key(name))]
    try:
        if keys:
            _shared(config().redis).delete(*keys)
    except ValkeyError:
        return


def kept_text(public_id: str) -> dict[str, Any]:
    """What `keep_text` kept; empty once the hour is over or while Valkey is down."""
    try:
        found = _shared(config().redis).get(f"text:{public_id}")
    except ValkeyError:
        return {}
    content: dict[str, Any] = json.loads(found) if found else {}
    return content
