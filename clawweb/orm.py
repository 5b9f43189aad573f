"""The one way from async code to the database: a bounded pool of threads that keep their
connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import close_old_connections, connection

P = ParamSpec("P")
T = TypeVar("T")

_POOL = ThreadPoolExecutor(max_workers=8, thread_name_prefix="orm")
_CALLER = threading.local()


async def in_db(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a sync function that uses the ORM. Not bound to one thread, so slow calls do not queue
    up."""
    loop, context = asyncio.get_running_loop(), copy_context()  # the caller's language is in it
    return await loop.run_in_executor(
        _POOL, partial(context.run, _kept, loop, function, *args, **kwargs)
    )


def calling_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that waits for this thread in `in_db`; None anywhere else."""
    return getattr(_CALLER, "loop", None)


def _kept(
    loop: asyncio.AbstractEventLoop, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """On this thread's connection; one that broke is closed, before and after.

    Opening one took a third of a short call. There are as many as threads, so they may stay.
    """
    close_old_connections()
    _CALLER.loop = loop
    try:
        return function(*args, **kwargs)
    finally:
        _CALLER.loop = None
        connection.close_at = None
        close_old_connections()
