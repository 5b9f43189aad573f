"""vLLM's event stream as records: texts, reasoning, tool calls, and whose log-probs are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollouts.engines.vllm_stream import Gathered
from rollouts.errors import BadReply, EngineRefused, EngineUnavailable
from rollouts.types import BASE, Delta, SamplingParams


def line(
    token: int | None = None, *, finish: str | None = None, stop: Any = None, **delta: Any
) -> str:
    entry = {"token": f"t{token}", "logprob": -float(token or 0), "bytes": [], "top_logprobs": []}
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
    choice |= {"token_ids": [] if token is None else [token], "stop_reason": stop}
    choice["logprobs"] = None if token is None else {"content": [entry]}
    return "data: " + json.dumps({"choices": [choice]})


FIRST = "data: " + json.dumps(
    {"prompt_token_ids": [7], "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
)


def call(index: int, arguments: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": "f"} if more.get("id") else {})}
    return {"tool_calls": [{"index": index, **more, "function": function}]}


def gather(*lines: str, **options: Any) -> tuple[Gathered, list[Delta]]:
    gathered = Gathered(**options)
    found = [gathered.take(text) for text in (FIRST, *lines, "", "data: [DONE]")]
    return gathered, [delta for delta in found if delta is not None]


def test_every_sampled_id_is_kept_with_its_log_prob_also_of_what_shows_no_text() -> None:
    gathered, _ = gather(
        line(1, reasoning="hm"), line(2), line(3, content="a"), line(4, finish="stop")
    )
    rollout = gathered.rollout(BASE, SamplingParams())
    assert rollout.response_ids == (1, 2, 3, 4)
    assert rollout.logprobs == (-1.0, -2.0, -3.0, -4.0)
    assert (rollout.text, rollout.reasoning, rollout.prompt_ids) == ("a", "hm", (7,))


def test_calls_are_joined_and_begin_once() -> None:
    gathered, deltas = gather(
        line(1, **call(0, "", id="a", type="function")),
        line(2, **call(0, '{"x"', id=None, type=None)),
        line(3, **call(0, ": 1}")),
        line(4, **call(1, "{}", id="b")),
        line(5, finish="tool_calls"),
    )
    assert gathered.rollout(BASE, SamplingParams()).tool_calls == (
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    )
    parts = [part for delta in deltas for part in delta.tool_calls]
    assert parts[1] == {"index": 0, "function": {"arguments": '{"x"'}}
    assert ["id" in part for part in parts] == [True, False, False, True]


def test_a_nul_is_replaced_in_what_is_said_and_not_in_what_was_sampled() -> None:
    gathered, deltas = gather(
        line(1, reasoning="h\0m"),
        line(0, content="a\0b"),
        line(3, **call(0, '{"x\0"', id="a")),
        line(4, **call(0, ": 1}")),
        line(5, finish="tool_calls"),
    )
    rollout = gathered.rollout(BASE, SamplingParams())
    assert (rollout.text, rollout.reasoning) == ("a\ufffdb", "h\ufffdm")
    assert rollout.tool_calls[0]["function"]["arguments"] == '{"x\ufffd": 1}'
    assert rollout.response_ids == (1, 0, 3, 4, 5)
    assert "\0" not in "".join(delta.text + str(delta.tool_calls) for delta in deltas)


def test_a_call_that_goes_on_without_having_begun_is_a_bad_reply() -> None:
    with pytest.raises(BadReply):
        gather(line(1, **call(1, "{}", id="b")))
    with pytest.raises(BadReply):
        gather(line(1, **call(0, "{}")))


def shown(*lines: str) -> list[list[str]]:
    _, deltas = gather(*lines, shows_logprobs=True)
    return [[e["token"] for e in delta.shown_logprobs] for delta in deltas if delta.text]


def test_log_probs_are_shown_with_the_text_they_belong_to() -> None:
    assert shown(line(1, content="a"), line(2), line(3, content="b")) == [["t1"], ["t2", "t3"]]


def test_log_probs_of_reasoning_calls_and_the_end_token_are_not_shown() -> None:
    assert shown(line(1, reasoning="x"), line(2), line(3, reasoning="y"), line(4, content="a")) == [
        ["t4"]
    ]
    assert shown(line(1, content="a"), line(2), line(3, **call(0, "", id="a"))) == [["t1"]]
    assert shown(line(1, content="a"), line(2, finish="stop")) == [["t1"]]
    assert shown(line(2, content="a", finish="stop")) == [[]]
    assert shown(line(2, content="a", finish="length")) == [["t2"]]


def test_nothing_is_shown_unasked() -> None:
    _, deltas = gather(line(1, content="a"))
    assert all(delta.shown_logprobs == () for delta in deltas)


def test_a_stream_that_breaks_off_is_no_reply() -> None:
    gathered, _ = gather(line(1, content="a"))
    with pytest.raises(EngineUnavailable):
        gathered.rollout(BASE, SamplingParams())
    with pytest.raises(EngineRefused, match="no"):
        gather('data: {"error": {"message": "no", "code": 400}}')


def test_what_a_server_that_ends_gives_back_is_no_reply() -> None:
    gathered, _ = gather(line(1, content="Half a"), line(2, finish="abort"))
    with pytest.raises(EngineUnavailable):
        gathered.rollout(BASE, SamplingParams())
    for error in ({"message": "died", "code": 500}, {"message": "died", "code": 503}):
        with pytest.raises(EngineUnavailable, match="died"):
            gather("data: " + json.dumps({"error": error}))
    with pytest.raises(EngineRefused, match="in plain words"):
        gather('data: {"error": "in plain words"}')


def test_a_token_whose_log_prob_is_none_breaks_the_reply() -> None:
    """So a cache that was spoilt by a NaN looks from outside."""
    with pytest.raises(BadReply, match="no log-prob"):
        gather(line(1, content="a"), line(2, content="!").replace("-2.0", "null"))
