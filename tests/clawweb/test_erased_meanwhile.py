"""What a reader is told whose chat is deleted or erased while its reply is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clawweb.api import completions
from clawweb.api.chat_request import ChatRequest
from clawweb.api.completions import Answer
from clawweb.models import ChatSession, Turn, TurnState
from clawweb.orm import in_db
from clawweb.services import accounts
from clawweb.services.housekeeping import delete_session
from clawweb.streams import follow
from tests.clawweb.test_sockets import connected, until
from tests.factories import make_turn

pytestmark = [
    pytest.mark.django_db(transaction=True, serialized_rollback=True),
    pytest.mark.usefixtures("valkey_server", "engine"),
]


def being_written(user: Any) -> Turn:
    return make_turn(user, state=TurnState.STREAMING, reply="half a", finished_at=None)


def answer_to(user: Any, turn: Turn) -> Answer:
    key, _ = accounts.make_key(user=user, name="t")
    messages = [{"role": "user", "content": "hi"}]
    return Answer([turn], ChatRequest.read(json.dumps({"messages": messages}).encode()), key)


async def test_a_reader_of_what_is_erased_comes_to_an_end(alice: Any) -> None:
    turn = await in_db(being_written, alice)
    pieces = follow(turn)
    assert (await anext(pieces)).text == "half a"
    await in_db(ChatSession.objects.all().delete)
    ended = (await anext(pieces)).ended
    assert ended is not None
    assert (ended.code, ended.chars) == ("erased", len("half a"))
    assert [piece async for piece in pieces] == []


async def test_a_program_is_told_that_its_chat_was_erased(alice: Any) -> None:
    turn = await in_db(being_written, alice)
    answer = await in_db(answer_to, alice, turn)
    await in_db(ChatSession.objects.all().delete)
    response = await answer.whole()
    assert (response.status_code, json.loads(response.content)["error"]["code"]) == (410, "erased")


async def test_a_program_is_told_so_in_a_stream_too(alice: Any) -> None:
    turn = await in_db(being_written, alice)
    answer = await in_db(answer_to, alice, turn)
    await in_db(ChatSession.objects.all().delete)
    events = b"".join([part async for part in answer.events()]).decode()
    assert '"code": "erased"' in events
    assert not answer.is_broken


async def test_a_reply_that_is_erased_as_soon_as_it_has_ended_is_told_too(
    alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await in_db(make_turn, alice)
    answer = await in_db(answer_to, alice, turn)
    book = completions.Answer._book

    async def erased_meanwhile(self: Answer) -> None:
        await book(self)
        await in_db(ChatSession.objects.all().delete)

    monkeypatch.setattr(completions.Answer, "_book", erased_meanwhile)
    assert (await answer.whole()).status_code == 410


async def test_a_browser_is_told_that_its_chat_is_not_there_any_more(alice: Any) -> None:
    for gone in (delete_session, ChatSession.delete):
        turn = await in_db(being_written, alice)
        async with connected(alice) as chat:
            await chat.send_json({"type": "follow", "turn": turn.public_id})
            await until(chat, "delta")
            await in_db(gone, turn.session)
            await in_db(Turn.objects.filter(pk=turn.pk).update, state=TurnState.STOPPED)
            answer = (await until(chat, "error"))[-1]
        assert answer["turn"] == turn.public_id
        assert answer["message"] == "That is not there any more. Load the page again."
