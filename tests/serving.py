"""A real web server in this event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def serving(app: Any, listening: socket.socket, **options: Any) -> AsyncIterator[int]:
    """Its port. `options` are uvicorn's; `listening` is closed in the end."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, **options))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await running
        listening.close()
