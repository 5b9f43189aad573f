"""The engine of a vLLM server where the server says what no real one can be made to say in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.engines.base import Engine
from rollouts.errors import (
    AdapterRejected,
    BadReply,
    EngineRefused,
    EngineUnavailable,
)
from rollouts.types import BASE, Message, Policy, SamplingParams

QUESTION = [Message(role="user", content="Say only the word yes.")]
SHORT = SamplingParams(temperature=1.0, max_tokens=12, seed=1)


async def test_loading_never_swaps_weights_under_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_inplace` would, in the middle of replies, and reads the folder at every step."""
    asked: list[tuple[str, Any]] = []
    served = {"a-v1": "/old"}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            rows = [{"id": name, "root": root} for name, root in served.items()]
            return httpx.Response(200, json={"data": rows})
        body = json.loads(request.content)
        asked.append((request.url.path.rsplit("/", 1)[1], body))
        if "unload" in request.url.path:
            served.pop(body["lora_name"])
        else:
            served[body["lora_name"]] = body["lora_path"]
        return httpx.Response(200, text="ok")

    engine = answered_by(monkeypatch, answer)
    with pytest.raises(AdapterRejected, match="another folder"):
        await engine.load(Policy(adapter="a-v1", version=1, path="/new"))
    await engine.load(Policy(adapter="a-v1", version=1, path="/new"))
    assert asked == [
        ("unload_lora_adapter", {"lora_name": "a-v1"}),
        ("load_lora_adapter", {"lora_name": "a-v1", "lora_path": "/new"}),
    ]


async def test_two_loads_of_one_adapter_at_once_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM locks per name, and refuses the one that waited."""
    held = iter([[], [{"id": "a-v1", "root": "/new"}]])
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": next(held)})
        return httpx.Response(200 if request.url.path == "/health" else 400, json={})

    await answered_by(monkeypatch, answer).load(Policy(adapter="a-v1", version=1, path="/new"))
    assert asked == ["/v1/models", "/v1/load_lora_adapter", "/health", "/v1/models"]


@pytest.mark.parametrize(
    ("models", "load", "health", "error"),
    [
        (503, 200, 200, EngineUnavailable),
        (500, 200, 200, EngineUnavailable),
        (401, 200, 200, EngineRefused),
        (200, 502, 200, EngineUnavailable),
        (200, 503, 503, EngineUnavailable),
        (200, 500, 503, EngineUnavailable),  # the engine has died of something
        (200, 500, 200, AdapterRejected),  # vLLM's word for files that it cannot use
        (200, 400, 200, AdapterRejected),
    ],
)
async def test_a_server_that_is_not_there_yet_rejects_no_adapter(
    monkeypatch: pytest.MonkeyPatch, models: int, load: int, health: int, error: type[Exception]
) -> None:
    said = {"/v1/models": models, "/v1/load_lora_adapter": load, "/health": health}
    engine = answered_by(
        monkeypatch, lambda asked: httpx.Response(said[asked.url.path], json={"data": []})
    )
    with pytest.raises(error) as raised:
        await engine.load(Policy(adapter="a-v1", version=1, path="/new"))
    assert raised.type is error


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"text": "no scores"}]}])
async def test_an_answer_without_scores_is_a_bad_reply(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    engine = answered_by(monkeypatch, lambda _: httpx.Response(200, json=answer))
    with pytest.raises(BadReply):
        await engine.score([1], [2], policy=BASE)


async def test_a_reply_may_hold_whatever_else_ends_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM sends these characters as they are; httpx would cut the event in two at each."""
    text = "one\u2028two\u2029three\x85four\nfive"
    choice = {"delta": {"content": text}, "finish_reason": "stop", "token_ids": [1]}
    event = json.dumps({"prompt_token_ids": [7], "choices": [choice]}, ensure_ascii=False)

    async def stream() -> AsyncIterator[bytes]:
        raw = f"data: {event}\r\n\r\ndata: [DONE]\n\n".encode()
        for at in range(0, len(raw), 7):  # in pieces that end anywhere
            yield raw[at : at + 7]

    engine = answered_by(monkeypatch, lambda _: httpx.Response(200, content=stream()))
    rollout = await engine.generate(QUESTION, policy=BASE, params=SHORT)
    assert rollout.text == text


async def test_a_server_that_is_down_is_unavailable(unused_tcp_port: int) -> None:
    down = build_engine(EngineConfig(url=f"http://127.0.0.1:{unused_tcp_port}", key="k"))
    assert not await down.health()
    with pytest.raises(EngineUnavailable):
        await down.generate(QUESTION, policy=BASE, params=SHORT)
    with pytest.raises(EngineUnavailable):
        await down.score([1], [2], policy=BASE)
    with pytest.raises(EngineUnavailable):
        await down.load(Policy(adapter="a", version=1, path="/nowhere"))
    with pytest.raises(EngineUnavailable):
        await down.loaded()


@pytest.mark.parametrize("said", ["<html>Welcome</html>", "[]", '{"data": [{"id": "llama"}]}'])
async def test_what_lists_no_models_as_vllm_does_is_a_bad_reply(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """An address that leads to a proxy's page, say. What asks has a word for that, not a crash."""
    with pytest.raises(BadReply, match="http://vllm"):
        await answered_by(monkeypatch, lambda _: httpx.Response(200, text=said)).loaded()


async def test_a_server_that_hangs_is_not_waited_for_as_for_a_reply() -> None:
    """Each sweep asks what it holds; two that wait for minutes would be all the workers there
    are."""
    over = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    engine = build_engine(EngineConfig(url=url, key="k", list_seconds=0.2))
    async with server:
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(engine.loaded(), 20)
        over.set()


async def test_a_process_that_is_held_up_while_it_connects_asks_again() -> None:
    """Its time to connect is over when it goes on, though the server has taken the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # the one that was given up
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"data": []}')
        writer.close()

    async def hold_up_after(steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        time.sleep(0.3)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hasty = build_engine(EngineConfig(url=f"http://127.0.0.1:{port}", key="k", connect_seconds=0.1))
    async with server:
        for steps in range(8):  # at some of them it is connecting
            assert await asyncio.gather(hasty.loaded(), hold_up_after(steps)) == [{}, None]


async def test_the_server_is_told_what_the_template_is_to_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(400, json={"message": "no"})

    for told in ({"enable_thinking": False}, {}):
        engine = answered_by(monkeypatch, answer, template_options=told)
        with pytest.raises(EngineRefused):
            await engine.generate(QUESTION, policy=BASE, params=SHORT)
    assert asked[0]["chat_template_kwargs"] == {"enable_thinking": False}
    assert "chat_template_kwargs" not in asked[1]


def answered_by(
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[httpx.Request], httpx.Response],
    **settings: Any,
) -> Engine:
    """The real one, whose server says what `answer` does."""
    client, transport = httpx.AsyncClient, httpx.MockTransport(answer)
    monkeypatch.setattr(
        httpx, "AsyncClient", lambda **options: client(**{**options, "transport": transport})
    )
    return build_engine(EngineConfig(url="http://vllm", key="k", **settings))
