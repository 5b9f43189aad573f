"""Requests that are sent twice, and types of turns, over `/v1` with a real generator."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from django.db import connection
from django.test import AsyncClient

from clawweb.models import ChatSession, Turn
from clawweb.orm import in_db
from clawweb.records import write_line
from clawweb.selectors.records import conversation_lines
from clawweb.services import accounts, housekeeping, requests
from clawweb.services.imports import Import
from clawweb.services.requests import Request
from rollouts.engines.scripted import ScriptedEngine
from rollouts.errors import EngineUnavailable
from rollouts.types import Message, SamplingParams
from tests.clawweb.test_sockets import connected, until
from tests.factories import make_turn
from tests.generating import eventually, generating

pytestmark = [pytest.mark.db, pytest.mark.django_db(transaction=True, serialized_rollback=True)]

URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello there"}]
LONG = [{"role": "user", "content": "w " * 300}]
RETRY = {"X-Stainless-Retry-Count": "1"}
ONCE = {"Idempotency-Key": "k1"}


@pytest.fixture
def key(alice: Any) -> dict[str, str]:
    _, plain = accounts.make_key(user=alice, name="t", scopes=accounts.CLI_SCOPES)
    return {"Authorization": f"Bearer {plain}"}


async def ask(key: dict[str, str], messages: Any = HELLO, headers: Any = None, **body: Any) -> Any:
    return await AsyncClient().post(
        URL,
        json.dumps({"messages": messages, **body}),
        content_type="application/json",
        headers={**key, **(headers or {})},
    )


async def turns() -> list[Turn]:
    return await in_db(lambda: list(Turn.objects.order_by("id")))


@pytest.mark.parametrize("mark", [ONCE, RETRY], ids=["once", "retry"])
async def test_a_re_sent_request_gets_the_same_reply(key, engine, valkey_server, mark):
    async with generating():
        first = await ask(key, headers=mark, n=2)
        again = await ask(key, headers=mark, n=2)
        streamed = await ask(key, headers=mark, n=2, stream=True)
        events = b"".join([part async for part in streamed.streaming_content]).decode()
    assert again.json()["choices"] == first.json()["choices"]
    assert again.json()["id"] == first.json()["id"] == streamed["X-Clawweb-Turn"]
    assert "hello" in events
    assert len(await turns()) == 2


async def test_without_a_mark_it_is_another_reply(key, engine, valkey_server):
    async with generating():
        for retries in ("0", "x", ""):
            await ask(key, headers={"X-Stainless-Retry-Count": retries, "X-Session-Id": "s"})
    assert len(await turns()) == 3


async def test_who_retries_while_it_is_written_gets_it_though_the_first_is_gone(
    key, engine, valkey_server
):
    engine._seconds_per_word = 0.1
    async with generating():
        first = asyncio.create_task(ask(key, LONG))
        await eventually(Turn.objects.filter(state="streaming").exists)
        second = asyncio.create_task(ask(key, LONG, headers=RETRY))
        await eventually(Turn.objects.filter(readers=2).exists)
        first.cancel()
        await eventually(Turn.objects.filter(readers=1).exists)
        engine._seconds_per_word = 0.0  # the rest at once
        answer = await second
    (turn,) = await turns()
    assert (turn.state, turn.stop_requested) == ("complete", False)
    assert answer.json()["choices"][0]["message"]["content"] == turn.reply


async def fail(*_: Any, **__: Any) -> None:
    raise EngineUnavailable("no")


@pytest.mark.parametrize("mark", [ONCE, RETRY], ids=["once", "retry"])
async def test_a_try_after_one_that_came_to_nothing_goes_beside_it(
    key, engine, valkey_server, monkeypatch, mark
):
    """A client that is told to try again has not begun another chat."""
    async with generating():
        first = (await ask(key)).json()["choices"][0]["message"]
        for number, messages in enumerate((LONG, [*HELLO, first, *LONG])):
            marked = {name: f"{value}{number}" for name, value in mark.items()}
            with monkeypatch.context() as broken:
                broken.setattr(ScriptedEngine, "generate", fail)
                headers = marked if mark is ONCE else {}
                assert (await ask(key, messages, headers=headers, n=2)).status_code == 503
            assert (await ask(key, messages, headers=marked, n=2)).status_code == 200
    begun, *tries = await turns()
    assert [turn.state for turn in tries] == ["failed", "failed", "complete", "complete"] * 2
    assert [turn.parent_id for turn in tries] == [None] * 4 + [begun.pk] * 4
    assert len({turn.session_id for turn in tries[:4]}) == 1
    assert {turn.session_id for turn in tries[4:]} == {begun.session_id}


async def test_a_try_after_its_chat_was_deleted_opens_another(
    key, engine, valkey_server, monkeypatch
):
    async with generating():
        with monkeypatch.context() as broken:
            broken.setattr(ScriptedEngine, "generate", fail)
            assert (await ask(key, headers=ONCE)).status_code == 503
        await in_db(lambda: housekeeping.delete_session(ChatSession.objects.get()))
        assert (await ask(key, headers=ONCE)).status_code == 200
    deleted, there = await in_db(lambda: list(ChatSession.objects.order_by("id")))
    assert (deleted.deleted_at is None, there.deleted_at is None) == (False, True)


@pytest.mark.parametrize("mark", [ONCE, RETRY], ids=["once", "retry"])
async def test_a_reply_of_a_deleted_chat_is_given_to_no_retry(key, engine, valkey_server, mark):
    async with generating():
        first = await ask(key, headers=mark)
        await in_db(lambda: housekeeping.delete_session(ChatSession.objects.get()))
        again = await ask(key, headers=mark)
        third = await ask(key, headers=mark)
    assert first.json()["id"] != again.json()["id"] == third.json()["id"]
    deleted, there = await in_db(lambda: list(ChatSession.objects.order_by("id")))
    assert (deleted.deleted_at is None, there.deleted_at is None) == (False, True)


async def test_an_idempotency_key_with_another_request_is_refused(key, engine, valkey_server):
    async with generating():
        await ask(key, headers=ONCE)
        answer = await ask(key, LONG, headers=ONCE)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "idempotency_key_reused"
    assert len(await turns()) == 1


async def test_no_browser_gets_a_reply_under_anothers_idempotency_key(
    alice, bob, key, engine, valkey_server
):
    """Programs' keys and browsers' names stand in one column."""
    api_key = await in_db(alice.api_keys.get)
    request = Request(key=api_key, messages=[], params=[], once=ONCE["Idempotency-Key"])
    own = await in_db(lambda: make_turn(bob, source="api"))
    message = {"type": "regenerate", "turn": own.public_id}
    message["client_id"] = requests._client_id(request, 0)
    async with generating(), connected(bob) as chat:
        for _ in range(2):  # a browser sends again what it cannot know to have arrived
            await chat.send_json(message)
            await until(chat, "done")
        assert len(await turns()) == 2
        answer = await ask(key, headers=ONCE)
    assert answer.json()["choices"][0]["message"]["content"] == "hello there"
    turn = (await turns())[-1]
    assert (turn.public_id, len(await turns())) == (answer["X-Clawweb-Turn"], 3)
    assert await in_db(lambda: turn.session.user) == alice


@pytest.mark.parametrize("name", ["x" * 256, "a\tb"])
async def test_a_malformed_idempotency_key_is_refused(key, engine, name):
    answer = await ask(key, headers={"Idempotency-Key": name})
    assert (answer.status_code, await in_db(Turn.objects.count)) == (400, 0)


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "a\x00b", "a\u200b", "\ue000"])
async def test_a_sessions_name_is_short_and_printable(key, engine, name):
    answer = await ask(key, session_id=name)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "session_id")
    assert "too long, or holds a character that is not printable" in error["message"]
    assert await in_db(ChatSession.objects.count) == 0


NAMES = ["Pourquoi\u202f? Voil\u00e0\u00a0!", "\U0001fae8", "\U000e0fff"]  # newer than Python 3.11


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_a_sessions_name_may_have_any_letters_and_comes_back_from_a_file(
    key, engine, valkey_server, bob, name
):
    async with generating():
        await ask(key, session_id=name)
        await ask(key, headers={"X-Session-Id": name.encode().decode("latin-1")})
    session = await in_db(ChatSession.objects.select_related("user").get)
    assert session.external_id == name
    lines = await in_db(lambda: [write_line(line) for line in conversation_lines(session.user)])
    taken = await in_db(Import, bob)
    await in_db(taken.take_all, enumerate(line.encode() for line in lines))
    assert (taken.report.sessions, taken.report.turns, taken.report.left_out) == (1, 2, 0)


@pytest.mark.parametrize("sent", ["utf-8", "latin-1"])
async def test_a_sessions_name_may_have_any_letters(key, engine, valkey_server, sent):
    """curl sends a header in UTF-8, browsers in Latin-1; the server hands both on as Latin-1."""
    async with generating():
        await ask(key, headers={"X-Session-Id": "Straße".encode(sent).decode("latin-1")})
    assert (await in_db(ChatSession.objects.get)).external_id == "Straße"


async def test_a_clients_errand_is_side_unless_it_says_otherwise(key, engine, valkey_server):
    errand = [{"role": "user", "content": "### Task:\nGenerate a concise, 3-5 word title for it."}]
    async with generating():
        await ask(key, errand)
        await ask(key, errand, headers={"X-Turn-Type": "main"})
        await ask(key, errand, turn_type="main")
        await ask(key)
    found = [(turn.turn_type, turn.turn_type_from) for turn in await turns()]
    assert found == [("side", "title"), ("main", "header"), ("main", "body"), ("main", "")]


@pytest.mark.parametrize("session", [None, "s"])
def test_many_threads_that_send_the_same_request_open_it_once(alice, engine, session):
    api_key, _ = accounts.make_key(user=alice, name="t", scopes=accounts.CLI_SCOPES)
    request = Request(
        key=api_key,
        messages=[Message(role="user", content="hi")],
        params=[SamplingParams(), SamplingParams()],
        session=session,
        once="k1",
    )
    found: list[list[str]] = []
    together = threading.Barrier(6)

    def send() -> None:
        together.wait()
        try:
            found.append([turn.public_id for turn in requests.open_request(request)])
        finally:
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len({tuple(ids) for ids in found}) == 1
    assert (Turn.objects.count(), ChatSession.objects.count()) == (2, 1)
    assert set(Turn.objects.values_list("readers", flat=True)) == {6}
