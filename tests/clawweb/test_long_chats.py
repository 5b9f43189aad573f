"""A chat's newest turns come with its page, older ones when they are asked for."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from clawweb.models import ChatSession, Turn, User
from clawweb.selectors.chat import messages_for, reply_message, said
from clawweb.services import chat, sessions
from clawweb.views.chat import SHOWN, newest
from rollouts.types import Message
from tests.factories import make_turn

pytestmark = pytest.mark.usefixtures("valkey_server")

MANY = SHOWN + SHOWN + 5


@pytest.fixture
def long_chat(alice: User) -> list[Turn]:
    """More than two pages of turns, one after the other."""
    session = sessions.open_session(user=alice)
    first = make_turn(alice, "question 0", session=session)
    turns = [first]
    for number in range(1, MANY):
        copy = Turn.objects.get(pk=first.pk)
        copy.pk, copy._state.adding, copy.public_id = None, True, f"turn-{number:04d}"
        copy.parent = turns[-1]
        copy.input_messages = [{"role": "user", "content": f"question {number}"}]
        copy.save()
        turns.append(copy)
    return turns


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def asked(html: str) -> list[int]:
    return [int(n) for n in re.findall(r'said-text">question (\d+)<', html)]


def page(client: Client, session: ChatSession, query: str = "") -> str:
    return client.get(f"/chat/{session.public_id}/{query}").content.decode()


def test_the_newest_turns_come_first_and_the_rest_step_by_step(
    alice: User, long_chat: list[Turn]
) -> None:
    client = client_of(alice)
    html = page(client, long_chat[0].session)
    assert asked(html) == list(range(MANY - SHOWN, MANY))
    assert 'id="earlier"><button' in html
    seen = asked(html)
    while seen[0] > 0:
        part = client.get(f"/parts/earlier/{long_chat[seen[0]].public_id}/").content.decode()
        assert ("data-more" in part) == (asked(part)[0] > 0)
        seen = asked(part) + seen
    assert seen == list(range(MANY))


def test_a_short_chat_has_nothing_earlier(alice: User) -> None:
    assert 'id="earlier" hidden' in page(client_of(alice), make_turn(alice).session)


def test_a_link_to_an_old_turn_shows_it_with_all_after_it(
    alice: User, long_chat: list[Turn]
) -> None:
    html = page(client_of(alice), long_chat[0].session, f"?turn={long_chat[3].public_id}")
    assert asked(html) == list(range(3, MANY))


@pytest.mark.parametrize(("length", "named", "expected"), [
    (0, None, (0, False)), (3, None, (3, False)), (SHOWN, None, (SHOWN, False)),
    (SHOWN + 1, None, (SHOWN, True)), (SHOWN + 1, "1", (SHOWN, True)),
    (SHOWN + 1, "0", (SHOWN + 1, False)), (SHOWN + 1, "elsewhere", (SHOWN, True)),
])  # fmt: skip
def test_how_many_are_shown(length: int, named: str | None, expected: Any) -> None:
    ids, more = newest([{"id": str(n)} for n in range(length)], named)
    assert (len(ids), more) == expected


def test_earlier_turns_are_their_users_alone(bob: User, long_chat: list[Turn]) -> None:
    address = f"/parts/earlier/{long_chat[50].public_id}/"
    assert client_of(bob).get(address).status_code == 404


def test_a_background_call_has_nothing_before_it(alice: User, long_chat: list[Turn]) -> None:
    side = make_turn(alice, session=long_chat[0].session, turn_type="side")
    assert client_of(alice).get(f"/parts/earlier/{side.public_id}/").status_code == 404


def test_the_api_gives_the_last_turns(alice: User, long_chat: list[Turn]) -> None:
    client, name = client_of(alice), long_chat[0].session.public_id
    turns = client.get(f"/api/sessions/{name}?last=2").json()["turns"]
    assert [turn["id"] for turn in turns] == [turn.public_id for turn in long_chat[-2:]]
    assert len(client.get(f"/api/sessions/{name}").json()["turns"]) == MANY
    assert client.get(f"/api/sessions/{name}?last=0").status_code == 422


def test_a_program_is_answered_about_all_that_it_sends_of_a_chat_whose_memory_has_moved(
    alice: User,
) -> None:
    first = make_turn(alice)
    second = make_turn(alice, session=first.session, parent=first)
    Turn.objects.filter(pk=second.pk).update(context_start=second)
    sent = [*messages_for(second, whole=True), reply_message(second)]
    name = first.session.public_id
    for words in ("more", "and more"):
        sent.append(Message(role="user", content=words))
        at = sessions.place(user=alice, api_key=None, name=name, messages=sent)
        turn = chat.open_turn(
            session=at.session, parent=at.parent, messages=at.messages, anew=at.anew, source="api"
        )
        assert messages_for(Turn.objects.get(pk=turn.pk)) == sent
        Turn.objects.filter(pk=turn.pk).update(
            state="complete",
            reply=f"reply to {words}",
            history_hash=chat._history_after(turn, said(f"reply to {words}")),
        )
        sent.append(said(f"reply to {words}"))
    assert at.messages == sent[-2:-1]  # in its own turn only what is new
