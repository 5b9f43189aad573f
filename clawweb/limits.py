"""What one API key may ask for: requests and tokens per minute, requests at once.

Counted in Valkey, each decision in one script, so that any number of web processes share one
count. A minute is sixty buckets of one second. A request that is refused counts nowhere. Requests
at once are leases that this process renews: those of a process that was killed run out. While
Valkey is down nothing is limited. Knows no HTTP but the names of the headers.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from django.utils.translation import gettext as _

from clawweb import valkey
from clawweb.config import config
from clawweb.models import ApiKey

log = logging.getLogger(__name__)

WINDOW = 60  # seconds
LEASE_SECONDS = 45  # of a request in progress
RENEW_SECONDS = 15
LONGEST_SECONDS = 3600  # a place that nobody gave back is not renewed for ever
WRONG_KEYS = 30  # per address and minute
DOWN_SECONDS = 1.0  # how long a Valkey that did not answer is left alone

# KEYS: requests, tokens, places. ARGV: their limits (0 = none), the lease's name and seconds, the
# window. Gives refusal (0 none, 1 requests, 2 tokens, 3 places), then used, and milliseconds until
# there is room and until all is free, of requests and of tokens.
_ENTER = """
local clock = redis.call('TIME')
local second = tonumber(clock[1])
local now = second + tonumber(clock[2]) / 1000000
local window = tonumber(ARGV[6])

local function look(key, limit)
  local flat, kept, total = redis.call('HGETALL', key), {}, 0
  for i = 1, #flat, 2 do
    local at = tonumber(flat[i])
    if at <= second - window then
      redis.call('HDEL', key, flat[i])
    else
      kept[#kept + 1] = {at, tonumber(flat[i + 1])}
      total = total + tonumber(flat[i + 1])
    end
  end
  table.sort(kept, function(a, b) return a[1] < b[1] end)
  local left, room, free = total, 0, 0
  for _, bucket in ipairs(kept) do
    free = bucket[1] + window - now
    if left >= limit then
      left, room = left - bucket[2], free
    end
  end
  return total, math.ceil(room * 1000), math.ceil(free * 1000)
end

local refusal, wait = 0, 0
local answer = {0, 0, 0, 0, 0, 0, 0}
for kind = 1, 2 do
  local limit = tonumber(ARGV[kind])
  if limit > 0 then
    local used, room, free = look(KEYS[kind], limit)
    answer[kind * 3 - 1], answer[kind * 3], answer[kind * 3 + 1] = used, room, free
    if used >= limit and room > wait then
      refusal, wait = kind, room
    end
  end
end
local places = tonumber(ARGV[3])
if places > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  if refusal == 0 and redis.call('ZCARD', KEYS[3]) >= places then
    refusal = 3
  end
end
answer[1] = refusal
if refusal == 0 then
  if tonumber(ARGV[1]) > 0 then
    redis.call('HINCRBY', KEYS[1], second, 1)
    redis.call('EXPIRE', KEYS[1], window + 1)
    answer[2], answer[4] = answer[2] + 1, math.ceil((second + window - now) * 1000)
  end
  if places > 0 then
    redis.call('ZADD', KEYS[3], now + tonumber(ARGV[5]), ARGV[4])
    redis.call('EXPIRE', KEYS[3], math.ceil(ARGV[5]))
  end
end
return answer
"""
_BOOK = """
redis.call('HINCRBY', KEYS[1], redis.call('TIME')[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2] + 1)
"""
_RENEW = """
local clock = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'XX', clock[1] + clock[2] / 1000000 + ARGV[2], ARGV[1])
redis.call('EXPIRE', KEYS[1], math.ceil(ARGV[2]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one key. 0 = none."""

    requests: int  # per minute
    tokens: int  # per minute, prompts and replies; booked when a reply ends
    concurrent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A request that was let in; `leave` it. Its headers say what is left."""

    places: str  # the sorted set that it stands in
    name: str  # its lease; "" = it holds none
    headers: dict[str, str]
    since: float


class Refused(Exception):
    """A key asks for more than it may; the text is for its owner."""

    def __init__(self, message: str, *, headers: dict[str, str]) -> None:
        super().__init__(message)
        self.headers = headers


def limits_of(key: ApiKey) -> Limits:
    """The key's own limits, and the installation's where it has none."""

    def chosen(name: str) -> int:
        own: int | None = getattr(key, name)
        return getattr(config(), name) if own is None else own  # type: ignore[no-any-return]

    return Limits(
        requests=chosen("requests_per_minute"),
        tokens=chosen("tokens_per_minute"),
        concurrent=chosen("concurrent"),
    )


def enter(key: ApiKey, *, generates: bool = True) -> Place:
    """Let a request of this key in, or raise Refused. One that generates nothing counts as a
    request only."""
    limits = limits_of(key)
    if not generates:
        limits = replace(limits, tokens=0, concurrent=0)
    return _enter(_names(key.pk), limits)


def leave(place: Place) -> None:
    """Give the place back; again does nothing."""
    if _KEPT.pop(place.name, None):
        _STORE.run(lambda store: store.client.zrem(place.places, place.name))


def book(key: ApiKey, tokens: int) -> None:
    """Count tokens of a reply that has ended."""
    if tokens > 0 and limits_of(key).tokens:
        name = _names(key.pk)[1]
        _STORE.run(lambda store: store.book(keys=[name], args=[tokens, WINDOW]))


def note_wrong_key(address: str) -> None:
    """Count a wrong key from this address; Refused when there are too many. Who has a right one is
    never held up by a neighbour."""
    _note("wrong", address, WRONG_KEYS, "Too many wrong keys from your address. Wait.")


def note_attempt(what: str, address: str, most: int) -> None:
    """Count an attempt at something from this address, or at this name; Refused, in words for who
    reads the page, after `most` in a minute."""
    _note(what, address, most, _("There were too many tries. Wait a minute."))


def _from(address: str) -> str:
    """Whom an address counts for: of IPv6 its network, as who has one has all 2^64 of it."""
    with contextlib.suppress(ValueError):  # a name
        found = ipaddress.ip_address(address)
        if found.version == 6 and found.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(found), 64), strict=False))
    return address


