"""`/v1`: what goes in, what comes out, OpenAI's error shape. A real generator replies."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from django.test import AsyncClient
from django.utils import timezone

from clawweb.api import completions
from clawweb.api.chat_request import ChatRequest, Unacceptable
from clawweb.api.openai import SMALL
from clawweb.models import ChatSession, Turn
from clawweb.orm import in_db
from clawweb.selectors.chat import shape_of
from clawweb.services import accounts
from clawweb.services.chat import open_turn
from clawweb.services.sessions import open_session
from clawweb.streams import Piece
from rollouts.errors import EngineRefused
from rollouts.types import ReplyShape, SamplingParams
from tests.factories import make_adapter
from tests.generating import eventually, generating

pytestmark = pytest.mark.django_db(transaction=True, serialized_rollback=True)

URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello there"}]


async def key_of(user: Any, scopes: Any = accounts.CLI_SCOPES) -> dict[str, str]:
    _, plain = await in_db(accounts.make_key, user=user, name="t", scopes=scopes)
    return {"Authorization": f"Bearer {plain}"}


async def ask(user: Any, headers: dict[str, str] | None = None, **body: Any) -> Any:
    body.setdefault("messages", HELLO)
    return await AsyncClient().post(
        URL,
        json.dumps(body),
        content_type="application/json",
        headers={**await key_of(user), **(headers or {})},
    )


async def test_a_reply_names_its_turn_session_and_adapter(alice, engine, valkey_server):
    adapter = await in_db(make_adapter, alice, 3, "live")
    async with generating():
        answer = await ask(alice)
    body = answer.json()
    turn = await in_db(Turn.objects.select_related("session").get)
    assert body["id"] == turn.public_id == answer["X-Clawweb-Turn"]
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "hello there",
        "refusal": None,
    }
    assert answer["X-Clawweb-Adapter"] == adapter.name
    assert answer["X-Clawweb-Session"] == turn.session.public_id
    assert body["usage"]["completion_tokens"] == len(turn.response_ids)
    assert "token_ids" not in json.dumps(body)


async def test_streaming_gives_chunks_usage_and_done(alice, engine, valkey_server):
    async with generating():
        answer = await ask(alice, stream=True, stream_options={"include_usage": True})
        events = b"".join([part async for part in answer.streaming_content]).decode()
    lines = [line[6:] for line in events.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == "hello there"
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "stop"
    assert answer["X-Clawweb-Adapter"] == "base"


async def test_a_stream_says_its_letters_and_is_held_back_by_no_proxy(alice, engine, valkey_server):
    """Without a charset it is read as Latin-1 (Python's requests), without the other nginx waits
    for some kilobytes of it."""
    async with generating():
        answer = await ask(alice, stream=True)
        async for _ in answer.streaming_content:
            pass
    assert answer["Content-Type"] == "text/event-stream; charset=utf-8"
    assert (answer["X-Accel-Buffering"], answer["Cache-Control"]) == ("no", "no-cache")


async def test_a_stream_is_never_silent(alice, engine, valkey_server, monkeypatch):
    """A proxy would cut it: comments come while it stands in line, and while the engine is slow.
    Who answers is not known in line, so no header says it."""
    monkeypatch.setattr(completions, "PACE_SECONDS", 0.1)
    engine._seconds_per_word = 0.4
    answer = await ask(alice, stream=True)
    assert "X-Clawweb-Adapter" not in answer
    assert answer["X-Clawweb-Turn"] == (await in_db(Turn.objects.get)).public_id
    parts = aiter(answer.streaming_content)
    assert [await anext(parts) for _ in range(3)] == [b": waiting\n\n"] * 3
    async with generating():
        rest = [part async for part in parts]
    words = [index for index, part in enumerate(rest) if b"hello" in part or b"there" in part]
    assert len(words) == 2
    assert b": waiting\n\n" in rest[words[0] : words[1]]
    assert rest[-1] == b"data: [DONE]\n\n"


async def test_a_reply_that_nobody_begins_ends_its_stream_with_an_error(
    alice, engine, valkey_server, monkeypatch
):
    monkeypatch.setattr(completions, "PACE_SECONDS", 0.1)
    answer = await ask(alice, stream=True)
    parts = aiter(answer.streaming_content)
    await anext(parts)
    await in_db(
        Turn.objects.update, state="failed", error="Nobody came.", finished_at=timezone.now()
    )
    rest = b"".join([part async for part in parts])
    assert b'{"error": {"message": "Nobody came."' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_what_no_database_can_hold_is_replaced(alice, engine, valkey_server):
    async with generating():
        answer = await ask(alice, messages=[{"role": "user", "content": "a\0b \\u0000"}])
    assert answer.status_code == 200
    turn = await in_db(Turn.objects.get)
    assert turn.input_messages[0]["content"] == "a\ufffdb \\u0000"


@pytest.mark.parametrize("number", ["²", "9" * 30, "1.5", ""])
async def test_a_model_that_is_no_version_is_not_found(alice, engine, number):
    answer = await ask(alice, model=f"agent@v{number}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_stream_that_cannot_be_read_on_does_not_look_finished(
    alice, engine, valkey_server, monkeypatch
):
    async def breaking(turn: Turn) -> Any:
        yield Piece(text="half", cursor=4, by=("", ""))
        raise RuntimeError("a lost connection")

    monkeypatch.setattr(completions, "follow", breaking)
    answer = await ask(alice, stream=True)
    rest = b"".join([part async for part in answer.streaming_content])
    assert b"half" in rest
    assert b'"code": "internal_error"' in rest
    assert b'finish_reason": "stop' not in rest
    assert b"[DONE]" not in rest
    await eventually(Turn.objects.filter(state="stopped").exists)  # nobody reads it


async def test_sent_again_with_more_it_is_the_same_session(alice, engine, valkey_server):
    headers = await key_of(alice)

    async def say(messages: Any) -> Any:
        body = json.dumps({"messages": messages})
        return (
            await AsyncClient().post(URL, body, content_type="application/json", headers=headers)
        ).json()

    async with generating():
        first = await say(HELLO)
        reply = first["choices"][0]["message"]
        second = await say([*HELLO, reply, {"role": "user", "content": "and you"}])
    rows = {turn.public_id: turn for turn in await in_db(lambda: list(Turn.objects.all()))}
    assert rows[second["id"]].parent_id == rows[first["id"]].pk
    assert rows[second["id"]].input_messages == [{"role": "user", "content": "and you"}]
    assert await in_db(ChatSession.objects.count) == 1


async def test_the_same_request_again_is_a_sibling(alice, engine, valkey_server):
    async with generating():
        for _ in range(2):
            await ask(alice, headers={"X-Session-Id": "s1"})
    turns = await in_db(lambda: list(Turn.objects.all()))
    assert [t.parent_id for t in turns] == [None, None]
    assert turns[0].session_id == turns[1].session_id


async def test_n_choices_are_siblings(alice, engine, valkey_server):
    async with generating():
        answer = await ask(alice, n=3)
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2]
    assert await in_db(Turn.objects.filter(parent=None).count) == 3


async def test_turn_type_and_done_come_from_headers_or_body(alice, engine, valkey_server):
    async with generating():
        await ask(alice, headers={"X-Turn-Type": "side", "X-Session-Done": "1"}, session_id="a")
        await ask(alice, turn_type="side", session_id="b")
        await ask(alice, session_id="c")
    rows = await in_db(lambda: list(Turn.objects.select_related("session").order_by("id")))
    assert [row.turn_type for row in rows] == ["side", "side", "main"]
    assert [row.session.closed_at is not None for row in rows] == [True, False, False]
    assert [row.session.external_id for row in rows] == ["a", "b", "c"]


async def test_an_engine_that_fails_is_a_503_also_when_streaming(
    alice, engine, valkey_server, monkeypatch
):
    from rollouts.engines.scripted import ScriptedEngine
    from rollouts.errors import EngineUnavailable

    async def fail(self, *_, **__):
        raise EngineUnavailable("no")

    monkeypatch.setattr(ScriptedEngine, "generate", fail)
    async with generating():
        for stream in (False, True):
            answer = await ask(alice, stream=stream)
            assert answer.status_code == 503
            assert answer.json()["error"]["type"] == "server_error"


async def test_v1_takes_keys_only(alice, engine):
    answer = await AsyncClient().post(URL, "{}", content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    headers = await key_of(alice, scopes=["read"])
    answer = await AsyncClient().post(URL, "{}", content_type="application/json", headers=headers)
    assert answer.status_code == 403
    wrong = await AsyncClient().get(URL, headers=headers)
    assert (wrong.status_code, wrong["Allow"]) == (405, "POST")
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    answer = await AsyncClient().get("/v1/embeddings", headers=headers)
    assert (answer.status_code, "error" in answer.json()) == (404, True)


@pytest.mark.parametrize("path", ["/chat/completions", "/models"])
async def test_whose_base_url_lacks_the_version_is_told_so(path):
    """The first was sent on to a page of a chat, which a client takes for its answer."""
    for method in ("GET", "POST"):
        answer = await AsyncClient().generic(method, path)
        assert (answer.status_code, "/v1" in answer.json()["error"]["message"]) == (404, True)


async def test_models_are_the_callers_own(alice, bob, engine):
    await in_db(make_adapter, alice, 1, "live")
    await in_db(make_adapter, alice, 2, "refused")
    for user, names in ((alice, ["agent", "base", "agent@v1"]), (bob, ["agent", "base"])):
        answer = await AsyncClient().get("/v1/models", headers=await key_of(user))
        assert [model["id"] for model in answer.json()["data"]] == names


async def test_a_caller_that_hangs_up_stops_the_generation(alice, engine, valkey_server):
    engine._seconds_per_word = 0.05
    async with generating():
        asking = asyncio.create_task(ask(alice, messages=[{"role": "user", "content": "w " * 400}]))
        await eventually(Turn.objects.filter(state="streaming").exists)
        asking.cancel()
        turn = await eventually(Turn.objects.exclude(finished_at=None).first)
    assert (turn.state, len(turn.reply) < len("w " * 400)) == ("stopped", True)


def test_text_parts_are_joined_and_a_developer_is_the_system():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = ChatRequest.model_validate(
        {"messages": [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}]}
    )
    assert request.plain_messages() == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "ab"},
    ]


def test_the_last_message_is_not_the_assistants():
    request = ChatRequest.model_validate({"messages": [{"role": "assistant", "content": "x"}]})
    with pytest.raises(Unacceptable):
        request.plain_messages()


def test_seeds_of_choices_differ_and_defaults_sample_plainly():
    params = ChatRequest.model_validate({"messages": HELLO, "n": 2, "seed": 7}).sampling()
    assert [p.seed for p in params] == [7, 8]
    assert params[0].keeps_behaviour_logprobs


async def test_a_large_request_is_read_beside_the_event_loop(alice, engine, monkeypatch):
    """It takes seconds to check, in which nobody else's stream would go on."""
    threads = []

    def read(body: bytes) -> ChatRequest:
        threads.append(threading.current_thread() is threading.main_thread())
        raise Unacceptable("no")

    monkeypatch.setattr(ChatRequest, "read", read)
    await ask(alice)
    answer = await ask(alice, messages=[{"role": "user", "content": "w " * SMALL}])
    assert (answer.status_code, threads) == (400, [True, False])


async def test_of_a_stream_whose_first_choice_fails_at_once_the_others_are_stopped(
    alice, engine, valkey_server, monkeypatch
):
    async def generate(*_: Any, params: SamplingParams, **__: Any) -> None:
        if params.seed == 7:
            raise EngineRefused("no")
        await asyncio.sleep(60)

    monkeypatch.setattr(type(engine), "generate", generate)
    async with generating():
        assert (await ask(alice, stream=True, n=2, seed=7)).status_code == 400
        await eventually(Turn.objects.filter(state="stopped").exists)


@pytest.mark.db
def test_the_names_of_a_schema_stay_in_the_order_in_which_they_came(alice: Any) -> None:
    """A grammar has them written in it: what is to be thought of first stands first."""
    schema = {"type": "object", "properties": {"reasoning": {}, "answer": {}}}
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    shape = ReplyShape(tools=[tool], response_format=form)
    session = open_session(user=alice)
    turn = open_turn(session=session, parent=None, messages=HELLO, source="api", shape=shape)
    kept = shape_of(Turn.objects.get(pk=turn.pk))
    assert json.dumps([*kept.tools, kept.response_format]) == json.dumps([tool, form])
    assert not Turn.objects.filter(tools=[]).exists()
