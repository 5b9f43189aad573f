"""Several servers of the same model as one engine: adapters on all of them, a reply from one.

A server that does not answer is left out for a while, and asked again when the others are busier.
Nothing else is remembered of it: one that comes back without its adapters says UnknownAdapter, and
its caller loads them again, as with a single server that was restarted.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rollouts.engines.base import Engine, OnDelta
from rollouts.errors import EngineUnavailable
from rollouts.types import PLAIN, Delta, Message, Policy, ReplyShape, Rollout, SamplingParams

OUT_SECONDS = 10.0  # how long a server that did not answer is asked last
T = TypeVar("T")


class Replicas:
    """The engines must serve the same base under the same names and see the same folders."""

    def __init__(
        self, engines: Sequence[Engine], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not engines:
            raise ValueError("at least one engine is needed")
        self._engines = tuple(engines)
        self._clock = clock
        self._running = [0] * len(engines)
        self._out_until = [0.0] * len(engines)

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        policy: Policy,
        params: SamplingParams,
        shape: ReplyShape = PLAIN,
        on_delta: OnDelta | None = None,
    ) -> Rollout:
        """From the least busy server; from another one if that does not answer at all. A reply
        that has begun is not begun again elsewhere: EngineUnavailable."""
        began = False

        async def pass_on(delta: Delta) -> None:
            nonlocal began
            began = True
            if on_delta is not None:
                await on_delta(delta)

        lost = EngineUnavailable("no server answers")
        for index in self._in_turn(messages, policy):
            self._running[index] += 1
            try:
                return await self._engines[index].generate(
                    messages, policy=policy, params=params, shape=shape, on_delta=pass_on
                )
            except EngineUnavailable as exc:
                self._leave_out(index)
                if began:
                    raise
                lost = exc
            finally:
                self._running[index] -= 1
        raise lost

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, policy: Policy
    ) -> list[float]:
        """From the first server that answers. Who must know each one's answer asks each."""
        lost = EngineUnavailable("no server answers")
        for index in self._in_turn((), policy):
            try:
                return await self._engines[index].score(prompt_ids, response_ids, policy=policy)
            except EngineUnavailable as exc:
                self._leave_out(index)
                lost = exc
        raise lost

    async def load(self, policy: Policy) -> None:
        await self._each(lambda engine: engine.load(policy))

    async def unload(self, policy: Policy) -> None:
        await self._each(lambda engine: engine.unload(policy))

    async def loaded(self) -> dict[str, str]:
        """What any server that answers holds. A name that one of them lacks, or has from another
        folder, stands with an empty folder: it is there, and it must be loaded again."""
        held = await self._each(lambda engine: engine.loaded())
        names = {name for each in held for name in each}
        folders = {name: {each.get(name, "") for each in held} for name in sorted(names)}
        return {name: min(found) if len(found) == 1 else "" for name, found in folders.items()}

    async def health(self) -> bool:
        return any(await asyncio.gather(*(engine.health() for engine in self._engines)))

    async def _each(self, act: Callable[[Engine], Awaitable[T]]) -> list[T]:
        """What each server that answers gave; EngineUnavailable when none does. A refusal of one
        is raised once all have been asked."""

        async def one(engine: Engine) -> T:
            return await act(engine)

        found = await asyncio.gather(
            *(one(engine) for engine in self._engines), return_exceptions=True
        )
        gave: list[T] = []
        lost: EngineUnavailable | None = None
        for index, each in enumerate(found):
            if isinstance(each, EngineUnavailable):
                self._leave_out(index)
                lost = each
            elif isinstance(each, BaseException):
                raise each
            else:
                gave.append(each)
        if lost is not None and not gave:
            raise lost
        return gave

    def _leave_out(self, index: int) -> None:
        self._out_until[index] = self._clock() + OUT_SECONDS

    def _in_turn(self, messages: Sequence[Message], policy: Policy) -> list[int]:
        """Answering servers first, then the less busy, then the one that knows the conversation:
        a conversation begins with the same words, so its prefix lies in one server's cache."""
        now = self._clock()
        begins = messages[0]["content"] if messages else ""

        def rank(index: int) -> tuple[bool, int, bytes]:
            place = f"{policy.adapter}\0{begins}\0{index}".encode()
            is_out = self._out_until[index] > now
            return is_out, self._running[index], hashlib.sha256(place).digest()

        return sorted(range(len(self._engines)), key=rank)
