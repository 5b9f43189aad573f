"""Every part is killed once while people chat, rate and are judged: a short form of `make chaos`,
whose people, faults and promises these are."""

from __future__ import annotations

import asyncio
import random

import pytest

from bench.chaos.faults import LIGHT, RESTARTED, Target
from bench.chaos.people import QUESTIONS, Chatter, people
from bench.chaos.run import break_things, come_to_rest, promises
from clawweb.stack import guard
from clawweb.stack.parts import log_folder
from tests.loop.conftest import QUESTIONS as FIRST_QUESTIONS
from tests.loop.conftest import Lesson
from tests.loop.person import engine_of, wait_for
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]  # each part's return, and all at rest

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
        target = Target(stack=stack, disk=None)
        done, broken = break_things(target, names, chance, (0.5, 2.0), slack=3)
    assert broken == []
    assert [name for name, _ in done] == names
    for user in users:
        user.give_up("queued", "loading", "training")
    assert come_to_rest(stack) + promises(stack, users) == []
    assert all(user.told.replies for user in users)
    # Of the model server that died nothing stays, and its successor has what is live.
    assert not servers & set(guard.marked(f"{stack.var}:vllm"))
    wait_for("v1 served again", lambda: is_served(stack, lesson), timeout=180)
    answer = lesson.person.chat("What is gravity?")
    assert answer.headers["X-Clawweb-Adapter"] == lesson.adapter
    assert "X-Clawweb-Fallback" not in answer.headers
    assert in_the_logs(stack, said(lesson, users) | secrets(stack, lesson, users)) == []


def is_served(stack: Stack, lesson: Lesson) -> bool:
    return lesson.adapter in asyncio.run(engine_of(stack).loaded())


def said(lesson: Lesson, users: list[Chatter]) -> set[str]:
    """What was asked and answered: of each reply its longest line, where that is no mere word."""
    replies = [reply for user in users for _, reply in user.told.replies.values()]
    replies += [lesson.person.turn(turn)["reply"] for turn in lesson.turns]
    lines = {max(reply.splitlines(), key=len, default="") for reply in replies}
    found = {line.strip() for line in lines if len(line.strip()) >= 16}
    assert found
    return {*QUESTIONS, *FIRST_QUESTIONS, *found}


def secrets(stack: Stack, lesson: Lesson, users: list[Chatter]) -> set[str]:
    own = {stack.config.secret(name, "") for name in ("secret_key", "vllm_key")}
    return {*own, lesson.person.key, *(user.person.key for user in users)}


def in_the_logs(stack: Stack, texts: set[str]) -> list[tuple[str, str]]:
    """Where one of them stands in what the parts have written, those that were killed too."""
    logs = {
        path.name: path.read_text(errors="replace") for path in log_folder(stack.config).iterdir()
    }
    assert "POST /v1/chat/completions 200" in logs["web.log"], "or this would see nothing"
    assert {f"{part.name}.log" for part in stack.supervisor.parts} <= set(logs)
    return [(name, text) for name, log in logs.items() for text in texts if text in log]
