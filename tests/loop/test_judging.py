"""A next message that is judged, on the real parts: from a socket to a judge to a version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.judge_server import Asked, JudgeServer
from tests.loop.person import Person, held_still, listed, person, wait_for
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

COMPLAINT = "That is far too long. One short sentence, please."
HINTS = ("Answer in one short sentence.", "Use at most ten words in your answer.")
NO_SIGNAL = "HINT: none\nVERDICT: 0"


def reads_complaints(asked: Asked) -> None:
    """-1 with one of two hints for who complains, 0 for anything else."""
    if COMPLAINT in asked.question:
        asked.text(f"HINT: {HINTS[asked.number % 2]}\nVERDICT: -1")
    else:
        asked.text(NO_SIGNAL)


@pytest.fixture
def judge(stack: Stack) -> Iterator[JudgeServer]:
    assert stack.judge is not None
    quiet = stack.judge.say
    stack.judge.say = reads_complaints
    yield stack.judge
    stack.judge.say = quiet


@pytest.fixture(scope="module")
def carol(stack: Stack) -> Iterator[Person]:
    with person(stack, "loop-carol") as someone:
        yield someone


def talk(someone: Person, first: str, name: str) -> tuple[str, list[dict[str, Any]]]:
    """The first reply's turn, and the messages with which its user goes on."""
    question = {"role": "user", "content": first}
    turn = someone.ask("", session=name, messages=[question], max_tokens=48)
    reply = {"role": "assistant", "content": someone.turn(turn)["reply"]}
    return turn, [question, reply, {"role": "user", "content": COMPLAINT}]


def times_asked(judge: JudgeServer, words: str) -> int:
    return sum(words in asked["messages"][-1]["content"] for asked in list(judge.asked))


def judgement(someone: Person, turn: str) -> dict[str, Any]:
    return someone.row("judgement", turn_id=someone.row("turn", public_id=turn)["id"])


def test_a_complaint_is_judged_before_it_is_answered_and_trains(
    stack: Stack, carol: Person, judge: JudgeServer
) -> None:
    """While nobody writes, so that no answer can be there first, however short it is."""
    turn, messages = talk(carol, "Why is the sky blue?", "judged")
    assert carol.receipt(turn) is None
    body = {"messages": messages, "max_tokens": 48, "stream": True}
    headers = {"X-Session-Id": "judged"}
    with (
        held_still(stack, "generator"),
        carol.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        after = answer.headers["X-Clawweb-Turn"]
        wait_for("a receipt", lambda: carol.receipt(turn), timeout=60)
        assert carol.turn(after)["state"] == "pending"
    receipt = carol.receipt(turn)
    assert receipt["text"] == "counted (1 of 8), from what came next"
    row = judgement(carol, turn)
    assert (row["state"], row["score"]) == ("judged", -1)
    assert len(listed(row, "votes")) == 3
    assert sorted(listed(row, "hints")) == sorted(HINTS)
    job = carol.post("/api/jobs", status=202)
    ended = carol.until_ended(job["id"])
    assert ended["state"] in ("deployed", "refused"), ended["reason"]
    if ended["state"] == "deployed":
        assert carol.receipt(turn)["state"] == "learned"


def test_an_outage_holds_the_reply_until_the_judge_is_back(
    carol: Person, judge: JudgeServer
) -> None:
    judge.say = Asked.die
    turn, messages = talk(carol, "How do I make tea?", "outage")
    carol.ask("", session="outage", messages=messages, max_tokens=4)
    wait_for("a vain round", lambda: judgement(carol, turn)["error"], timeout=60)
    assert judgement(carol, turn)["state"] == "waiting"
    assert carol.receipt(turn) is None
    judge.say = reads_complaints
    wait_for("a receipt", lambda: carol.receipt(turn), timeout=90)
    assert carol.receipt(turn)["state"] == "counted"


def test_a_killed_worker_is_replaced_and_loses_no_judgement(
    stack: Stack, carol: Person, judge: JudgeServer
) -> None:
    question, killed = "Why do cats purr?", stack.pid("worker-judge")
    before = times_asked(judge, question)
    judge.say = Asked.stall
    turn, messages = talk(carol, question, "killed")
    carol.ask("", session="killed", messages=messages, max_tokens=4)
    wait_for("three questions", lambda: times_asked(judge, question) >= before + 3, timeout=60)
    stack.kill("worker-judge")
    judge.say = reads_complaints  # before the next worker asks: a stall would be an attempt
    stack.wait_until_ready("worker-judge", not_pid=killed)
    wait_for("a receipt", lambda: carol.receipt(turn), timeout=120)
    assert judgement(carol, turn)["attempts"] == 2
