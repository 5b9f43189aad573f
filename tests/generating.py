"""A real generator in the test's own event loop, and a reader of what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from clawweb.generator import Generator
from clawweb.models import Turn
from clawweb.orm import in_db
from clawweb.streams import Piece, follow

PATIENCE = 30.0  # seconds; on a machine that does other things


async def eventually(ask: Callable[[], Any]) -> Any:
    """What `ask`, which may ask the database, gives once it gives something true."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not (found := await in_db(ask)):
        assert asyncio.get_running_loop().time() < deadline, "it did not come to that"
        await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def generating() -> AsyncIterator[Generator]:
    """Pending turns are answered inside the block; what is unfinished at its end is interrupted."""
    generator = Generator()
    task = asyncio.create_task(generator.run())
    try:
        yield generator
    finally:
        generator.stopping.set()
        await asyncio.wait_for(task, PATIENCE)


async def read_reply(turn: Turn, cursor: int = 0) -> AsyncGenerator[Piece, None]:
    """The pieces of the reply's text after `cursor` characters."""
    async with aclosing(follow(turn, cursor)) as pieces:
        async for piece in pieces:
            if piece.text:
                yield piece
