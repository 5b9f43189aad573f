"""Where requests belong: sessions, parents, siblings, requests that are sent twice."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clawweb import tasks
from clawweb.models import ApiKey, ChatSession, Consent, Turn, User
from clawweb.selectors.chat import messages_for, next_turn, said
from clawweb.selectors.judging import next_state
from clawweb.selectors.learning import ready_samples
from clawweb.selectors.placing import history_hash
from clawweb.services import accounts, chat, requests, sessions
from clawweb.services.errors import OtherRequest
from clawweb.services.requests import Request
from rollouts.types import Message, SamplingParams
from tests.factories import down

pytestmark = pytest.mark.django_db


def sys(text: str) -> Message:
    return Message(role="system", content=text)


def u(text: str) -> Message:
    return Message(role="user", content=text)


def a(text: str, *calls: dict[str, Any]) -> Message:
    return said(text, calls)


def call(id: str, arguments: str = '{"city": "Rome"}', name: str = "weather") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def result(id: str, text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id=id)


@pytest.fixture
def key(alice: User) -> ApiKey:
    return accounts.make_key(user=alice, name="t", scopes=accounts.CLI_SCOPES)[0]


def send(key: ApiKey, *messages: Message, n: int = 1, **values: Any) -> list[Turn]:
    params = [SamplingParams(seed=index) for index in range(n)]
    turns = requests.open_request(Request(key=key, messages=messages, params=params, **values))
    return [Turn.objects.select_related("session", "parent").get(pk=turn.pk) for turn in turns]


def finish(turn: Turn, reply: Message, state: str = "complete") -> Turn:
    """As a generator leaves it."""
    turn.reply, turn.tool_calls = reply["content"], reply.get("tool_calls", [])
    turn.state, turn.finished_at = state, timezone.now()
    turn.history_hash = history_hash([*messages_for(turn, whole=True), reply])
    turn.save()
    return turn


def talk(key: ApiKey, *messages: Message, **values: Any) -> list[Turn]:
    """A client that sends all that was said, as often as there is a reply among `messages`."""
    return [
        finish(send(key, *messages[:end], **values)[0], message)
        for end, message in enumerate(messages)
        if message["role"] == "assistant"
    ]


TWO = (sys("Be kind. Today is Monday."), u("q1"), a("a1"), u("q2"), a("a2"))
CALLS = (u("weather?"), a("", call("c1"), call("c2", '{"city": "Oslo"}')))
SAME = (u("q1"), a("Done."), u("q2"), a("Done."), u("q3"), a("Done."))
# What was said before, what comes then, which turn it goes on from (None: from none), and what is
# new in it; `whole`: the client's conversation is another than ours, and is asked as it is.
PLACES: dict[str, tuple[tuple[Message, ...], tuple[Message, ...], int | None, Any]] = {
    "it goes on": (TWO, (*TWO, u("q3")), 1, [u("q3")]),
    "spaces at the ends": (TWO, (*TWO[:-1], a(" a2\n"), u("q3")), 1, [u("q3")]),
    "an edited message": (TWO, (*TWO[:3], u("q2, better")), 0, [u("q2, better")]),
    "the same again": (TWO, TWO[:-1], 0, [u("q2")]),
    "the first one edited": (TWO, (TWO[0], u("other")), None, [TWO[0], u("other")]),
    "another date": (TWO, (sys("Today is Tuesday."), *TWO[1:], u("q3")), 1, "whole"),
    "no system message": (TWO, (*TWO[1:], u("q3")), 1, "whole"),
    "old ones dropped": (TWO, (u("q2"), a("a2"), u("q3")), 1, "whole"),
    "only the last reply": (TWO, (a("a2"), u("q3")), 1, "whole"),
    "the middle dropped": (TWO, (*TWO[:3], a("a2"), u("q3")), 1, "whole"),
    "a summary": (TWO, (sys("They said q1 and q2."), TWO[4], u("q3")), 1, "whole"),
    "a rewritten reply": (TWO, (*TWO[:4], a("A2!"), u("q3")), 0, [u("q2"), a("A2!"), u("q3")]),
    "rewritten and trimmed": (TWO, (a("a1"), u("q2"), a("A2!"), u("q3")), 0, "whole"),
    "nothing of ours": (TWO, (u("x"), a("y"), u("z")), None, [u("x"), a("y"), u("z")]),
    "the same reply thrice": (SAME, (a("Done."), u("q4")), 2, "whole"),
    "the reply in its place": (SAME, (u("q2"), a("Done."), u("other")), 1, "whole"),
    "all results at once": (
        CALLS, (*CALLS, result("c1", "hot"), result("c2", "cold")), 0,
        [result("c1", "hot"), result("c2", "cold")],
    ),
    "arguments written otherwise": (
        CALLS,
        (CALLS[0], a("", call("c1", '{ "city":"Rome" }'), call("c2", '{"city":"Oslo"}')),
         result("c1", "hot")),
        0, [result("c1", "hot")],
    ),
    "other arguments": (
        CALLS, (CALLS[0], a("", call("c1", '{"city": "Bonn"}')), result("c1", "hot")), None,
        [CALLS[0], a("", call("c1", '{"city": "Bonn"}')), result("c1", "hot")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_a_request_of_a_named_session_finds_its_turn(key: ApiKey, case: str) -> None:
    before, now, parent, new = PLACES[case]
    turns = talk(key, *before, session="s")
    turn = send(key, *now, session="s")[0]
    assert turn.session == turns[0].session
    assert turn.parent == (None if parent is None else turns[parent])
    assert turn.input_messages == (list(now) if new == "whole" else new)
    assert [plainly(m) for m in messages_for(turn)] == [plainly(m) for m in now]


def plainly(message: Message) -> Any:
    calls = [
        [c["function"]["name"], json.loads(c["function"]["arguments"])]
        for c in message.get("tool_calls", ())
    ]
    return message["role"], message["content"].strip(), calls


@pytest.mark.parametrize("case", PLACES)
def test_without_a_name_only_what_was_said_counts(key: ApiKey, case: str) -> None:
    before, now, parent, new = PLACES[case]
    turns = talk(key, *before)
    assert {turn.session_id for turn in turns} == {turns[0].session_id}
    turn = send(key, *now)[0]
    prefix = [0] if now[:3] == before[:3] and new == "whole" and before is TWO else []
    expected = prefix[0] if prefix else parent if new != "whole" else None
    assert turn.parent == (None if expected is None else turns[expected])
    assert (turn.session == turns[0].session) == (expected is not None)
    assert [plainly(m) for m in messages_for(turn)] == [plainly(m) for m in now]


def test_who_hangs_up_in_mid_reply_goes_on_from_what_came(key: ApiKey) -> None:
    turn = finish(send(key, u("q1"), session="s")[0], a("Once upon a time, in"), state="stopped")
    whole = finish(send(key, u("q1"), session="s")[0], a("Once upon a time there was one."))
    assert send(key, u("q1"), a("Once upon"), u("go on"), session="s")[0].parent == turn
    assert send(key, u("q1"), a(""), u("go on"), session="s")[0].parent is None
    assert send(key, u("q1"), a(whole.reply), u("q2"), session="s")[0].parent == whole


def test_a_changed_conversation_goes_on_as_the_client_has_it(key: ApiKey) -> None:
    turns = talk(key, *TWO, session="s")
    now = (sys("Today is Tuesday."), *TWO[1:], u("q3"))
    third = finish(send(key, *now, session="s")[0], a("a3"))
    fourth = send(key, *now, a("a3"), u("q4"), session="s")[0]
    assert (third.parent, fourth.parent) == (turns[1], third)
    assert fourth.input_messages == [u("q4")]
    assert messages_for(fourth) == [*now, a("a3"), u("q4")]
    assert (next_turn(turns[1]), next_state(third)) == (third, [u("q3")])


def test_asked_for_again_in_the_browser_it_is_still_the_clients_conversation(key: ApiKey) -> None:
    talk(key, *TWO, session="s")
    third = finish(send(key, sys("New."), TWO[4], u("q3"), session="s")[0], a("a3"))
    again = chat.regenerate(turn=third)
    assert messages_for(again) == [sys("New."), TWO[4], u("q3")]
    assert (again.parent, again.session) == (third.parent, third.session)


def test_results_that_come_one_by_one_are_one_next_state(key: ApiKey) -> None:
    turn = talk(key, *CALLS)[0]
    one = send(key, *CALLS, result("c1", "hot"))[0]
    both = send(key, *CALLS, result("c1", "hot"), result("c2", "cold"))[0]
    assert (one.parent, both.parent) == (turn, turn)
    assert next_turn(turn) == both
    assert next_state(both) == [result("c1", "hot"), result("c2", "cold")]


def test_a_reply_asked_for_again_is_no_next_state(key: ApiKey) -> None:
    first, second = talk(key, *TWO)
    again = finish(send(key, *TWO[:4])[0], a("a2b"))
    assert (again.parent, next_turn(second), next_turn(again)) == (first, None, None)
    third = send(key, *TWO[:4], a("a2b"), u("q3"))[0]
    assert (next_turn(second), next_turn(again), third.parent) == (None, third, again)


def test_a_heartbeat_is_no_part_of_the_conversation(key: ApiKey) -> None:
    turns = talk(key, *TWO, session="s")
    beat = (*TWO, u("Read HEARTBEAT.md"))
    side = finish(send(key, *beat, session="s", turn_type="side")[0], a("HEARTBEAT_OK"))
    turn = send(key, *beat, a("HEARTBEAT_OK"), u("hello?"), session="s")[0]
    assert (side.parent, turn.parent, next_turn(turns[1])) == (turns[1], turns[1], turn)
    assert next_state(turn) == []  # who knows which of the two replies it is about


def test_two_conversations_that_begin_alike_stay_two(key: ApiKey) -> None:
    one, two = send(key, u("hi"))[0], send(key, u("hi"))[0]
    assert one.session != two.session
    finish(one, a("hello"))
    finish(two, a("good day"))
    assert send(key, u("hi"), a("good day"), u("q"))[0].parent == two


def test_another_key_and_another_person_begin_their_own(key: ApiKey, alice, bob) -> None:
    turns = talk(key, *TWO)
    for user in (alice, bob):
        other = accounts.make_key(user=user, name="o", scopes=accounts.CLI_SCOPES)[0]
        turn = send(other, *TWO, u("q3"))[0]
        assert turn.parent is None
        assert turn.session not in {turns[0].session}
        assert turn.session.user == user
    named = send(other, *TWO, u("q3"), session=turns[0].session.public_id)[0]
    assert (named.session.user, named.parent) == (bob, None)


def test_a_session_answers_to_its_own_id(key: ApiKey) -> None:
    turns = talk(key, *TWO)
    turn = send(key, TWO[4], u("q3"), session=turns[0].session.public_id)[0]
    assert (turn.session, turn.parent) == (turns[0].session, turns[1])


# Closing


def test_a_session_that_is_done_opens_again_by_its_name_alone(key: ApiKey) -> None:
    turns = talk(key, *TWO, session="s")
    last = finish(send(key, *TWO, u("bye"), session="s", done=True)[0], a("bye"))
    session = ChatSession.objects.get()
    assert session.closed_at is not None
    assert session.done
    unnamed = send(key, *TWO, u("bye"), a("bye"), u("q4"))[0]
    assert (unnamed.session == session, unnamed.parent) == (False, None)
    named = send(key, *TWO, u("bye"), a("bye"), u("q4"), session="s")[0]
    assert (named.session, named.parent) == (session, last)
    session.refresh_from_db()
    assert (session.closed_at, session.done) == (None, False)
    assert turns[0].session == session


def test_a_session_closes_when_nothing_is_said_for_an_hour(key: ApiKey, settings) -> None:
    quiet = talk(key, *TWO)[0].session
    busy = send(key, u("hello"))[0].session
    assert sessions.close_idle() == 0
    long_ago = timezone.now() - timedelta(seconds=3601)
    ChatSession.objects.update(updated_at=long_ago)
    assert sessions.close_idle() == 1
    quiet.refresh_from_db()
    busy.refresh_from_db()
    assert (quiet.closed_at is None, busy.closed_at, quiet.done) == (False, None, False)
    turn = send(key, *TWO, u("good morning"))[0]  # the next day
    assert (turn.session, turn.session.closed_at) == (quiet, None)


def test_the_sweep_closes_and_a_closed_sessions_last_reply_can_be_rated(
    key: ApiKey, engine, valkey_server
) -> None:
    turn = talk(key, *TWO)[-1]
    ChatSession.objects.update(updated_at=timezone.now() - timedelta(seconds=3601))
    tasks.sweep()
    assert ChatSession.objects.get().closed_at is not None
    Turn.objects.update(prompt_ids=[1], response_ids=[2], logprobs=[-0.5])
    turn.refresh_from_db()
    down(turn)
    assert ready_samples(turn.session.user).get().turn == turn


# Sent twice


def test_an_idempotency_key_gives_the_same_turns(key: ApiKey) -> None:
    turns = send(key, u("hi"), n=3, once="k1")
    assert send(key, u("hi"), n=3, once="k1") == turns
    for turn in turns:
        finish(turn, a("hello"))
    assert send(key, u("hi"), n=3, once="k1") == turns
    assert (Turn.objects.count(), ChatSession.objects.count()) == (3, 1)


def test_idempotency_keys_of_two_api_keys_are_two(key: ApiKey, alice) -> None:
    other = accounts.make_key(user=alice, name="o", scopes=accounts.CLI_SCOPES)[0]
    assert send(key, u("hi"), once="k1") != send(other, u("hi"), once="k1")


def test_an_idempotency_key_is_not_used_for_another_request(key: ApiKey) -> None:
    send(key, u("hi"), once="k1")
    with pytest.raises(OtherRequest):
        send(key, u("ho"), once="k1")
    with pytest.raises(OtherRequest):
        send(key, u("hi"), once="k1", asked="base")
    assert Turn.objects.count() == 1


def test_what_a_crash_left_half_opened_is_completed(key: ApiKey) -> None:
    turns = send(key, u("hi"), n=3, once="k1")
    turns[1].delete()
    again = send(key, u("hi"), n=3, once="k1")
    assert (again[0], again[2]) == (turns[0], turns[2])
    assert {turn.session_id for turn in again} == {turns[0].session_id}
    assert Turn.objects.count() == 3


def test_two_processes_that_open_the_same_request_make_one_turn(key: ApiKey, monkeypatch) -> None:
    """The other process writes between this one's look and its write."""
    real, theirs = requests._under, []

    def look(request, ids):
        there = real(request, ids)
        if not theirs:
            theirs.append(None)
            theirs[0] = send(key, u("hi"), once="k1")[0]
            return {}
        return there

    monkeypatch.setattr(requests, "_under", look)
    assert send(key, u("hi"), once="k1") == theirs
    assert (Turn.objects.count(), ChatSession.objects.count()) == (1, 1)
    assert Turn.objects.get().readers == 2


