"""Wherever a message comes in, the reply before it is queued to be judged: before the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clawweb import tasks
from clawweb.models import Judgement, Turn
from clawweb.orm import in_db
from clawweb.services import sessions
from tests.clawweb.test_openai import ask
from tests.clawweb.test_sockets import connected, until
from tests.factories import make_turn
from tests.generating import generating

pytestmark = pytest.mark.django_db(transaction=True, serialized_rollback=True)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is queued."""
    found: list[Any] = []
    monkeypatch.setattr(tasks, "_send", lambda task, ids, *_: found.append((task.name, ids)))
    return found


def one_turn(user: Any) -> Turn:
    session = sessions.open_session(user=user, external_id="talk")
    return make_turn(user, "What is tea?", session=session, reply="A drink.")


async def test_a_message_over_the_api_queues_the_judge(alice, judge, engine, valkey_server, sent):
    turn = await in_db(one_turn, alice)
    messages = [
        {"role": "user", "content": "What is tea?"},
        {"role": "assistant", "content": "A drink."},
        {"role": "user", "content": "Shorter!"},
    ]
    async with generating():
        answer = await ask(alice, {"X-Session-Id": "talk"}, messages=messages)
    assert answer.status_code == 200
    async with asyncio.timeout(30):
        while not sent:  # the answer does not wait for it either
            await asyncio.sleep(0.02)
    row = await in_db(Judgement.objects.get)
    assert row.turn_id == turn.pk
    assert sent == [("clawweb.tasks.judge", (str(row.pk),))]


async def test_a_message_from_the_browser_queues_the_judge(
    alice, judge, engine, valkey_server, sent
):
    turn = await in_db(one_turn, alice)
    async with connected(alice) as chat:  # no generator runs: there is no answer yet
        message = {"type": "send", "session": turn.session.public_id, "text": "Shorter!"}
        await chat.send_json({**message, "client_id": "c1"})
        await until(chat, "turn")
        await chat.send_json({"type": "nothing"})  # answered once the message is dealt with
        await until(chat, "error")
    row = await in_db(Judgement.objects.get)
    assert row.turn_id == turn.pk
    assert sent == [("clawweb.tasks.judge", (str(row.pk),))]
