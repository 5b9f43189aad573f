"""Lets the request of a key in within its limits, and gives its place back when it is answered."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable

from django.http.response import HttpResponseBase

from clawweb import limits
from clawweb.models import ApiKey
from clawweb.orm import in_db


async def within_limits(
    key: ApiKey, answer: Callable[[], Awaitable[HttpResponseBase]], *, generates: bool
) -> HttpResponseBase:
    """The answer, with headers that say what is left of the key's limits; raises limits.Refused.

    The place is held until the last byte of a stream has left.
    """
    place = await _entered(key, generates)
    streamed = False
    try:
        response = await answer()
        for name, value in place.headers.items():
            response[name] = value
        streamed = response.streaming
        if streamed:
            _leave_with(response, place)
        return response
    finally:
        if not streamed:
            _leave(place)


def _leave_with(response: HttpResponseBase, place: limits.Place) -> None:
    """When the last byte has left, or the reader has."""
    response._resource_closers.append(lambda: limits.leave(place))  # type: ignore[attr-defined]
    # A caller who hangs up just now is never streamed to, and nobody closes that response.
    weakref.finalize(response, limits.leave, place)


async def _entered(key: ApiKey, generates: bool) -> limits.Place:
    """A caller who hangs up meanwhile leaves at once."""
    entering = asyncio.ensure_future(in_db(limits.enter, key, generates=generates))
    try:
        return await asyncio.shield(entering)
    except asyncio.CancelledError:
        entering.add_done_callback(_leave_again)
        raise


def _leave_again(entering: asyncio.Future[limits.Place]) -> None:
    if not entering.cancelled() and entering.exception() is None:
        _leave(entering.result())


def _leave(place: limits.Place) -> None:
    """Not waited for: the answer does not hang on it, and the caller may be gone."""
    if place.name:
        asyncio.get_running_loop().run_in_executor(None, limits.leave, place)
