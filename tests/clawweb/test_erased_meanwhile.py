"""What a reader is told whose chat is deleted or erased while its reply is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from clawweb import valkey
from clawweb.api import completions
from clawweb.api.chat_request import ChatRequest
from clawweb.api.completions import Answer
from clawweb.models import ChatSession, Turn, TurnState
from clawweb.orm import in_db
from clawweb.services import accounts, erasure
from clawweb.services.chat import open_turn
from clawweb.services.forgetting import erase_learning
from clawweb.services.housekeeping import UNDO, delete_session, erase_deleted
from clawweb.streams import follow
from tests.clawweb.test_sockets import connected, until
from tests.factories import make_turn
from tests.generating import eventually, generating

HELLO = [{"role": "user", "content": "hello there"}]
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
            await chat.send_json({"type": "follow", "turn": turn.public_id})
            assert (await until(chat, "error"))[-1] == answer
        assert (answer["turn"], answer["gone"]) == (turn.public_id, True)
        assert answer["message"] == "That is not there any more. Load the page again."


@pytest.mark.parametrize("what", ["chat", "learning", "account"])
async def test_what_is_erased_is_in_no_log_of_tokens_either(
    alice: Any, bob: Any, what: str
) -> None:
    """Valkey's would stay for an hour, also those of a chat that was kept."""
    async with generating():
        for user in (alice, bob):
            await in_db(open_turn, session=ChatSession(user=user), parent=None, messages=HELLO)
        await eventually(lambda: Turn.objects.filter(state="complete").count() == 2)
    alices, bobs = [await in_db(Turn.objects.get, session__user=user) for user in (alice, bob)]
    await in_db(erase, what, alices)
    with valkey.connect() as store:
        left = [store.exists(valkey.gen_key(turn.public_id)) for turn in (alices, bobs)]
    assert left == [0, 1]


def erase(what: str, turn: Turn) -> None:
    if what == "chat":
        delete_session(turn.session)
        ChatSession.objects.filter(pk=turn.session_id).update(deleted_at=timezone.now() - 2 * UNDO)
        erase_deleted()
    elif what == "learning":
        erase_learning(turn.session.user)
    else:
        erasure.erase_user(turn.session.user)
        erasure.finish()


def test_no_session_of_somebody_who_is_erased_is_left(alice: Any, bob: Any) -> None:
    for user in (alice, bob):
        client = Client()
        client.force_login(user)
        client.get("/settings/")
    erasure.erase_user(alice)
    erasure.finish()
    assert [row.get_decoded()["_auth_user_id"] for row in Session.objects.all()] == [str(bob.pk)]
