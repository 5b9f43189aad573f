"""`/v1/chat/completions` field by field: what OpenAI's API takes, gives and refuses."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from django.test import AsyncClient
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from clawweb.api import completions
from clawweb.api.chat_request import NOT_HERE, WITHOUT_EFFECT, ChatRequest
from clawweb.api.openai_errors import Unacceptable
from clawweb.models import Turn
from clawweb.orm import in_db
from rollouts.rendering import defused, template_messages, template_tools
from tests.clawweb.test_openai import HELLO, ask, key_of
from tests.generating import generating

rows = pytest.mark.django_db(transaction=True, serialized_rollback=True)

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}
OTHER = {**CALL, "id": "call_2", "function": {"name": "weather", "arguments": "{}"}}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def read(**body: Any) -> ChatRequest:
    body.setdefault("messages", HELLO)
    return ChatRequest.read(json.dumps(body).encode())


async def streamed(user: Any, **body: Any) -> list[dict[str, Any]]:
    answer = await ask(user, stream=True, **body)
    events = b"".join([part async for part in answer.streaming_content]).decode()
    lines = [line[6:] for line in events.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    ("body", "param", "code", "words"),
    [
        ({"foo": 1}, None, None, "Unrecognized request argument supplied: foo"),
        ({"foo": 1, "bar": None}, None, None, "arguments supplied: foo, bar"),
        ({"functions": [{"name": "f"}]}, "functions", None, "'tools'"),
        ({"function_call": "auto"}, "function_call", None, "'tools'"),
        ({"audio": {"voice": "a"}}, None, None, "audio"),
        ({"messages": None}, "messages", "missing_required_parameter", "Missing required"),
        ({"messages": []}, "messages", "empty_array", "empty array"),
        ({"messages": "hi"}, "messages", "invalid_type", "an array, but got a string"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_type", "an object"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter", ""),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role", "invalid_value", ""),
        ({"messages": [{"role": "user"}]}, "messages[0].content", None, "null"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type",
         "a string or an array, but got an integer"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content", None,
         "image_url"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x", "tool_call_id": "c"}]},
         "messages.[1].role", None, "'tool_calls'"),
        ({"messages": [*HELLO, CALLED, {"role": "tool", "content": "x"}]},
         "messages[2].tool_call_id", "missing_required_parameter", ""),
        ({"temperature": 9}, "temperature", "integer_above_max_value", "<= 2"),
        ({"temperature": "hot"}, "temperature", "invalid_type", "a number, but got a string"),
        ({"top_p": -0.5}, "top_p", "decimal_below_min_value", "> 0"),
        ({"n": 0}, "n", "integer_below_min_value", ">= 1"),
        ({"n": 1.5}, "n", "invalid_type", "an integer"),
        ({"seed": "x"}, "seed", "invalid_type", "an integer"),
        ({"top_k": 2**31}, "top_k", "integer_above_max_value", "< 2147483648"),
        ({"stream": "yes"}, "stream", "invalid_type", "a boolean"),
        ({"stop": list("abcde")}, "stop", "array_above_max_length", "maximum length 4"),
        ({"stop": ""}, "stop", None, "not empty"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None, "'stream'"),
        ({"top_logprobs": 2}, "top_logprobs", None, "'logprobs'"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value", "20"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens",
         "invalid_parameter_combination", "same time"),
        ({"logit_bias": {"x": 1}}, "logit_bias", None, "integers"),
        ({"logit_bias": {"5": 101}}, "logit_bias", None, "100"),
        ({"modalities": ["audio"]}, "modalities[0]", "invalid_value", "text"),
        ({"tools": []}, "tools", "empty_array", ""),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter", ""),
        ({"tools": [{"type": "x", "function": {"name": "f"}}]}, "tools[0].type", "invalid_value",
         "function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name",
         "invalid_value", "pattern"),
        ({"tool_choice": "auto"}, "tool_choice", None, "'tools'"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice", "invalid_value", ""),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "f"}}},
         "tool_choice", None, "'f' not found"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
         "tool_choice", None, "only the tools that are allowed"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value", "'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.name",
         "missing_required_parameter", ""),
        ({"response_format": "json"}, "response_format", "invalid_type", "an object"),
        ({"response_format": {"type": "text", "x": 1e999}}, "response_format", None, "too large"),
        ({"turn_type": "middle"}, "turn_type", "invalid_value", "middle"),
        ({"session_id": ""}, "session_id", None, "It is empty, too long, or"),
        ({"session_id": "a\nb"}, "session_id", None, "not printable"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_as_openai_says_it(body, param, code, words):
    with pytest.raises(Unacceptable) as caught:
        read(**body).plain_messages()
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.code == code
    assert words in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"null"])
def test_a_body_that_is_no_object_is_refused(body):
    with pytest.raises(Unacceptable):
        ChatRequest.read(body)


@pytest.mark.parametrize(
    "body",
    [
        {"store": True, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto"},
        {"reasoning_effort": "low", "prompt_cache_key": "k", "safety_identifier": "s"},
        {"verbosity": "low", "modalities": ["text"], "prediction": None, "audio": None},
        {"functions": None, "function_call": None, "tools": None, "tool_choice": None},
        {"temperature": None, "n": None, "stream": None, "stop": None, "logit_bias": None},
        {"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.2},
        {"session_id": "s", "turn_type": "side", "session_done": True},
        {"stop": ["a", "b", "c", "d"], "seed": -5, "response_format": {"type": "text"}},
        {"messages": [*HELLO, {**CALLED, "refusal": None, "annotations": []}, RESULT]},
    ],
)  # fmt: skip
def test_what_clients_send_without_need_is_taken(body):
    assert read(**body).plain_messages()


def test_every_field_that_openais_client_has_is_known_here():
    """One that it gets is to be named in chat_request.py: as taken, without effect, or refused."""
    theirs = set(get_type_hints(CompletionCreateParamsNonStreaming))
    assert theirs - {*ChatRequest.model_fields, *WITHOUT_EFFECT, *NOT_HERE} == set()
    assert read(moderation=None, prompt_cache_options={"ttl": "1h"}).plain_messages()
    with pytest.raises(Unacceptable, match="moderation"):
        read(moderation={"model": "m"})


def test_tool_messages_are_kept_as_openai_writes_them():
    named = {"role": "user", "name": "bo", "content": "hi"}
    messages = read(messages=[named, {**CALLED, "x": 1}, RESULT]).plain_messages()
    assert messages == [named, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT]


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        ({}, True),
        ({"response_format": {"type": "text"}}, True),
        ({"response_format": {"type": "json_object"}}, False),
        ({"tools": [WEATHER]}, True),
        ({"tools": [WEATHER], "tool_choice": "none", "parallel_tool_calls": False}, True),
        ({"tools": [WEATHER], "tool_choice": "required"}, False),
        ({"tools": [WEATHER], "parallel_tool_calls": False}, False),
        ({"tools": [{**WEATHER, "function": {"name": "f", "strict": True}}]}, False),
        ({"min_p": 0.1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"logprobs": True, "top_logprobs": 3}, True),
    ],
)
def test_under_a_grammar_there_are_no_behaviour_log_probs(body, plain):
    assert read(**body).sampling()[0].keeps_behaviour_logprobs is plain


@pytest.mark.parametrize(
    ("asked", "kept"), [(0, 0.0), (0.001, 0.01), (0.01, 0.01), (0.7, 0.7), (None, 0.7)]
)
def test_the_temperature_that_the_server_samples_by_is_kept(asked, kept):
    """It takes less than 0.01 for that: importance weights by what was asked would be wrong."""
    assert read(temperature=asked).sampling()[0].temperature == kept


def test_control_strings_in_tools_results_and_arguments_are_broken_up():
    control = "<|im_start|>"
    hidden = json.dumps({control: [control]}).replace("<", "\\u003c")
    call = {**CALL, "id": control, "function": {"name": control, "arguments": hidden}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        RESULT | {"content": control},
    ]
    rendered = template_messages(defused(messages, [control]))
    assert control not in json.dumps(rendered, ensure_ascii=False)
    assert rendered[0]["tool_calls"][0]["function"]["arguments"]


def test_no_event_has_an_end_of_line_inside_whatever_a_reader_takes_for_one():
    """Clients that read lines as httpx does end one at any of these."""
    text = "a\u2028b\u2029c\x85d\u2009e"
    line, *rest = completions._event({"text": text}).decode().splitlines()
    assert (json.loads(line.removeprefix("data: ")), rest) == ({"text": text}, [""])


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ('{"city": "\\ud83d Oslo"}', {"city": "\ufffd Oslo"}),
        ('{"\\ud83d\\ude00": ["\\ude00"]}', {"\U0001f600": ["\ufffd"]}),
        ('{"a": ' * 80 + "1" + "}" * 80, None),  # as it is
        ('{"a": ' * 500 + "1" + "}" * 500, {}),
        ('{"a": ' * 900 + "1" + "}" * 900, {}),
    ],
)
def test_a_calls_arguments_can_be_sent_on_whatever_they_hold(arguments, rendered):
    """Else no reply would ever come in a chat that holds such a call."""
    call = {**CALL, "function": {"name": "weather", "arguments": arguments}}
    messages = defused([{"role": "assistant", "content": "", "tool_calls": [call]}], ["<|end|>"])
    assert json.dumps(messages, ensure_ascii=False).encode()
    found = template_messages(messages)[0]["tool_calls"][0]["function"]["arguments"]
    assert found == (json.loads(arguments) if rendered is None else rendered)


@rows
async def test_whole_replies_have_openais_fields_and_no_others(alice, engine, valkey_server):
    async with generating():
        body = (await ask(alice)).json()
    assert set(body) == {"id", "object", "created", "model", "choices", "usage"}
    (choice,) = body["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
    assert set(choice["message"]) == {"role", "content", "refusal"}
    assert choice["logprobs"] is None
    assert set(body["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}


@rows
@pytest.mark.parametrize("usage", [False, True])
async def test_every_chunk_has_openais_fields_and_no_others(alice, engine, valkey_server, usage):
    more = {"stream_options": {"include_usage": True}} if usage else {}
    engine._replies = ["why not</think>one two"]
    async with generating():
        chunks = await streamed(alice, **more)
    if usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] > 0
    fields = {"id", "object", "created", "model", "choices"} | ({"usage"} if usage else set())
    for chunk in chunks:
        assert set(chunk) == fields
        assert chunk.get("usage") is None
        (choice,) = chunk["choices"]
        assert set(choice) == {"index", "delta", "logprobs", "finish_reason"}
        assert choice["logprobs"] is None
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert deltas[1:] == [{"content": "one"}, {"content": " two"}, {}]


@rows
async def test_the_models_reasoning_is_kept_and_never_sent(alice, engine, valkey_server):
    engine._replies = ["a secret thought</think>hi"] * 2
    async with generating():
        whole = (await ask(alice)).content.decode()
        parts = json.dumps(await streamed(alice))
    assert "thought" not in whole + parts
    turn = await in_db(Turn.objects.first)
    assert (turn.reply, turn.reasoning) == ("hi", "a secret thought")
    assert bytes(turn.response_ids[:-1]).decode() == "a secret thoughthi"


@rows
async def test_log_probs_come_when_asked_for_whole_and_streamed(alice, engine, valkey_server):
    async with generating():
        whole = (await ask(alice, logprobs=True, top_logprobs=0)).json()["choices"][0]
        chunks = await streamed(alice, logprobs=True)
    entries = whole["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "hello there"
    assert all(set(entry) == {"token", "logprob", "bytes", "top_logprobs"} for entry in entries)
    parts = [c["choices"][0] for c in chunks]
    for part in parts:
        text = "".join(e["token"] for e in (part["logprobs"] or {"content": []})["content"])
        assert text == part["delta"].get("content", "")


@rows
async def test_tool_calls_come_whole(alice, engine, valkey_server):
    engine._replies = [[CALL, OTHER]]
    async with generating():
        answer = await ask(alice, tools=[WEATHER], tool_choice="required")
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL, OTHER],
    }  # fmt: skip
    turn = await in_db(Turn.objects.get)
    assert (turn.tool_calls, turn.tool_choice, turn.logprobs) == ([CALL, OTHER], "required", None)
    assert turn.tools[0]["function"] == {**WEATHER["function"], "description": None}


@rows
async def test_tool_calls_come_as_deltas(alice, engine, valkey_server):
    engine._replies = [[CALL, OTHER]]
    async with generating():
        chunks = await streamed(alice, tools=[WEATHER])
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": None, "refusal": None}
    parts = [call for c in choices for call in c["delta"].get("tool_calls", [])]
    assert [set(p) for p in parts[:2]] == [
        {"index", "id", "type", "function"}, {"index", "function"},
    ]  # fmt: skip
    for index, call in enumerate([CALL, OTHER]):
        mine = [p for p in parts if p["index"] == index]
        assert mine[0]["id"] == call["id"]
        joined = "".join(p["function"]["arguments"] for p in mine)
        assert joined == call["function"]["arguments"]
    assert choices[-1]["finish_reason"] == "tool_calls"


@rows
async def test_the_results_of_tools_go_on_from_the_turn_that_called_them(
    alice, engine, valkey_server
):
    engine._replies = [[CALL], "it rains"]
    async with generating():
        first = (await ask(alice, session_id="s", tools=[WEATHER])).json()
        messages = [*HELLO, first["choices"][0]["message"], RESULT]
        await ask(alice, session_id="s", tools=[WEATHER], messages=messages)
    one, two = await in_db(lambda: list(Turn.objects.order_by("id")))
    assert (two.parent_id, two.input_messages, two.reply) == (one.pk, [RESULT], "it rains")


@rows
async def test_who_keeps_nothing_still_gets_calls_and_counts(alice, engine, valkey_server):
    alice.consent = "nothing"
    await in_db(alice.save)
    engine._replies = [[CALL], "a private thought</think>hi"]
    async with generating():
        first = (await ask(alice, tools=[WEATHER])).json()
        second = (await ask(alice)).json()
    assert first["choices"][0]["message"]["tool_calls"] == [CALL]
    assert second["usage"]["completion_tokens"] > 0
    for turn in await in_db(lambda: list(Turn.objects.all())):
        assert (turn.tools, turn.tool_calls, turn.reasoning, turn.reply) == ([], [], "", "")


@rows
async def test_errors_are_in_openais_shape(alice, engine, valkey_server):
    answer = await ask(alice, foo=1)
    assert answer.status_code == 400
    message = "Unrecognized request argument supplied: foo"
    kind = "invalid_request_error"
    assert answer.json() == {
        "error": {"message": message, "type": kind, "param": None, "code": None}
    }
    for name in ("gpt-9", "agent@v7", "agent@v"):
        answer = await ask(alice, model=name)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert not await in_db(Turn.objects.exists)


@rows
async def test_one_model_can_be_asked_for(alice, engine, valkey_server):
    headers = await key_of(alice)
    found = (await AsyncClient().get("/v1/models/agent", headers=headers)).json()
    assert (found["id"], found["object"]) == ("agent", "model")
    missing = await AsyncClient().get("/v1/models/gpt-9", headers=headers)
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


@rows
async def test_programs_take_the_short_way(alice, engine):
    headers = await key_of(alice)
    answer = await AsyncClient().get("/v1/models", headers=headers)
    assert (answer["X-Content-Type-Options"], "Set-Cookie" in answer) == ("nosniff", False)
    assert answer["X-Request-Id"]
    assert "Content-Security-Policy" not in answer  # there is no page
    foreign = await AsyncClient().get("/v1/models", headers={**headers, "Host": "evil.example"})
    assert foreign.status_code == 400
    page = await AsyncClient().get("/signin/")
    assert "Content-Security-Policy" in page


def test_tools_are_rendered_in_one_order_whatever_the_database_gives_back():
    """As vLLM dumps them; PostgreSQL's jsonb sorts names by their length."""
    sent = {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
    }
    stored = {
        "function": {"parameters": {"type": "object"}, "name": "f", "description": "d"},
        "type": "function",
    }
    assert json.dumps(template_tools([stored])) == json.dumps(template_tools([sent]))
    assert json.dumps(template_tools([sent])) == json.dumps([sent])
