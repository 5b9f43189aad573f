"""Two processes of the web server: both answer, and they keep one count of a key's requests."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psutil
import pytest

from tests.realstack import Stack, running

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def two() -> Iterator[Stack]:
    with running("--parts", "valkey,web", web_workers="2", requests_per_minute="7") as stack:
        yield stack


def answering(stack: Stack, clients: list[httpx.Client]) -> set[int]:
    """The processes that these clients' open connections lead to."""
    ports = {
        client._transport._pool.connections[0]._connection._network_stream.get_extra_info(  # type: ignore[attr-defined]
            "client_addr"
        )[1]
        for client in clients
    }
    found = set()
    for process in psutil.Process(stack.pid("web")).children(recursive=True):
        for connection in process.net_connections("tcp"):
            if connection.raddr and connection.raddr.port in ports:
                found.add(process.pid)
    return found


def test_both_answer_and_share_the_limits(two: Stack) -> None:
    headers = {"Authorization": f"Bearer {two.key('alice')}"}
    with ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=two.url, headers=headers)) for _ in range(12)
        ]
        codes = [client.get("/v1/models").status_code for client in clients]
        assert len(answering(two, clients)) == 2
    assert sorted(codes) == [200] * 7 + [429] * 5


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
