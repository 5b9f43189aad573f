"""A real generator in the test's own event loop, and a reader of what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from clawweb.generator import Generator
from clawweb.models import Turn
from clawweb.streams import Piece, follow


@asynccontextmanager
async def generating() -> AsyncIterator[Generator]:
    """Pending turns are answered inside the block; what is unfinished at its end is interrupted."""
    generator = Generator()
    task = asyncio.create_task(generator.run())
    try:
        yield generator
    finally:
        generator.stopping.set()
        await asyncio.wait_for(task, 10)


async def read_reply(turn: Turn, cursor: int = 0) -> AsyncGenerator[Piece, None]:
    """The pieces of the reply's text after `cursor` characters."""
    async with aclosing(follow(turn, cursor)) as pieces:
        async for piece in pieces:
            if piece.text:
                yield piece
