"""Several servers as one: what one lacks, what one refuses, and what happens when one dies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rollouts.engines.replicas import OUT_SECONDS, Replicas
from rollouts.engines.scripted import ScriptedEngine
from rollouts.errors import AdapterRejected, EngineUnavailable, UnknownAdapter
from rollouts.types import BASE, Delta, Message, Policy, SamplingParams

V1 = Policy(adapter="v1", version=1, path="/adapters/v1")
ASKED = [Message(role="user", content="how do I make tea")]


class Server(ScriptedEngine):
    """A scripted engine that can be down, and die after some pieces."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.down = False
        self.dies_after: int | None = None
        self.asked = 0

    async def generate(self, messages: Sequence[Message], **options: Any) -> Any:
        self.asked += 1
        if self.down:
            raise EngineUnavailable("down")
        on_delta, count = options.pop("on_delta"), 0

        async def heard(delta: Delta) -> None:
            nonlocal count
            if self.dies_after is not None and count >= self.dies_after:
                raise EngineUnavailable("died")
            count += 1
            await on_delta(delta)

        return await super().generate(messages, on_delta=heard, **options)

    async def loaded(self) -> dict[str, str]:
        if self.down:
            raise EngineUnavailable("down")
        return await super().loaded()

    async def load(self, policy: Policy) -> None:
        if self.down:
            raise EngineUnavailable("down")
        await super().load(policy)

    async def health(self) -> bool:
        return not self.down


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def servers() -> list[Server]:
    return [Server(), Server()]


def answer(engine: Replicas, policy: Policy = BASE, **options: Any) -> Any:
    return engine.generate(ASKED, policy=policy, params=SamplingParams(), **options)


async def test_an_adapter_is_loaded_on_all_and_unloaded_from_all(servers):
    engine = Replicas(servers)
    await engine.load(V1)
    assert [await each.loaded() for each in servers] == [{"v1": V1.path}] * 2
    assert await engine.loaded() == {"v1": V1.path}
    await engine.unload(V1)
    assert [await each.loaded() for each in servers] == [{}, {}]


async def test_what_one_lacks_is_there_and_must_be_loaded_again(servers):
    await servers[0].load(V1)
    assert await Replicas(servers).loaded() == {"v1": ""}


async def test_what_one_has_from_elsewhere_must_be_loaded_again(servers):
    await servers[0].load(V1)
    await servers[1].load(Policy(adapter="v1", version=1, path="/adapters/other"))
    assert await Replicas(servers).loaded() == {"v1": ""}


async def test_a_dead_server_is_left_out(servers):
    engine = Replicas(servers)
    servers[0].down = True
    await engine.load(V1)
    assert await engine.loaded() == {"v1": V1.path}
    assert await engine.health()
    for _ in range(5):
        assert (await answer(engine, V1)).text == "how do I make tea"
    assert servers[0].asked <= 1  # then it is known to be out


async def test_a_server_that_comes_back_says_what_it_lacks(servers):
    clock = Clock()
    engine = Replicas(servers, clock=clock)
    servers[0].down = True
    await engine.load(V1)
    servers[0].down, servers[1].down = False, True
    clock.now += OUT_SECONDS + 1
    with pytest.raises(UnknownAdapter):
        await answer(engine, V1)
    await engine.load(V1)
    assert (await answer(engine, V1)).text == "how do I make tea"


async def test_with_all_down_the_engine_is_unavailable(servers):
    engine = Replicas(servers)
    for each in servers:
        each.down = True
    assert not await engine.health()
    with pytest.raises(EngineUnavailable):
        await engine.loaded()
    with pytest.raises(EngineUnavailable):
        await engine.load(V1)
    with pytest.raises(EngineUnavailable):
        await answer(engine)


async def test_a_reply_that_has_begun_is_not_begun_elsewhere(servers):
    engine = Replicas(servers)
    for each in servers:
        each.dies_after = 2
    heard: list[str] = []

    async def hear(delta: Delta) -> None:
        heard.append(delta.text)

    with pytest.raises(EngineUnavailable):
        await answer(engine, on_delta=hear)
    assert len(heard) == 2
    assert sum(each.asked for each in servers) == 1


async def test_a_refusal_of_one_is_the_answer(servers):
    class Refusing(Server):
        async def load(self, policy: Policy) -> None:
            raise AdapterRejected("wrong shape")

    with pytest.raises(AdapterRejected, match="wrong shape"):
        await Replicas([servers[0], Refusing()]).load(V1)


async def test_replies_at_once_are_spread(servers):
    slow = [Server(seconds_per_word=0.01), Server(seconds_per_word=0.01)]
    engine = Replicas(slow)
    await asyncio.gather(*(answer(engine) for _ in range(6)))
    assert [each.asked for each in slow] == [3, 3]


async def test_a_conversation_stays_where_its_prefix_is_cached(servers):
    engine = Replicas(servers)
    for _ in range(6):
        await answer(engine)
    assert sorted(each.asked for each in servers) == [0, 6]


async def test_scores_come_from_one_that_answers(servers):
    class Deaf(Server):
        async def score(self, *_: Any, **__: Any) -> list[float]:
            raise EngineUnavailable("down")

    engine = Replicas([Deaf(), servers[0]])
    assert await engine.score([1], [2, 3], policy=BASE) == pytest.approx([-0.03, -0.04])


def test_no_server_is_no_engine():
    with pytest.raises(ValueError, match="at least one"):
        Replicas([])
