"""OpenClaw-RL's record files as conversations of ours."""

from __future__ import annotations

from typing import Any

import pytest

from clawweb.models import ChatSession, Judgement, Turn, User
from clawweb.services import housekeeping
from tests.recorded import Line, brought_in

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


def openclaw(turn: int, messages: list[Line], reply: str, **more: Any) -> Line:
    return {
        "session_id": "main-7",
        "turn": turn,
        "timestamp": f"2026-03-14 10:0{turn}:00",
        "messages": messages,
        "prompt_text": "<|im_start|>user …",
        "response_text": f"<think>\nhm\n</think>\n\n{reply}<|im_end|>\n",
        "tool_calls": None,
        "next_state": None,
        **more,
    }


def openclaw_file() -> list[Line]:
    one = [{"role": "system", "content": "You are kind."}, {"role": "user", "content": "Hi"}]
    two = [*one, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"}]
    return [openclaw(1, one, "Hello!"), openclaw(2, two, "Goodbye.")]


def test_openclaws_records_come_in_as_conversations(alice: User) -> None:
    report = brought_in(alice, openclaw_file()).report
    assert (report.sessions, report.turns, report.left_out) == (1, 2, 0)
    first, second = Turn.objects.order_by("id")
    assert (first.reply, first.reasoning) == ("Hello!", "hm")
    assert (second.parent, second.reply) == (first, "Goodbye.")
    assert second.input_messages == [{"role": "user", "content": "Bye"}]
    assert second.created_at.isoformat() == "2026-03-14T10:02:00+00:00"
    assert second.session.title == "Hi"
    session = ChatSession.objects.get()  # in use when its turns were, not when the file came in
    assert (session.created_at, session.updated_at) == (first.created_at, second.created_at)
    assert (second.response_ids, second.logprobs) == (None, None)


def test_a_time_that_no_calendar_has_leaves_out_its_line_alone(alice: User) -> None:
    first, second = openclaw_file()
    late = {**first, "session_id": "late", "timestamp": "9999-12-31T23:59:59-05:00"}
    unsaid = {**first, "session_id": "unsaid", "timestamp": "this morning"}
    report = brought_in(alice, [late, first, unsaid, second]).report
    assert (report.turns, report.left_out) == (3, 1)
    assert "line 1: timestamp: a time lies between the years 1 and 9999" in report.reasons[0]


def test_openclaws_records_twice_double_nothing(alice: User) -> None:
    for _ in range(2):
        brought_in(alice, openclaw_file())
    assert Turn.objects.count() == 2


def test_openclaws_records_come_in_anew_when_their_chat_was_deleted(alice: User) -> None:
    brought_in(alice, openclaw_file())
    housekeeping.delete_session(ChatSession.objects.get())
    score = {"session_id": "main-7", "turn": 1, "score": -1.0, "votes": [-1]}
    assert brought_in(alice, [score]).report.left_out == 1  # of none that is there
    report = brought_in(alice, [*openclaw_file(), score]).report
    assert (report.sessions, report.turns, report.scores, report.left_out) == (1, 2, 1, 0)
    assert Turn.objects.filter(session__deleted_at=None).count() == 2


def test_two_people_may_bring_the_same_records_in(alice: User, bob: User) -> None:
    for user in (alice, bob):
        assert brought_in(user, openclaw_file()).report.turns == 2


def test_openclaws_next_file_goes_on_where_the_first_ended(alice: User) -> None:
    """Upstream empties its files at every batch."""
    first, second = openclaw_file()
    brought_in(alice, [first])
    brought_in(alice, [second])
    assert [turn.parent_id is None for turn in Turn.objects.order_by("id")] == [True, False]


def test_openclaws_tool_calls_are_not_text(alice: User) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    text = 'Look.\n<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'
    line = openclaw(1, [{"role": "user", "content": "Look"}], text, tool_calls=[call])
    brought_in(alice, [line])
    turn = Turn.objects.get()
    assert (turn.reply, turn.tool_calls) == ("Look.", [call])


def test_openclaws_scores_are_judgements_of_turns_that_were_followed(alice: User) -> None:
    scores = [
        {"session_id": "main-7", "turn": 1, "score": -1.0, "votes": [-1, -1, "fail"]},
        {"session_id": "main-7", "turn": 2, "score": 1.0, "votes": [1]},
    ]
    report = brought_in(alice, [*openclaw_file(), *scores]).report
    assert (report.scores, report.left_out) == (1, 1)
    judgement = Judgement.objects.get()
    assert (judgement.score, judgement.turn.reply, judgement.judge) == (-1, "Hello!", "OpenClaw-RL")
    assert not alice.samples.exists()
