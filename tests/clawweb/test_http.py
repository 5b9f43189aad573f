"""The web server as it is started, by what clients and proxies really send."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client
from uvicorn.main import main

from clawweb.asgi import Storable
from clawweb.config import Config
from clawweb.models import User
from clawweb.stack import parts
from tests.serving import serving

BODY = b'{"messages": []}'
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
# What Java's HttpClient, and so LangChain4j, says of HTTP/2 on plain HTTP.
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAI\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """The body and the client's address."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body + b" " + scope["client"][0].encode()})


@asynccontextmanager
async def started(**chosen: object) -> AsyncIterator[int]:
    """The port of a server with the options that the web part has, but for its address."""
    command = parts.web(Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", **chosen)).command
    options = main.make_context("uvicorn", command[3:]).params
    names = ("http", "proxy_headers", "forwarded_allow_ips", "timeout_keep_alive")
    asked = {name: options[name] for name in names}
    async with serving(echo, socket.create_server(("127.0.0.1", 0)), **asked) as port:
        yield port


async def answered(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


def post(*headers: bytes, body: bytes = BODY) -> bytes:
    head = b"POST / HTTP/1.1\r\nHost: x\r\n" + b"".join(headers)
    return head + b"\r\n" + body


@pytest.mark.parametrize(
    ("header", "body"),
    [(b"Content-Length: %d\r\n" % len(BODY), BODY), (b"Transfer-Encoding: chunked\r\n", CHUNKED)],
)
async def test_who_offers_http_2_beside_a_request_is_read_whole(header, body):
    async with started() as port:
        offered, plain = post(OFFER, header, body=body), post(b"Connection: close\r\n", header)
        answer = await answered(port, offered + plain[: -len(BODY)] + body)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(BODY) == 2


async def test_nobody_sends_headers_without_end():
    async with started() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: %s\r\n" % (b"a" * 4000) * 100)
        async with asyncio.timeout(30):
            assert b"400 Bad Request" in await reader.read(4096)
        writer.close()


FORWARDED = b"X-Forwarded-For: 198.51.100.9, 203.0.113.7\r\n"  # the first is the client's own words
CLOSE = (b"Connection: close\r\n", b"Content-Length: %d\r\n" % len(BODY))


@pytest.mark.parametrize(
    ("trusted", "proxy", "address"),
    [
        (True, "127.0.0.1", b"203.0.113.7"),
        (True, "172.18.0.5", b"203.0.113.7"),  # another container
        (True, "192.168.1.2", b"203.0.113.7"),  # another machine
        (True, "198.51.100.1", b"198.51.100.1"),  # no proxy of ours
        (False, "127.0.0.1", b"127.0.0.1"),
    ],
)
async def test_a_trusted_proxy_says_whose_request_it_is(trusted, proxy, address, monkeypatch):
    """All people behind one that is not believed are one address, with one count of wrong tries."""
    from uvicorn.protocols.http import h11_impl

    monkeypatch.setattr(h11_impl, "get_remote_addr", lambda transport: (proxy, 1))
    async with started(trusted_proxy=trusted) as port:
        answer = await answered(port, post(FORWARDED, *CLOSE))
    assert BODY + b" " + address + b"\r\n" in answer


@pytest.mark.django_db
@pytest.mark.parametrize("page", ["/", "/chat/", "/agent/", "/sessions/", "/jobs/", "/settings/"])
def test_a_page_says_by_its_head_alone_that_it_is_there(page, alice, client):
    """As monitors ask, and `curl -I`."""
    client.force_login(alice)
    assert client.head(page).status_code == client.get(page).status_code < 400


CHAT = "/v1/chat/completions"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
async def test_a_page_elsewhere_calls_where_its_origin_is_named(setting):
    """As Open WebUI's Direct Connections do, and whatever else keeps its key in the browser."""
    setting(cors_origins="https://chat.example, http://127.0.0.1:8080/")
    page = {"Origin": "https://chat.example"}
    before = await AsyncClient().options(CHAT, headers={**page, **ASKS})
    assert before.status_code == 204
    assert before["Access-Control-Allow-Headers"] == "authorization"
    for origin in ("https://chat.example", "http://127.0.0.1:8080"):
        told = await AsyncClient().post(CHAT, headers={"Origin": origin})  # without a key
        assert (told.status_code, told["Access-Control-Allow-Origin"]) == (401, origin)
        assert "Access-Control-Allow-Credentials" not in told


@pytest.mark.parametrize("named", ["", "https://chat.example"])
async def test_a_page_of_any_other_origin_does_not(named, setting):
    setting(cors_origins=named)
    for origin in ("https://evil.example", "https://chat.example.evil.example", "null", ""):
        before = await AsyncClient().options(CHAT, headers={"Origin": origin, **ASKS})
        assert before.status_code == 405
        assert "Access-Control-Allow-Origin" not in before


async def test_what_takes_a_session_is_no_other_pages(setting):
    setting(cors_origins="https://chat.example")
    asked = {"Origin": "https://chat.example", **ASKS}
    before = await AsyncClient().options("/api/sessions", headers=asked)
    assert "Access-Control-Allow-Origin" not in before


NUL = [
    *("/chat/%00/", "/sessions/%00/", "/jobs/%00/", "/parts/turns/%00/", "/parts/earlier/%00/"),
    *("/api/sessions/%00", "/api/turns/%00", "/api/jobs/%00", "/api/exports/%00"),
]


@pytest.fixture
def client(alice: User) -> Client:
    """Alice's, whose addresses come in as the server's do."""
    client = Client()
    client.force_login(alice)
    inner = client.handler

    def handler(environ: dict[str, Any]) -> Any:
        came: dict[str, Any] = {}

        async def app(scope: Any, receive: Any, send: Any) -> None:
            came.update(scope)

        path, query = environ["PATH_INFO"].encode("latin-1").decode(), environ["QUERY_STRING"]
        async_to_sync(Storable(app))({"path": path, "query_string": query.encode()}, None, None)
        path, query = came["path"].encode().decode("latin-1"), came["query_string"].decode()
        return inner({**environ, "PATH_INFO": path, "QUERY_STRING": query})

    client.handler = handler
    return client


@pytest.mark.db
@pytest.mark.parametrize("address", NUL)
def test_nothing_is_called_by_a_name_that_no_database_holds(client, address):
    assert client.get(address).status_code == 404


@pytest.mark.db
def test_what_no_database_holds_is_asked_for_as_what_stands_for_it(client):
    assert client.get("/parts/sessions/?q=a%00b").context["words"] == "a\ufffdb"
