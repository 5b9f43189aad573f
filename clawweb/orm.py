"""The one way from async code to the database: a bounded pool of threads that keep their
connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import close_old_connections, connection

P = ParamSpec("P")
T = TypeVar("T")

_POOL = ThreadPoolExecutor(max_workers=8, thread_name_prefix="orm")


async def in_db(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a sync function that uses the ORM. Not bound to one thread, so slow calls do not queue
    up."""
    return await asyncio.get_running_loop().run_in_executor(
        _POOL, partial(_kept, function, *args, **kwargs)
    )


def _kept(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """On this thread's connection; one that broke is closed, before and after.

    Opening one took a third of a short call. There are as many as threads, so they may stay.
    """
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        connection.close_at = None
        close_old_connections()
