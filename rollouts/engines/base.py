"""The seam to a served model. What is promised here holds for every engine
(tests/rollouts/test_engines.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from rollouts.types import PLAIN, Delta, Message, Policy, ReplyShape, Rollout, SamplingParams

OnDelta = Callable[[Delta], Awaitable[None]]


class Engine(Protocol):
    """A served language model that can wear many adapters. It owns the chat template: callers
    never tokenize.

    All methods raise EngineUnavailable when the server does not answer and EngineRefused when it
    says no. Cancelling the task that awaits `generate` aborts the generation on the server.
    """

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        policy: Policy,
        params: SamplingParams,
        shape: ReplyShape = PLAIN,
        on_delta: OnDelta | None = None,
    ) -> Rollout:
        """Sample one reply, handing each piece to `on_delta`; as many log-probs as ids, or None."""
        ...

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, policy: Policy
    ) -> list[float]:
        """Log-probs at T = 1 (nats) of `response_ids` after `prompt_ids`; one per id."""
        ...

    async def load(self, policy: Policy) -> None:
        """Serve `policy.path` under `policy.adapter`. Idempotent; AdapterRejected when it cannot
        be."""
        ...

    async def unload(self, policy: Policy) -> None:
        """Stop serving the name. Idempotent; requests in flight finish."""
        ...

    async def loaded(self) -> dict[str, str]:
        """Adapter names served now, each with the folder it came from."""
        ...

    async def health(self) -> bool:
        """Whether the server answers and its engine is alive; never raises."""
        ...
