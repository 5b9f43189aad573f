"""Records as tests make, export and bring them in."""

from __future__ import annotations

import io
import json
from typing import Any

from clawweb import transfer_run
from clawweb.models import Transfer, Turn, User
from clawweb.records import write_line
from clawweb.selectors.records import lines_of
from clawweb.services import feedback, transfers
from clawweb.services.imports import Import, lines_in
from tests.factories import down, make_turn, up

Line = dict[str, Any]


def exported(user: User, shape: str = "conversations") -> list[Line]:
    """As a file would hold it: through text and back."""
    text = "".join(write_line(line) for step in lines_of(user, shape)[1] for line in step)
    return [json.loads(line) for line in text.splitlines()]


def brought_in(user: User, lines: list[Line] | bytes) -> Import:
    raw = lines if isinstance(lines, bytes) else "".join(map(write_line, lines)).encode()
    taken = Import(user)
    for number, line in lines_in(io.BytesIO(raw)):
        taken.take(number, line)
    return taken


def conversation(user: User) -> list[Turn]:
    """A question, its answer again, what was said after it, a background call, ratings of all."""
    first = make_turn(user, "What is rain?", reply="Water.")
    session = first.session
    again = make_turn(user, "What is rain?", session=session, reply="Water that falls.")
    call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    after = make_turn(
        user, "And snow?", session=session, parent=again, reply="", tool_calls=[call],
        tools=[{"type": "function", "function": {"name": "look"}}], finish_reason="tool_calls",
        reasoning="they want snow", adapter_name="abcdefab-u1-v2-01234567", version=2,
    )  # fmt: skip
    side = make_turn(user, "A title, please", session=session, turn_type="side", reply="Rain")
    down(first)
    feedback.rate_turn(
        turn=first, author=user, changes={"comment": "too dry", "correction": "Drops of water."}
    )
    up(again)
    return [first, again, after, side]


def exported_by_worker(user: User, shape: str = "conversations") -> Transfer:
    row = transfers.queue_export(user=user, shape=shape)
    assert transfer_run.run(row.public_id)
    row.refresh_from_db()
    return row


def brought_in_by_worker(user: User, raw: bytes) -> Transfer:
    row = transfers.queue_import(user=user, chunks=[raw])
    transfer_run.run(row.public_id)
    row.refresh_from_db()
    return row
