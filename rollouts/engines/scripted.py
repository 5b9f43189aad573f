"""Engine that replays given replies; for unit tests alone. Ids are bytes, log-probs follow from
them by rule."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rollouts.engines.base import OnDelta
from rollouts.errors import UnknownAdapter
from rollouts.types import Delta, Message, Policy, Rollout, SamplingParams

END = 256  # the id after the last byte


class ScriptedEngine:
    """Says the given replies in turn, a word at a time; without any left it repeats the user."""

    def __init__(self, replies: Iterable[str] = (), *, seconds_per_word: float = 0.0) -> None:
        self._replies = list(replies)
        self._seconds_per_word = seconds_per_word
        self._adapters: dict[str, str] = {}

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        policy: Policy,
        params: SamplingParams,
        on_delta: OnDelta | None = None,
    ) -> Rollout:
        self._known(policy)
        reply = self._replies.pop(0) if self._replies else messages[-1]["content"]
        prompt_ids = tuple("".join(m["role"] + m["content"] for m in messages).encode())
        words = reply.split(" ")
        pieces = [word if i == 0 else " " + word for i, word in enumerate(words)]
        for i, piece in enumerate(pieces):
            if self._seconds_per_word:
                await asyncio.sleep(self._seconds_per_word)
            ids = tuple(piece.encode())
            if on_delta is not None:
                await on_delta(
                    Delta(
                        text=piece,
                        token_ids=ids,
                        logprobs=tuple(self._logprob(token, policy) for token in ids),
                        prompt_ids=prompt_ids if i == 0 else None,
                    )
                )
        response_ids = (*reply.encode(), END)
        return Rollout(
            text=reply,
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            logprobs=tuple(self._logprob(token, policy) for token in response_ids),
            finish_reason="stop",
            policy=policy,
            params=params,
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
