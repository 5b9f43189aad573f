"""Two processes of the web server: both answer, they keep one count of a key's requests, and each
reads a reply from any place on, whichever of them opened it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import httpx
import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.browser.demo import Demo
from tests.loop.person import wait_for
from tests.realstack import Stack, running

pytestmark = pytest.mark.stack
SOCKETS = 12  # or more: until each process has some
MOST = 60  # who takes a connection is the kernel's choice
COOKIE = """
from clawweb.models import User
from tests.demo import cookie
print(cookie(User.objects.get(username="bob")))
"""


@pytest.fixture(scope="module")
def two() -> Iterator[Stack]:
    with running("--parts", "valkey,web", web_workers="2", requests_per_minute="7") as stack:
        # The system is ready when one process answers; the other may still be starting.
        wait_for("both processes", lambda: both_answer(stack), timeout=120)
        yield stack


def both_answer(stack: Stack) -> bool:
    with ExitStack() as ends:
        clients = [ends.enter_context(httpx.Client(base_url=stack.url)) for _ in range(SOCKETS)]
        for client in clients:
            client.get("/livez").raise_for_status()
        return len(answering(stack, clients)) == 2


def answering(stack: Stack, clients: list[httpx.Client]) -> set[int]:
    """The processes that these clients' open connections lead to."""
    return processes_at(
        stack,
        {
            client._transport._pool.connections[0]._connection._network_stream.get_extra_info(  # type: ignore[attr-defined]
                "client_addr"
            )[1]
            for client in clients
        },
    )


def processes_at(stack: Stack, ports: set[int]) -> set[int]:
    """Of the web server's, those that hold connections to these ports of clients."""
    return {
        process.pid
        for process in psutil.Process(stack.pid("web")).children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.raddr and connection.raddr.port in ports
    }


def test_both_answer_and_share_the_limits(two: Stack) -> None:
    headers = {"Authorization": f"Bearer {two.key('alice')}"}
    with ExitStack() as stack:
        clients: list[httpx.Client] = []
        codes: list[int] = []
        while len(clients) < SOCKETS or len(answering(two, clients)) < 2:
            assert len(clients) < MOST, "one process takes all"
            client = stack.enter_context(httpx.Client(base_url=two.url, headers=headers))
            codes.append(client.get("/v1/models").status_code)
            clients.append(client)
    assert sorted(codes) == [200] * 7 + [429] * (len(codes) - 7)


async def test_each_process_reads_a_reply_from_any_place_on(two: Stack) -> None:
    """While it is written: sockets at both processes follow one reply, each from another cursor."""
    two.key("bob")
    cookie = two.manage("shell", "-v", "0", "--command", COOKIE).split()[-1]
    address = two.url.replace("http", "ws", 1) + "/ws/chat/"
    signed_in = {"Cookie": f"sessionid={cookie}"}
    async with AsyncExitStack() as ends:
        ends.enter_context(Demo(stack=two, cookies={}, places={}).writing(rate=5))
        sockets: list[ClientConnection] = []
        ports: set[int] = set()
        while len(sockets) < SOCKETS or len(processes_at(two, ports)) < 2:
            assert len(sockets) < MOST, "one process takes all"
            opening = connect(address, additional_headers=signed_in, proxy=None)
            sockets.append(await ends.enter_async_context(opening))
            ports.add(sockets[-1].local_address[1])
        await sockets[0].send(json.dumps({"type": "send", "text": "tea " * 60}))
        turn = (await told(sockets[0], "turn"))["turn"]["id"]
        while (await told(sockets[0], "delta"))["cursor"] < len(sockets):
            continue
        readings = [
            rest_of(socket, turn, cursor) for cursor, socket in enumerate(sockets) if cursor
        ]
        found = await asyncio.gather(*readings)
        reply = (await told(sockets[0], "done"))["turn"]["reply"]
    assert len(reply) > 200
    assert [(text, begun) for text, begun in found] == [
        (reply[cursor:], True) for cursor in range(1, len(sockets))
    ]


async def rest_of(socket: ClientConnection, turn: str, cursor: int) -> tuple[str, bool]:
    """All of a reply after so many characters, and whether it came in pieces: while it was written,
    that is."""
    await socket.send(json.dumps({"type": "follow", "turn": turn, "cursor": cursor}))
    pieces: list[str] = []
    async with asyncio.timeout(60):
        while (message := json.loads(await socket.recv()))["type"] != "done":
            if message["type"] == "delta":
                pieces.append(message["text"])
    return "".join(pieces), len(pieces) > 2


async def told(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The next message of this kind."""
    async with asyncio.timeout(60):
        while (message := json.loads(await socket.recv()))["type"] != kind:
            assert message["type"] != "error", message
    return dict(message)


def test_a_killed_process_is_replaced_and_the_other_answers_meanwhile(two: Stack) -> None:
    workers = [
        process
        for process in psutil.Process(two.pid("web")).children()
        if any("spawn_main" in word for word in process.cmdline())
    ]
    assert len(workers) == 2
    workers[0].send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    answered = 0
    while time.monotonic() < deadline:
        try:
            answered += httpx.get(f"{two.url}/livez", timeout=5).status_code == 200
        except httpx.TransportError:
            continue  # it was in the dead process's hands
        alive = {process.pid for process in psutil.Process(two.pid("web")).children()}
        if answered > 5 and len(alive) >= 2 and workers[0].pid not in alive:
            return
    raise AssertionError(f"{answered} answers, alive: {alive}")
