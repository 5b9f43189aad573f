"""Engine that replays given replies; for unit tests alone. Ids are bytes, log-probs follow from
them by rule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from rollouts.engines.base import OnDelta
from rollouts.errors import UnknownAdapter
from rollouts.types import PLAIN, Delta, Message, Policy, ReplyShape, Rollout, SamplingParams

END = 256  # the id after the last byte


class ScriptedEngine:
    """Says the given replies in turn, a word at a time; without any left it repeats the user.

    A reply is a text, or a list of tool calls as OpenAI writes them; "reasoning</think>text" is
    told apart as a reasoning parser does.
    """

    def __init__(
        self,
        replies: Iterable[str | list[dict[str, Any]]] = (),
        *,
        seconds_per_word: float = 0.0,
    ) -> None:
        self._replies = list(replies)
        self._seconds_per_word = seconds_per_word
        self._adapters: dict[str, str] = {}

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        policy: Policy,
        params: SamplingParams,
        shape: ReplyShape = PLAIN,
        on_delta: OnDelta | None = None,
    ) -> Rollout:
        self._known(policy)
        reply = self._replies.pop(0) if self._replies else messages[-1]["content"]
        said = reply if isinstance(reply, str) else ""
        calls = [] if isinstance(reply, str) else reply
        reasoning, _, text = said.rpartition("</think>")
        prompt_ids = tuple("".join(m["role"] + m["content"] for m in messages).encode())
        pieces = [Delta(text="", prompt_ids=prompt_ids)]
        pieces += [self._piece(word, policy, reasoning=word) for word in _words(reasoning)]
        pieces += [self._piece(word, policy, params=params, text=word) for word in _words(text)]
        for index, call in enumerate(calls):
            pieces += [self._piece(s, policy, call=call) for s, call in _halves(index, call)]
        clock = asyncio.get_running_loop().time
        due = clock()
        for piece in pieces:
            due += self._seconds_per_word
            if due > clock():  # a late word hurries the next: the rate holds
                await asyncio.sleep(due - clock())
            if on_delta is not None:
                await on_delta(piece)
        response_ids = (*(token for piece in pieces for token in piece.token_ids), END)
        return Rollout(
            text=text,
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            logprobs=tuple(self._logprob(token, policy) for token in response_ids),
            finish_reason="tool_calls" if calls else "stop",
            policy=policy,
            params=params,
            reasoning=reasoning,
            tool_calls=tuple(calls),
        )

    def _piece(
        self,
        sampled: str,
        policy: Policy,
        *,
        params: SamplingParams | None = None,
        text: str = "",
        reasoning: str = "",
        call: dict[str, Any] | None = None,
    ) -> Delta:
        ids = tuple(sampled.encode())
        logprobs = tuple(self._logprob(token, policy) for token in ids)
        shown = params is not None and params.top_logprobs is not None
        return Delta(
            text=text,
            token_ids=ids,
            logprobs=logprobs,
            reasoning=reasoning,
            tool_calls=(call,) if call else (),
            shown_logprobs=tuple(
                {"token": chr(i), "logprob": p, "bytes": [i], "top_logprobs": []}
                for i, p in zip(ids, logprobs, strict=True)
            )
            if shown
            else (),
        )

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, policy: Policy
    ) -> list[float]:
        self._known(policy)
        return [self._logprob(token, policy) for token in response_ids]

    async def load(self, policy: Policy) -> None:
        if policy.adapter is None or policy.path is None:
            raise ValueError("only an adapter with a folder can be loaded")
        self._adapters[policy.adapter] = policy.path

    async def unload(self, policy: Policy) -> None:
        self._adapters.pop(policy.adapter or "", None)

    async def loaded(self) -> dict[str, str]:
        return dict(self._adapters)

    async def health(self) -> bool:
        return True

    def _known(self, policy: Policy) -> None:
        if policy.adapter is not None and policy.adapter not in self._adapters:
            raise UnknownAdapter(policy.adapter)

    @staticmethod
    def _logprob(token: int, policy: Policy) -> float:
        return -0.01 * (token + 1) - 0.001 * policy.version


def _words(text: str) -> list[str]:
    """Pieces that join to `text`."""
    return (
        [word if i == 0 else " " + word for i, word in enumerate(text.split(" "))] if text else []
    )


def _halves(index: int, call: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """A call as two deltas, each with what was sampled for it."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    half = len(arguments) // 2
    begins = {"name": name, "arguments": arguments[:half]}
    first = {"index": index, "id": call["id"], "type": "function", "function": begins}
    rest = {"index": index, "function": {"arguments": arguments[half:]}}
    return [(name + arguments[:half], first), (arguments[half:], rest)]