def _note(what: str, address: str, most: int, words: str) -> None:
    try:
        _enter(
            [f"limit:{what}:{_from(address)}", "-", "-"],
            Limits(requests=most, tokens=0, concurrent=0),
        )
    except Refused as exc:
        wait = {"Retry-After": exc.headers["Retry-After"]}
        raise Refused(words, headers=wait) from exc


def _names(key: int) -> list[str]:
    return [f"limit:{{{key}}}:{what}" for what in ("requests", "tokens", "places")]


def _enter(names: list[str], limits: Limits) -> Place:
    name = uuid.uuid4().hex if limits.concurrent else ""
    asked = [limits.requests, limits.tokens, limits.concurrent, name, LEASE_SECONDS, WINDOW]
    found = _STORE.run(lambda store: store.enter(keys=names, args=asked))
    if found is None:
        return Place(places=names[2], name="", headers={}, since=0)
    refusal, *counts = found
    headers = _headers("requests", limits.requests, counts[0], counts[2])
    headers |= _headers("tokens", limits.tokens, counts[3], counts[5])
    if refusal:
        raise _refused(refusal, limits, counts, headers)
    place = Place(places=names[2], name=name, headers=headers, since=time.monotonic())
    if name:
        _KEPT[name] = place
        _start_renewing()
    return place


def _refused(refusal: int, limits: Limits, counts: list[int], headers: dict[str, str]) -> Refused:
    """What is too much, and from when on it is not."""
    if refusal == 3:
        text = f"This key has {limits.concurrent} requests in progress. Let one end first."
        return Refused(text, headers={**headers, "Retry-After": "1"})
    used, limit, what = (
        (counts[0], limits.requests, "requests")
        if refusal == 1
        else (counts[3], limits.tokens, "tokens")
    )
    seconds = max(1, math.ceil(counts[1 if refusal == 1 else 4] / 1000))
    text = f"Rate limit reached: {used} of {limit} {what} per minute. Try again in {seconds}s."
    return Refused(text, headers={**headers, "Retry-After": str(seconds)})


def _headers(what: str, limit: int, used: int, free_ms: int) -> dict[str, str]:
    """OpenAI's headers on one limit; none where there is no limit."""
    if not limit:
        return {}
    return {
        f"x-ratelimit-limit-{what}": str(limit),
        f"x-ratelimit-remaining-{what}": str(max(0, limit - used)),
        f"x-ratelimit-reset-{what}": _duration(free_ms),
    }


def _duration(milliseconds: int) -> str:
    """As OpenAI writes it: 350ms, 12.5s, 1m0s."""
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(milliseconds / 1000, 60)
    return f"{int(minutes)}m{seconds:g}s" if minutes else f"{seconds:g}s"


class _Store:
    """This process's client, for all its threads, and its scripts."""

    def __init__(self) -> None:
        self.client = valkey.connect()
        self.enter = self.client.register_script(_ENTER)
        self.book = self.client.register_script(_BOOK)
        self.renew = self.client.register_script(_RENEW)
        self.is_down = False
        self.left_alone_until = 0.0

    def run(self, ask: Callable[[_Store], Any]) -> Any:
        """What Valkey answers; None while it is down. Said once, and once that it is over."""
        if time.monotonic() < self.left_alone_until:
            return None
        try:
            found = ask(self)
        except valkey.ValkeyError as exc:
            self.left_alone_until = time.monotonic() + DOWN_SECONDS
            if not self.is_down:
                log.warning("Valkey is down, so keys have no limits until it is back: %s", exc)
            self.is_down = True
            return None
        if self.is_down:
            log.warning("Valkey is back, and so are the limits of keys")
        self.is_down = False
        return found


_STORE = _Store()  # connects when it is first asked
_KEPT: dict[str, Place] = {}  # this process's places, by lease
_renewing = threading.Lock()


def renew_places() -> None:
    """Renew the leases of the requests in progress; forget those that nobody gave back."""
    for place in list(_KEPT.values()):
        if time.monotonic() - place.since > LONGEST_SECONDS:
            _KEPT.pop(place.name, None)
        else:
            asked = [place.name, LEASE_SECONDS]
            _STORE.run(lambda store, at=place.places, asked=asked: store.renew([at], asked))


def _start_renewing() -> None:
    """One thread, and not the event loop: a loop that is busy must not lose its places."""
    if _renewing.acquire(blocking=False):
        threading.Thread(target=_renew_for_ever, name="limits", daemon=True).start()


def _renew_for_ever() -> None:
    while True:
        time.sleep(RENEW_SECONDS)
        renew_places()
