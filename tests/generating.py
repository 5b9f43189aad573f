"""A real generator in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clawweb.generator import Generator


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
