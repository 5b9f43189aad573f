"""A client that reads nothing: what it has asked for waits where it takes little room."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clawweb.models import Turn
from clawweb.orm import in_db
from clawweb.services import accounts
from tests.generating import generating
from tests.serving import serving

pytestmark = pytest.mark.django_db(transaction=True, serialized_rollback=True)

WORDS = 4000
SMALL = 16 * 1024  # of the kernel's buffers, which would otherwise take megabytes
ROOM = 64 * 1024  # uvicorn's own, at its high-water mark


class Counted:
    """The real application, and how much it has handed to the server."""

    def __init__(self) -> None:
        self.bytes = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from clawweb.asgi import application

        async def counted(message: Any) -> None:
            self.bytes += len(message.get("body", b""))
            await send(message)

        await application(scope, receive, counted)


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """The port of a server with little room for what is not read."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    async with serving(app, listening, http="h11", timeout_graceful_shutdown=1) as port:
        yield port


def asking(port: int, key: str, text: str) -> socket.socket:
    """A client that has sent its request and reads nothing yet."""
    body = json.dumps({"stream": True, "messages": [{"role": "user", "content": text}]}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    client.connect(("127.0.0.1", port))
    client.sendall(head.encode() + body)
    return client


def read_all(client: socket.socket) -> bytes:
    client.settimeout(60)
    with client:
        return b"".join(iter(lambda: client.recv(65536), b""))


def text_in(answer: bytes) -> str:
    lines = [line.removeprefix(b"data: ") for line in answer.splitlines() if b"data: {" in line]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_a_client_that_reads_nothing_holds_little_and_misses_nothing(
    alice, engine, valkey_server
):
    _, key = await in_db(accounts.make_key, user=alice, name="slow")
    text = " ".join(f"word{n}" for n in range(WORDS))
    app = Counted()
    async with generating(), served(app) as port:
        client = await asyncio.to_thread(asking, port, key, text)
        for _ in range(600):
            if await in_db(Turn.objects.filter(state="complete").exists):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)  # in which a server without a bound would take the rest
        waiting = app.bytes
        answer = await asyncio.to_thread(read_all, client)
    assert 0 < waiting < 2 * SMALL + 2 * SMALL + 2 * ROOM < app.bytes / 3
    assert text_in(answer) == text