@pytest.mark.parametrize("state", ["failed", "interrupted", "stopped"])
@pytest.mark.parametrize("mark", [{"once": "k1"}, {"retried": True}])
def test_half_a_reply_is_not_given_again(key: ApiKey, state: str, mark: Any) -> None:
    first = finish(send(key, u("hi"), session="s", **mark)[0], a("hel"), state=state)
    again = send(key, u("hi"), session="s", **mark)[0]
    assert again != first
    assert (again.session, again.parent) == (first.session, first.parent)
    assert send(key, u("hi"), session="s", **mark)[0] == again


@pytest.mark.parametrize("name", [None, "s"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_marked_retry_joins_what_is_there(key: ApiKey, name: str | None, n: int) -> None:
    first = send(key, u("hi"), session=name, n=n)
    assert send(key, u("hi"), session=name, n=n, retried=True) == first
    for turn in first:
        finish(turn, a("hello"))
    assert send(key, u("hi"), session=name, n=n, retried=True) == first
    assert Turn.objects.count() == n
    Turn.objects.update(finished_at=timezone.now() - timedelta(minutes=6))
    assert send(key, u("hi"), session=name, n=n, retried=True) != first


def test_a_retry_of_something_else_is_something_else(key: ApiKey) -> None:
    first = send(key, u("hi"), session="s")[0]
    for values in ({"asked": "base"}, {"n": 2}, {"session": "t"}, {"once": "k"}):
        turns = send(key, u("hi"), **{"session": "s", "retried": True, **values})
        assert first not in turns
    assert send(key, u("ho"), session="s", retried=True) != [first]


def test_without_a_mark_the_same_request_asks_for_another_reply(key: ApiKey) -> None:
    first, second = (send(key, u("hi"), session="s")[0] for _ in range(2))
    assert first != second
    assert (first.parent, first.session) == (second.parent, second.session)


def test_who_comes_while_the_last_one_leaves_does_not_join_a_reply_that_stops(
    key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = send(key, u("hi"))[0]
    joined: list[bool] = []
    join = requests.join
    monkeypatch.setattr(requests.chat, "request_stop", lambda row: joined.append(join(row)))
    requests.hang_up(turn)
    assert joined == [False]


def test_a_reply_is_stopped_when_nobody_waits_for_it_any_more(key: ApiKey) -> None:
    turn = send(key, u("hi"))[0]
    send(key, u("hi"), retried=True)
    requests.hang_up(turn)
    turn.refresh_from_db()
    assert not turn.stop_requested
    requests.hang_up(turn)
    turn.refresh_from_db()
    assert turn.stop_requested
    assert send(key, u("hi"), retried=True) != [turn]


def test_of_who_keeps_nothing_no_hash_of_words_stays(key: ApiKey, alice, valkey_server) -> None:
    User.objects.filter(pk=alice.pk).update(consent=Consent.NOTHING)
    key.user.refresh_from_db()  # each request reads its key, and whose it is
    first = send(key, u("hi"), once="k1")
    assert send(key, u("hi"), once="k1") == first
    assert Turn.objects.get().request_hash == ""


def test_an_errand_gives_no_title(key: ApiKey) -> None:
    send(key, u("### Task: a title"), session="s", turn_type="side")
    assert ChatSession.objects.get().title == ""
    send(key, u("hello"), session="s")
    assert ChatSession.objects.get().title == "hello"
