"""The chat socket: commands in, text out, nobody else's turns."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.layers import get_channel_layer
from django.contrib.sessions.backends.db import SessionStore
from django.db import OperationalError
from django.test import Client

from clawweb import events
from clawweb.consumers import SIGNED_OUT, WRONG_ORIGIN, ChatConsumer, NudgeConsumer
from clawweb.models import Turn
from clawweb.orm import in_db
from tests.factories import make_turn
from tests.generating import PATIENCE, eventually, generating

pytestmark = [pytest.mark.queue, pytest.mark.django_db(transaction=True, serialized_rollback=True)]

HOST = (b"host", b"testserver")


class Browser(ApplicationCommunicator):
    """A websocket's other end, of a browser that signed in. (channels.testing has one, but asks for
    another server.)"""

    async def connect(self) -> None:
        user = self.scope["user"]
        if user is not None and user.pk:
            self.scope["session"] = await in_db(session_of, user)
        await self.send_input({"type": "websocket.connect"})
        assert (await self.receive_output(PATIENCE))["type"] == "websocket.accept"

    async def send_json(self, message: Any) -> None:
        await self.send_input({"type": "websocket.receive", "text": json.dumps(message)})

    async def receive_json(self) -> Any:
        return json.loads((await self.receive_output(PATIENCE))["text"])

    async def disconnect(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(PATIENCE)


def session_of(user: Any) -> SessionStore:
    client = Client()
    client.force_login(user)
    return client.session  # type: ignore[return-value]


def full(**_: Any) -> None:
    raise OperationalError("database or disk is full")


def locked(**_: Any) -> None:
    raise OperationalError("database is locked")


@pytest.mark.parametrize(
    ("broken", "says"), [(full, "disk"), (locked, "Try again in a few seconds")]
)
async def test_what_cannot_be_saved_is_answered_and_the_socket_stays(
    alice: Any, valkey_server: Any, engine: Any, monkeypatch: Any, broken: Any, says: str
) -> None:
    monkeypatch.setattr("clawweb.consumers.chat.open_turn", broken)
    browser = socket(alice)
    await browser.connect()
    await browser.send_json({"type": "send", "text": "hello", "client_id": "x1"})
    answer = await browser.receive_json()
    assert (answer["type"], answer["client_id"]) == ("error", "x1")
    assert says in answer["message"]
    await browser.send_json({"type": "send", "text": " ", "client_id": "x2"})
    assert (await browser.receive_json())["client_id"] == "x2"
    await browser.disconnect()


def socket(user: Any, origin: bytes = b"http://testserver") -> Browser:
    headers = [HOST, (b"origin", origin)]
    scope = {"type": "websocket", "path": "/ws/chat/", "headers": headers, "user": user}
    return Browser(ChatConsumer.as_asgi(), scope)


@asynccontextmanager
async def connected(user: Any):
    communicator = socket(user)
    await communicator.connect()
    try:
        yield communicator
    finally:
        await communicator.disconnect()


async def test_an_open_socket_hears_all_that_changes(
    alice: Any, valkey_server: Any, engine: Any, monkeypatch: Any
) -> None:
    join = events.Layer.group_add

    async def late(self: Any, *names: str) -> None:
        await asyncio.sleep(0.3)
        await join(self, *names)

    monkeypatch.setattr(events.Layer, "group_add", late)
    async with connected(alice) as browser:
        await in_db(events.changed, alice.pk, "receipt", "turn-x")
        assert (await browser.receive_json())["id"] == "turn-x"


async def until(communicator: Browser, kind: str) -> list[dict[str, Any]]:
    """The messages up to the first of this kind, nudges left out."""
    seen = []
    while True:
        message = await communicator.receive_json()
        if message["type"] != "changed":
            seen.append(message)
        if message["type"] == kind:
            return seen


async def test_a_message_is_answered_in_pieces(alice, engine, valkey_server):
    async with generating(), connected(alice) as chat:
        await chat.send_json({"type": "send", "text": "hello there", "client_id": "c1"})
        seen = await until(chat, "done")
    assert seen[0]["type"] == "turn"
    assert seen[0]["client_id"] == "c1"
    assert seen[0]["session"]["title"] == "hello there"
    deltas = [m for m in seen if m["type"] == "delta"]
    assert "".join(m["text"] for m in deltas) == "hello there"
    assert deltas[-1]["cursor"] == len("hello there")
    assert "<p>hello there</p>" in seen[-1]["turn"]["html"]


async def test_a_message_sent_twice_makes_one_turn(alice, engine, valkey_server):
    async with generating(), connected(alice) as chat:
        await chat.send_json({"type": "send", "text": "hi", "client_id": "c1"})
        await until(chat, "done")
        await chat.send_json({"type": "send", "text": "hi", "client_id": "c1"})
        await until(chat, "turn")
    assert await in_db(Turn.objects.count) == 1


async def test_a_message_said_in_other_words_makes_a_sibling(alice, engine, valkey_server):
    root = await in_db(make_turn, alice, "first")
    turn = await in_db(make_turn, alice, "seccond", session=root.session, parent=root)
    async with generating(), connected(alice) as chat:
        for edited, text in ((turn, "second"), (root, "1st")):
            await chat.send_json(
                {"type": "send", "edits": edited.public_id, "text": text, "client_id": text}
            )
            await until(chat, "done")
    second, first = [await in_db(Turn.objects.get, client_id=name) for name in ("second", "1st")]
    assert (second.parent_id, second.session_id) == (root.pk, root.session_id)
    assert (first.parent_id, first.session_id) == (None, root.session_id)


async def test_what_a_program_said_before_a_message_stays_when_it_is_said_in_other_words(
    alice, engine, valkey_server
):
    turn = await in_db(make_turn, alice, "Hallo", source="api")
    system, seen = ({"role": role, "content": "Arr."} for role in ("system", "user"))
    turn.input_messages = [system, seen, *turn.input_messages]
    await in_db(turn.save)
    async with generating(), connected(alice) as chat:
        said = {"type": "send", "edits": turn.public_id, "text": "Hello", "client_id": "c1"}
        await chat.send_json(said)
        await until(chat, "done")
    edited = await in_db(Turn.objects.get, client_id="c1")
    assert edited.input_messages == [system, seen, {"role": "user", "content": "Hello"}]


async def test_nobody_edits_anothers_message(alice, bob, valkey_server):
    turn = await in_db(make_turn, alice, "mine")
    async with connected(bob) as chat:
        await chat.send_json({"type": "send", "edits": turn.public_id, "text": "yours"})
        message = (await until(chat, "error"))[0]
    assert message["message"] == "That is not there any more. Load the page again."
    assert await in_db(Turn.objects.count) == 1


async def test_following_with_a_cursor_gives_the_rest(alice, engine, valkey_server):
    turn = await in_db(make_turn, alice, reply="one two three")
    async with connected(alice) as chat:
        await chat.send_json({"type": "follow", "turn": turn.public_id, "cursor": 8})
        seen = await until(chat, "done")
    assert [m["text"] for m in seen if m["type"] == "delta"] == ["three"]


async def test_closing_the_socket_does_not_stop_the_reply(alice, engine, valkey_server):
    engine._seconds_per_word = 0.02
    async with generating():
        async with connected(alice) as chat:
            await chat.send_json({"type": "send", "text": "w " * 50, "client_id": "c"})
            await until(chat, "delta")
        turn = await eventually(Turn.objects.exclude(finished_at=None).first)
    assert turn.state == "complete"


@pytest.mark.parametrize("command", ["follow", "stop", "regenerate"])
async def test_another_users_turn_is_not_there(alice, bob, command, valkey_server):
    turn = await in_db(make_turn, alice, reply="secret")
    async with connected(bob) as chat:
        await chat.send_json({"type": command, "turn": turn.public_id, "client_id": "x"})
        message = (await until(chat, "error"))[0]
    assert message["message"] == "That is not there any more. Load the page again."
    assert await in_db(Turn.objects.count) == 1


@pytest.mark.parametrize(
    "message",
    [{"type": "dance"}, {"type": "send"}, {"type": "send", "text": " "}, {"type": "follow"}, [], 7],
)
async def test_nonsense_gets_an_error_and_the_socket_stays_open(alice, message, valkey_server):
    async with connected(alice) as chat:
        await chat.send_json(message)
        await until(chat, "error")
        await chat.send_json({"type": "dance"})
        await until(chat, "error")


async def test_a_frame_that_is_no_command_gets_an_error_and_the_socket_stays_open(
    alice, valkey_server
):
    turn = await in_db(make_turn, alice)
    follow = f'{{"type": "follow", "turn": "{turn.public_id}", "cursor": '
    async with connected(alice) as chat:
        for frame in (
            *({"text": text} for text in ("", "{", "[" * 100_000, f"{follow}1e999}}")),
            *({"text": f"{follow}{cursor}}}"} for cursor in ("NaN", "[1]", '"x"')),
            {"bytes": b"\x00\xff"},
            *({"text": '{"client_id": ' + "[" * n + "]" * n + "}"} for n in range(700, 1000, 20)),
        ):
            await chat.send_input({"type": "websocket.receive", **frame})
            assert (await until(chat, "error"))[0]["message"] == "That message is malformed."


async def test_a_socket_of_nudges_outlives_a_frame_that_is_no_json(alice, valkey_server):
    scope = socket(alice).scope
    nudges = Browser(NudgeConsumer.as_asgi(), {**scope, "path": "/ws/nudges/"})
    await nudges.connect()
    for frame in ({"text": "{"}, {"bytes": b"\x00"}):
        await nudges.send_input({"type": "websocket.receive", **frame})
    assert await nudges.receive_nothing()
    await nudges.disconnect()


@pytest.mark.parametrize("name", ["x" * 65, 7, ["x"], {}])
async def test_a_client_id_that_no_row_can_hold_is_refused(alice, name, valkey_server):
    turn = await in_db(make_turn, alice)
    async with connected(alice) as chat:
        for message in ({"type": "send", "text": "hi"}, {"type": "regenerate"}):
            await chat.send_json({**message, "turn": turn.public_id, "client_id": name})
            assert "client_id" in (await until(chat, "error"))[0]["message"]
    assert await in_db(Turn.objects.count) == 1


async def test_what_no_database_can_hold_is_replaced(alice, engine, valkey_server):
    async with generating(), connected(alice) as chat:
        await chat.send_json({"type": "send", "text": "a\0b \ud83d", "client_id": "c\0"})
        await until(chat, "done")
    turn = await in_db(Turn.objects.get)
    assert turn.input_messages[0]["content"] == "a\ufffdb \ufffd"
    assert turn.client_id == "c\ufffd"


async def test_strangers_and_other_sites_are_closed_out(alice, valkey_server):
    from django.contrib.auth.models import AnonymousUser

    for communicator, code in (
        (socket(AnonymousUser()), SIGNED_OUT),
        (socket(alice, origin=b"http://evil.example"), WRONG_ORIGIN),
        (socket(alice, origin=b"http://[testserver"), WRONG_ORIGIN),
    ):
        await communicator.connect()
        closed = await communicator.receive_output(PATIENCE)
        assert (closed["type"], closed["code"]) == ("websocket.close", code)
        await communicator.disconnect()  # as a server says, too: else the consumer waits on


@pytest.mark.parametrize("path", ["/ws/", "/ws/chat", "/", "/ws/nowhere/"])
async def test_a_socket_of_no_address_is_refused(path):
    from clawweb.asgi import application

    scope = {"type": "websocket", "path": path, "headers": [HOST], "query_string": b""}
    stranger = ApplicationCommunicator(application, scope)
    await stranger.send_input({"type": "websocket.connect"})
    assert (await stranger.receive_output(PATIENCE))["type"] == "websocket.close"


async def test_a_wait_for_nudges_ends_when_it_is_told_to(valkey_server):
    """However early: at some moments Python 3.11 loses the first cancellation."""
    layer = get_channel_layer()
    for steps in range(60):
        waiting = asyncio.ensure_future(layer.receive(await layer.new_channel()))
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(waiting), PATIENCE)
