"""Every part is killed once while people chat, rate and are judged: a short form of `make chaos`,
whose people, faults and promises these are."""

from __future__ import annotations

import asyncio
import random

import pytest

from bench.chaos.faults import LIGHT, RESTARTED, Target
from bench.chaos.people import people
from bench.chaos.run import break_things, come_to_rest, promises
from clawweb.stack import guard
from tests.loop.conftest import Lesson
from tests.loop.person import engine_of, wait_for
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SEED = 7


def test_kills_beside_people_who_chat_and_rate_break_no_promise(
    stack: Stack, lesson: Lesson
) -> None:
    lesson.back_to_v1()
    servers = set(guard.marked(f"{stack.var}:vllm"))
    assert len(servers) >= 3  # server, engine, worker
    chance = random.Random(SEED)
    there = [part.name for part in stack.supervisor.parts if part.name in LIGHT]
    names = [*chance.sample(there, len(there)), "vllm"]
    if stack.config.database_url:
        names.insert(2, RESTARTED)
    with people(stack, 2, SEED) as users:
        wait_for("ratings", lambda: all(user.told.ratings for user in users), timeout=120)
        done, broken = break_things(Target(stack=stack, disk=None), names, chance, (0.5, 2.0))
    assert broken == []
    assert [name for name, _ in done] == names
    for user in users:
        user.give_up("queued", "loading", "training")
    assert come_to_rest(stack) + promises(stack, users) == []
    assert all(user.told.replies for user in users)
    # Of the model server that died nothing stays, and its successor has what is live.
    assert not servers & set(guard.marked(f"{stack.var}:vllm"))
    wait_for("v1 served again", lambda: is_served(stack, lesson), timeout=60)
    answer = lesson.person.chat("What is gravity?")
    assert answer.headers["X-Clawweb-Adapter"] == lesson.adapter
    assert "X-Clawweb-Fallback" not in answer.headers


def is_served(stack: Stack, lesson: Lesson) -> bool:
    return lesson.adapter in asyncio.run(engine_of(stack).loaded())
