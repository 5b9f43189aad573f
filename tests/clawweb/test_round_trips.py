"""What a reply costs before its first token: statements and commits, whatever the machine's speed.

Each commit is a write to the disk that is waited for.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from clawweb.engine import base_hash
from clawweb.generator import claimed
from clawweb.models import ApiKey, ChatSession, Turn, User
from clawweb.services import accounts, requests
from clawweb.services.requests import Request
from rollouts.types import Message, SamplingParams
from tests.clawweb.test_sessions import finish, send, u
from tests.factories import make_adapter, make_turn

pytestmark = pytest.mark.django_db(transaction=True, serialized_rollback=True)


@pytest.fixture
def key(alice: User) -> ApiKey:
    made, plain = accounts.make_key(user=alice, name="t", scopes=accounts.CLI_SCOPES)
    assert accounts.key_for(plain) == made  # its user is read with it, and its use is noted
    return made


def ask(key: ApiKey, *messages: Message) -> None:
    requests.open_request(Request(key=key, messages=messages, params=[SamplingParams()]))


def cost(work: Any) -> tuple[int, int]:
    """Statements that read or write, and commits."""
    with CaptureQueriesContext(connection) as seen:
        work()
    said = [query["sql"].split()[0] for query in seen.captured_queries]
    begun = said.count("BEGIN")
    alone = 0
    inside = False
    for word in said:
        inside = word == "BEGIN" or (inside and word != "COMMIT")
        alone += word in ("INSERT", "UPDATE", "DELETE") and not inside
    return len([word for word in said if word not in ("BEGIN", "COMMIT")]), begun + alone


def test_a_new_conversation_is_opened_with_three_statements_and_one_commit(key, valkey_server):
    assert cost(lambda: ask(key, u("hello"))) == (3, 1)  # the line, the session, the turn
    assert (ChatSession.objects.count(), Turn.objects.count()) == (1, 1)


def test_a_conversation_goes_on_with_five_statements_and_one_commit(key, valkey_server):
    (turn,) = send(key, u("hello"))
    reply = Message(role="assistant", content="ok")
    finish(turn, reply)
    assert cost(lambda: ask(key, u("hello"), reply, u("more"))) == (5, 1)


def test_a_generator_begins_with_three_statements_and_one_commit(alice, valkey_server):
    make_adapter(alice, 1, "live", base_hash=base_hash())
    turn = make_turn(alice, state="pending")
    assert cost(lambda: claimed(turn.public_id, None)) == (3, 1)  # the turn, the version, the claim
    turn.refresh_from_db()
    assert (turn.state, turn.version) == ("streaming", 1)


def test_what_came_before_is_one_statement_more(alice, valkey_server):
    first = make_turn(alice)
    turn = make_turn(alice, session=first.session, parent=first, state="pending")
    assert cost(lambda: claimed(turn.public_id, None)) == (4, 1)
