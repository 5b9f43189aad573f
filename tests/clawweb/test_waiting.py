"""More replies asked for than can be written: who comes next, who is told what, who is refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clawweb import generator
from clawweb.models import ChatSession, Turn, TurnState, User
from clawweb.orm import in_db
from clawweb.selectors import waiting as places
from clawweb.selectors.waiting import next_turns, replies_before
from clawweb.services import accounts, chat, sessions, waiting
from clawweb.services.errors import QueueFull
from clawweb.streams import follow
from rollouts.types import Message, SamplingParams
from tests.clawweb.test_openai import ask
from tests.clawweb.test_sessions import send, u
from tests.clawweb.test_sockets import connected, until
from tests.generating import PATIENCE, eventually, generating

pytestmark = [pytest.mark.queue, pytest.mark.usefixtures("valkey_server", "engine")]
wire = pytest.mark.django_db(transaction=True, serialized_rollback=True)


def wait(user: User, text: str = "hello", count: int = 1) -> list[str]:
    """Pending turns of this user's, each in a chat of its own; their ids."""
    return [
        chat.open_turn(
            session=sessions.open_session(user=user),
            parent=None,
            messages=[Message(role="user", content=text)],
            params=SamplingParams(),
        ).public_id
        for _ in range(count)
    ]


def begun(public_ids: list[str], state: str = TurnState.STREAMING) -> None:
    Turn.objects.filter(public_id__in=public_ids).update(state=state)


def turn_of(public_id: str) -> Turn:
    return Turn.objects.select_related("session").get(public_id=public_id)


# Who comes next


def test_users_take_turns_whoever_came_first(alice: User, bob: User) -> None:
    flood = wait(alice, count=4)
    late = wait(bob, count=2)
    assert next_turns(room=9) == [flood[0], late[0], flood[1], late[1], flood[2], flood[3]]


def test_replies_that_are_being_written_count_as_had(alice: User, bob: User) -> None:
    begun(wait(alice, count=2))
    begun(wait(alice, count=5), TurnState.COMPLETE)  # what is over does not
    flood, late = wait(alice, count=2), wait(bob, count=3)
    assert next_turns(room=9) == [*late[:2], flood[0], late[2], flood[1]]
    assert next_turns(room=1) == [late[0]]
    assert next_turns(room=0) == []


def test_the_last_places_are_for_those_who_have_few(alice: User, bob: User) -> None:
    flood = wait(alice, count=9)
    assert next_turns(room=6, reserved=3) == flood[:3]
    begun(flood[:3])
    assert next_turns(room=3, reserved=3) == []
    assert next_turns(room=5, reserved=3) == flood[3:5]
    late = wait(bob, count=1)
    assert next_turns(room=3, reserved=3) == late


def test_a_place_is_how_many_are_begun_before(alice: User, bob: User, monkeypatch: Any) -> None:
    monkeypatch.setattr(places, "SEEN_SECONDS", 0)
    flood, late = wait(alice, count=3), wait(bob)
    turns = [turn_of(name) for name in (*flood, *late)]
    assert [replies_before(turn) for turn in turns] == [0, 2, 3, 1]
    begun(flood[:1])
    turns = [turn_of(name) for name in (*flood, *late)]
    assert [replies_before(turn) for turn in turns] == [None, 1, 2, 0]


