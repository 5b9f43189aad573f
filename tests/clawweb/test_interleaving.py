"""Clients that talk at once: each one's turns are those that it would have alone.

Property tests. Each client says, edits, asks again, retries, calls tools, rests, and (when it names
its session) forgets and rewrites what was before. Their requests and their replies' ends mix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clawweb.models import ApiKey, ChatSession, Turn, User
from clawweb.selectors.chat import messages_for, said
from clawweb.selectors.placing import plain
from clawweb.services import accounts, sessions
from rollouts.types import Message
from tests.clawweb.test_sessions import call, finish, result, send, u
from tests.clawweb.test_sessions import sys as system

pytestmark = pytest.mark.django_db

STEPS = st.sampled_from(
    ["say", "edit", "again", "retry", "tools", "errand", "idle", "forget", "rewrite", "choices"]
)
SCRIPTS = st.lists(st.tuples(st.booleans(), st.lists(STEPS, max_size=6)), min_size=1, max_size=3)
PATIENT = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Client:
    """One conversation as a client keeps it. Named clients say the same words as one another; a
    client without a name is known by its words, and these are its own."""

    def __init__(self, key: ApiKey, number: int, *, named: bool, steps: list[str]) -> None:
        self.key, self.named, self.steps = key, named, steps
        self.name = f"s{number}" if named else None
        self.messages = [system("Be kind." if named else f"Be kind. You are number {number}.")]
        self.turns: list[Turn] = []
        self.retries: list[tuple[Turn, Turn]] = []  # what was there, what a retry gave

    def run(self) -> Iterator[None]:
        """Step by step; others may speak at each `yield`."""
        yield from self._ask(u("hi"), "ok")
        if not self.named:  # who edits the first message then, without a name, begins anew
            yield from self._say()
        for step in self.steps:
            yield from getattr(self, f"_{step}")()

    def _ask(self, message: Message, reply: str, *calls: dict[str, Any], n: int = 1, **values: Any):
        self.messages.append(message)
        turns = send(self.key, *self.messages, n=n, session=self.name, **values)
        self.turns += turns
        yield
        for turn in turns[::-1]:
            finish(turn, said(reply, calls))
            yield
        self.messages.append(said(reply, calls))

    def _say(self):
        yield from self._ask(u("go on"), "ok")

    def _choices(self):
        yield from self._ask(u("choose"), "ok", n=2)

    def _last_said(self) -> int:
        return max(i for i, message in enumerate(self.messages) if message["role"] == "user")

    def _edit(self):
        self.messages = self.messages[: self._last_said()]
        yield from self._ask(u("no, this"), "ok")

    def _again(self):
        last = self._last_said()
        message, self.messages = self.messages[last], self.messages[:last]
        yield from self._ask(message, "another")

    def _retry(self):
        """The connection breaks while the reply is written, and again when it is there."""
        self.messages.append(u("once more"))
        there = send(self.key, *self.messages, session=self.name)
        self.turns += there
        for ended in (False, True):
            yield
            retried = send(self.key, *self.messages, session=self.name, retried=True)
            self.retries += zip(there, retried, strict=True)
            if not ended:
                finish(there[0], said("ok"))
        self.messages.append(said("ok"))

    def _tools(self):
        yield from self._ask(u("look"), "", call("c1"), call("c2"))
        self.messages.append(result("c1", "hot"))
        self.turns += send(self.key, *self.messages, session=self.name)  # and the rest follows
        yield
        yield from self._ask(result("c2", "cold"), "ok")

    def _errand(self):
        kept = list(self.messages)
        yield from self._ask(u("Title?"), "A title", turn_type="side")
        self.messages = kept

    def _idle(self):
        sessions.close_idle()
        ChatSession.objects.filter(pk=self.turns[0].session_id).update(closed_at="2026-01-01T00Z")
        yield

    def _forget(self):
        if self.named:
            self.messages = self.messages[-1:]
        yield from self._say()

    def _rewrite(self):
        if self.named:
            self.messages = [system(f"It is later: {len(self.turns)}."), *self.messages[1:]]
        yield from self._say()

    def seen(self) -> list[Any]:
        """The turns by their place among this client's: parent, siblings, words, prompt."""
        rows = [Turn.objects.select_related("session").get(pk=turn.pk) for turn in self.turns]
        place = {row.pk: index for index, row in enumerate(rows)}
        parents = [place[row.parent_id] if row.parent_id else None for row in rows]
        return [
            {
                "parent": parent,
                "siblings": [i for i, other in enumerate(parents) if other == parent],
                "type": row.turn_type,
                "new": [plain(message) for message in row.input_messages],
                "asked": len(messages_for(row)),
            }
            for row, parent in zip(rows, parents, strict=True)
        ]


def clients_of(key: ApiKey, scripts: list[tuple[bool, list[str]]]) -> list[Client]:
    return [
        Client(key, number, named=named, steps=steps)
        for number, (named, steps) in enumerate(scripts)
    ]


def rolled_back(key: ApiKey, clients: list[Client], order: list[int]) -> list[Any]:
    """Let them speak in this order until all are done; what each one sees of its turns then."""
    with transaction.atomic():
        running = {number: client.run() for number, client in enumerate(clients)}
        turns = iter(order)
        while running:
            number = sorted(running)[next(turns, 0) % len(running)]
            if next(running[number], "done") == "done":
                del running[number]
        sessions_of = [{turn.session_id for turn in client.turns} for client in clients]
        assert all(len(own) == 1 for own in sessions_of), "one conversation, one session"
        assert len(set.union(*sessions_of)) == len(clients), "never two in one"
        assert Turn.objects.count() == sum(len(client.turns) for client in clients)
        for client in clients:
            assert all(there == retried for there, retried in client.retries)
        seen = [client.seen() for client in clients]
        transaction.set_rollback(True)
    return seen


@PATIENT
@example(scripts=[(True, ["retry", "rewrite"])] * 3, order=[0, 1, 2] * 12)
@example(scripts=[(True, ["tools", "forget"]), (False, ["tools", "edit"])], order=[0, 1] * 12)
@given(scripts=SCRIPTS, order=st.lists(st.integers(0, 5), max_size=60))
def test_any_mix_of_clients_gives_the_turns_of_each_alone(
    alice: User, scripts: list[tuple[bool, list[str]]], order: list[int]
) -> None:
    with transaction.atomic():
        key = accounts.make_key(user=alice, name="t", scopes=accounts.CLI_SCOPES)[0]
        mixed = rolled_back(key, clients_of(key, scripts), order)
        alone = [rolled_back(key, [client], []) for client in clients_of(key, scripts)]
        transaction.set_rollback(True)
    assert mixed == [turns for (turns,) in alone]
