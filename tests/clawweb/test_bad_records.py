"""Lines that are wrong, or mean harm: each is told and stops nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from pydantic import ValidationError

from clawweb.api.chat_request import ChatRequest
from clawweb.models import ChatSession, Turn, User
from clawweb.openclaw_records import OpenClawTurn
from clawweb.records import MAX_DEPTH, MAX_LINE, BadLine, TurnLine, kind_of, parse_line
from clawweb.selectors.chat import messages_for
from tests.recorded import brought_in

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


SAID = {"role": "user", "content": "x"}
WRONG = [1] * 1000


def turn_of(**values: Any) -> bytes:
    line = {"type": "turn", "version": 1, "id": "t", "session": "s", "reply": "hi", **values}
    return json.dumps(line).encode()


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"a": NaN}', "no number"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a": 99999999999999999999}', "too large"),
        (b'{"a": ' * 40 + b"1" + b"}" * 40, "nests deeper"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nests deeper"),
        (b" " * (MAX_LINE + 1), "longer than"),
        (b'{"type": "turn", "version": 2}', "version is not 1"),
        (b'{"hello": "world"}', "no session or turn of ours"),
        (turn_of(), "its session is not in a line before it"),
        (turn_of(session="here", parent="gone"), "the turn that it follows"),
        (turn_of(session="here", reply=7), "reply"),
        (turn_of(session="here", model="gpt-4"), "model"),
        (turn_of(session="here", state="pending"), "state"),
        (turn_of(session="here", input=[{"role": "root", "content": "x"}]), "role"),
        (turn_of(session="here", input=[{"role": "user", "content": {"a": 1}}]), "is text"),
        (turn_of(session="here", input=[{**SAID, "name": 7}]), "are text"),
        (turn_of(session="here", input=[{**SAID, "tool_calls": [{}]}]), "has an id"),
        (turn_of(session="here", tool_calls=[{"id": "a", "function": "x"}]), "has an id"),
        (turn_of(session="here", tool_calls=[{"id": "a", "function": {}}]), "has a name"),
        (turn_of(session="here", created_at="0001-01-01T00:00:00+05:00"), "between the years"),
        (turn_of(session="here", finished_at="9999-12-31T23:59:59-05:00"), "between the years"),
        (turn_of(session="here", adapter_version=-1), "adapter_version"),
        (turn_of(session="here", feedback=[{"value": 5}]), "feedback.0.value"),
        (
            b'{"type": "session", "version": 1, "id": "x", "external_id": "a\\u001b[2J"}',
            "printable",
        ),
        (b'{"session_id": "x", "messages": []}', "there is no message"),
        (b'{"session_id": "x", "turn": 1, "score": 1}', "has not come in"),
    ],
)
def test_a_bad_line_is_told_and_stops_nothing(alice: User, raw: bytes, why: str) -> None:
    here = b'{"type": "session", "version": 1, "id": "here"}\n'
    good = b"\n" + turn_of(id="good", session="here") + b"\n"
    report = brought_in(alice, here + raw + good).report
    assert report.left_out == (1 if raw.strip() else 0)
    assert report.turns == 1
    if raw.strip():
        assert report.reasons[0].startswith("line 2: ")
        assert why in report.reasons[0]
        assert len(report.reasons[0]) < 200


def test_what_clients_write_for_nothing_is_as_if_it_were_not_there(alice: User) -> None:
    """`model_dump()` of OpenAI's SDK writes all fields; arguments are an object with others."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    empty = {"name": None, "tool_calls": None, "tool_call_id": None, "refusal": None}
    lines = [
        b'{"type": "session", "version": 1, "id": "here"}',
        turn_of(session="here", input=[{**SAID, **empty}], tool_calls=[call], reply="",
                sampling={"temperature": "0.7"}, feedback=[{"value": 1}]),
    ]  # fmt: skip
    report = brought_in(alice, b"\n".join(lines)).report
    assert (report.left_out, report.turns, report.ratings) == (0, 1, 1)
    turn = Turn.objects.get()
    assert turn.input_messages == [SAID]
    assert turn.tool_calls[0]["function"]["arguments"] == '{"x": 1}'
    assert turn.sampling == {"temperature": 0.7}
    assert messages_for(turn)
    assert turn.feedback.get().value == 1


def test_many_bad_lines_are_counted_and_the_first_are_named(alice: User) -> None:
    report = brought_in(alice, b"nonsense\n" * 80).report
    assert report.left_out == 80
    text = str(report).splitlines()
    assert text[0].endswith("Lines left out: 80.")
    assert text[-1] == "… and 30 more"


def test_hostile_text_stays_text(alice: User) -> None:
    hostile = "<script>alert(1)</script>\x00\x1b[31m\ud800 ‮"
    line = json.dumps({"type": "session", "version": 1, "id": "s", "title": hostile}) + "\n"
    line += turn_of(reply=hostile, input=[{"role": "user", "content": hostile}]).decode() + "\n"
    assert brought_in(alice, line.encode()).report.left_out == 0
    turn = Turn.objects.get(session__user=alice)
    assert turn.reply == "<script>alert(1)</script>\ufffd\x1b[31m\ufffd ‮"


def test_nesting_that_is_allowed_is_kept() -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert parse_line(json.dumps({"a": deep}).encode()) == {"a": deep}
    with pytest.raises(BadLine):
        parse_line(json.dumps({"a": [[deep]]}).encode())


def test_kinds_of_lines_are_told_apart() -> None:
    assert kind_of({"type": "turn", "version": 1}) == "turn"
    assert kind_of({"session_id": "a", "messages": []}) == "openclaw"
    assert kind_of({"session_id": "a", "votes": []}) == "openclaw_score"


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (ChatRequest, {"messages": WRONG}),
        (ChatRequest, {"messages": [{"role": "user", "content": WRONG}]}),
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": WRONG}]}),
        (ChatRequest, {"messages": [SAID], "stop": WRONG}),
        (ChatRequest, {"messages": [SAID], "modalities": WRONG}),
        *((TurnLine, {name: WRONG}) for name in ("input", "tools", "tool_calls", "feedback")),
        (TurnLine, {"prompted_hints": WRONG}),
        (TurnLine, {"feedback": [{"reasons": WRONG}]}),
        (OpenClawTurn, {"session_id": "s", "messages": WRONG}),
    ],
)
def test_of_many_wrong_items_the_first_is_told(shape: Any, body: dict[str, Any]) -> None:
    """An error for each of a million would take gigabytes, of everybody's memory."""
    ours = {"type": "turn", "version": 1, "id": "t", "session": "s"} if shape is TurnLine else {}
    with pytest.raises(ValidationError) as told:
        shape.model_validate_json(json.dumps({**ours, **body}))
    assert told.value.error_count() < 5


@pytest.mark.parametrize("never", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"])
@pytest.mark.parametrize("ahead", ["-300", "300"])
def test_what_others_write_for_never_is_no_time(
    client: Client, alice: User, never: str, ahead: str
) -> None:
    """No page could show it to whose clock is behind, or ahead."""
    times = {"created_at": never, "updated_at": never, "closed_at": never}
    session = json.dumps({"type": "session", "version": 1, "id": "s", **times}).encode()
    turn = turn_of(created_at=never, started_at=never, finished_at=never)
    assert brought_in(alice, session + b"\n" + turn).report.turns == 1
    assert ChatSession.objects.get().closed_at is None
    client.force_login(alice)
    client.cookies["ahead"] = ahead
    chat = f"/chat/{ChatSession.objects.get().public_id}/"
    assert [client.get(page).status_code for page in ("/sessions/", chat)] == [200, 200]