def test_all_who_ask_in_one_second_cost_one_look(
    alice: User, django_assert_num_queries: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(places, "_SEEN", places._Seen())
    monkeypatch.setattr(places, "SEEN_SECONDS", 60)  # however long this takes
    turns = [turn_of(name) for name in wait(alice, count=5)]
    replies_before(turns[-1])
    with django_assert_num_queries(0):
        assert [replies_before(turn) for turn in turns] == [0, 1, 2, 3, 4]


@wire
async def test_a_flood_does_not_hold_others_up(alice, bob, engine, monkeypatch):
    monkeypatch.setattr(generator, "CONCURRENT", 2)
    monkeypatch.setattr(generator, "RESERVED", 0)
    engine._seconds_per_word = 0.05
    flood = await in_db(wait, alice, "one two three", 6)
    late = await in_db(wait, bob, "one two three", 1)

    def unfinished() -> bool:
        return Turn.objects.filter(finished_at=None).exists()

    async with generating():
        await eventually(lambda: not unfinished())

    def in_order() -> list[str]:
        rows = Turn.objects.filter(state=TurnState.COMPLETE).order_by("started_at")
        return [row.public_id for row in rows]

    order = await in_db(in_order)
    assert len(order) == 7
    assert set(order[:2]) == {flood[0], late[0]}


@wire
async def test_one_user_alone_leaves_some_places_free(alice, bob, engine, monkeypatch):
    monkeypatch.setattr(generator, "CONCURRENT", 4)
    monkeypatch.setattr(generator, "RESERVED", 2)
    engine._seconds_per_word = 1.0  # nobody's reply ends meanwhile
    await in_db(wait, alice, "word " * 50, 8)
    async with generating() as writer:
        await eventually(lambda: len(writer.running) >= 2)
        await asyncio.sleep(1)  # time for more, if more were taken
        assert len(writer.running) == 2
        (late,) = await in_db(wait, bob, "word " * 50)
        await eventually(lambda: turn_of(late).state == TurnState.STREAMING)
        assert len(writer.running) == 3


# Who is told what


@wire
async def test_a_reader_is_told_the_place_and_when_it_is_over(alice, bob, monkeypatch):
    monkeypatch.setattr(places, "SEEN_SECONDS", 0)
    flood = await in_db(wait, alice)
    turn = await in_db(lambda: turn_of(wait(bob)[0]))
    reader = follow(turn)
    assert (await anext(reader)).before == 1
    await in_db(waiting.take_back, await in_db(turn_of, flood[0]))
    assert (await anext(reader)).before == 0
    async with generating():
        rest = [piece async for piece in reader]
    assert rest[0].by == ("", "")
    assert "".join(piece.text for piece in rest) == "hello"
    assert all(piece.before is None for piece in rest)


@wire
async def test_the_chat_page_is_told_too(alice):
    async with connected(alice) as socket:
        await socket.send_json({"type": "send", "text": "hi", "client_id": "c"})
        told = await until(socket, "queue")
        assert told[-1] == {"type": "queue", "turn": told[0]["turn"]["id"], "before": 0}
        async with generating():
            rest = await until(socket, "done")
    assert rest[0] == {**told[-1], "before": None}
    assert rest[-1]["turn"]["reply"] == "hi"


@wire
async def test_programs_read_the_place(alice, bob, client):
    await in_db(wait, alice, count=2)
    name = (await in_db(wait, bob))[0]

    def read() -> Any:
        _, key = accounts.make_key(user=bob, name="t", scopes=["read"])
        headers = {"Authorization": f"Bearer {key}"}
        return client.get(f"/api/turns/{name}", headers=headers).json()["replies_before"]

    assert await in_db(read) == 1  # not two: the second one of Alice's comes after
    await in_db(begun, [name])
    assert await in_db(read) is None


# Who is refused


def test_a_full_line_refuses_and_says_when_to_come_back(
    alice: User, bob: User, setting: Any
) -> None:
    setting(queue_turns=4)
    for number in range(4):
        wait(User.objects.create_user(f"u{number}"))
    since = timezone.now() - timedelta(seconds=95)
    Turn.objects.filter(pk=Turn.objects.order_by("pk").values("pk")[:1]).update(created_at=since)
    with pytest.raises(QueueFull, match="many people") as refused:
        wait(alice)
    assert refused.value.retry_after == 10  # a tenth of what the first one has waited
    assert "10 s" in str(refused.value)
    begun([Turn.objects.earliest("pk").public_id])
    wait(alice)
    with pytest.raises(QueueFull):
        wait(bob)


def test_one_user_fills_a_quarter_of_the_line(alice: User, bob: User, setting: Any) -> None:
    setting(queue_turns=8)
    wait(alice, count=2)
    with pytest.raises(QueueFull, match="2 of your replies") as refused:
        wait(alice)
    assert refused.value.retry_after == 1
    wait(bob)


def test_without_a_limit_nobody_is_refused_or_counted(
    alice: User, setting: Any, django_assert_num_queries: Any
) -> None:
    setting(queue_turns=0)
    wait(alice, count=40)
    assert Turn.objects.filter(state=TurnState.PENDING).count() == 40
    with django_assert_num_queries(0):
        waiting.check_line(alice)


@wire
async def test_a_program_that_is_refused_gets_429_and_leaves_nothing(alice, setting):
    setting(queue_turns=1)
    await in_db(wait, alice)
    for stream in (False, True):
        answer = await ask(alice, stream=stream)
        assert (answer.status_code, answer["Retry-After"]) == (429, "1")
        assert answer.json()["error"]["code"] == "queue_full"
    assert await in_db(ChatSession.objects.count) == await in_db(Turn.objects.count) == 1


@wire
async def test_a_message_that_is_refused_leaves_no_empty_chat(alice, bob, setting):
    setting(queue_turns=1)
    await in_db(wait, bob)
    async with connected(alice) as socket:
        await socket.send_json({"type": "send", "text": "hi", "client_id": "c"})
        told = (await until(socket, "error"))[-1]
    assert (told["client_id"], "try again" in told["message"]) == ("c", True)
    assert not await in_db(ChatSession.objects.filter(user=alice).exists)


@pytest.mark.django_db
@pytest.mark.parametrize("once", [None, "k"])
def test_a_request_gets_all_of_its_choices_or_none(
    alice: User, setting: Any, once: str | None
) -> None:
    setting(queue_turns=8)  # two of one user
    key, _ = accounts.make_key(user=alice, name="t", scopes=accounts.CLI_SCOPES)
    with pytest.raises(QueueFull):
        send(key, u("hello"), n=3, once=once)
    assert {turn.state for turn in Turn.objects.all()} == {TurnState.STOPPED}
    setting(queue_turns=12)
    again = send(key, u("hello"), n=3, once=once)
    assert {turn.state for turn in again} == {TurnState.PENDING}


# Who leaves


def test_what_nobody_has_begun_is_stopped_at_once(alice: User) -> None:
    names = wait(alice, count=2)
    begun(names[1:])
    waits, written = (turn_of(name) for name in names)
    assert chat.request_stop(waits)
    assert chat.request_stop(written)
    waits, written = (turn_of(name) for name in names)
    assert (waits.state, waits.finished_at is None) == (TurnState.STOPPED, False)
    assert (written.state, written.stop_requested) == (TurnState.STREAMING, True)
    assert chat.claim_turn(names[0], base_hash="x") is None
    assert not chat.request_stop(waits)


@wire
async def test_a_program_that_hangs_up_in_line_is_not_written_for(alice):
    asking = asyncio.create_task(ask(alice))
    await eventually(Turn.objects.exists)
    asking.cancel()
    turn = await eventually(Turn.objects.exclude(finished_at=None).first)
    assert (turn.state, turn.started_at) == (TurnState.STOPPED, None)


def test_who_waits_too_long_is_told(alice: User, setting: Any) -> None:
    setting(queue_seconds=60)
    old, new, written = wait(alice, count=3)
    begun([written])
    late = timezone.now() - timedelta(seconds=61)
    Turn.objects.filter(public_id__in=[old, written]).update(created_at=late)
    assert waiting.give_up() == 1
    states = [turn_of(name).state for name in (old, new, written)]
    assert states == [TurnState.FAILED, TurnState.PENDING, TurnState.STREAMING]
    assert "60 s" in turn_of(old).error


@wire
async def test_a_program_that_waits_too_long_gets_an_error_and_no_hang(alice, setting):
    setting(queue_seconds=0.1)
    asking = asyncio.create_task(ask(alice, stream=True))
    await eventually(waiting.give_up)
    answer = await asyncio.wait_for(asking, PATIENCE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
