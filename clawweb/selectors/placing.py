"""Where a list of messages belongs: the turn that it goes on from. Reads only.

Two messages are the same when role, text, tool calls (name and parsed arguments) and the id of the
call that a tool answers are; spaces at the ends of a text do not count, nor whether arguments were
written with spaces.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from clawweb.models import ChatSession, Turn, TurnState, User
from clawweb.selectors.chat import messages_for, reply_message
from clawweb.selectors.learning import BULKY
from rollouts.types import Message

LOOKED_AT = 400  # newest turns of a session whose replies are compared one by one


@dataclass(frozen=True, slots=True)
class Found:
    """The turn that is gone on from, how many of the messages stand up to its reply, and whether
    they are what its conversation was (else the client has shortened or rewritten it)."""

    turn: Turn
    length: int
    same: bool


def plain(message: Message) -> list[Any]:
    """What counts when messages are compared, as JSON."""
    role = "system" if message["role"] == "developer" else message["role"]
    said: list[Any] = [role, message["content"].strip()]
    calls = [_call(call) for call in message.get("tool_calls", ())]
    answers = message.get("tool_call_id", "")
    return [*said, calls, answers] if calls or answers else said


def _call(call: dict[str, Any]) -> list[Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments") or "{}"
    try:
        arguments = json.loads(arguments)
    except (TypeError, ValueError, RecursionError):  # a model's call need not be JSON
        arguments = str(arguments).strip()
    return [function.get("name"), arguments]


def history_hash(messages: Sequence[Message]) -> str:
    """Names a message list by its content; equal lists of one caller continue one conversation."""
    *_, name = _names(messages)
    return name


def _names(messages: Sequence[Message]) -> Iterator[str]:
    """The name of the first message, of the first two, and so on."""
    history = History()
    for message in messages:
        history = history.after([message])
        yield history.name


class History:
    """The name of a conversation that grows, without its messages: each costs the time of its own
    length, however many stand before it."""

    def __init__(self) -> None:
        self._running = hashlib.sha256()
        self._begun = False

    def after(self, messages: Sequence[Message]) -> History:
        """This conversation and then these messages; this one stays as it is."""
        longer = History()
        longer._running, longer._begun = self._running.copy(), self._begun
        for message in messages:
            text = json.dumps(plain(message), ensure_ascii=False, sort_keys=True)
            text = f"{', ' if longer._begun else '['}{text}"
            longer._running.update(text.encode("utf-8", "surrogatepass"))
            longer._begun = True
        return longer

    @property
    def name(self) -> str:
        """As `history_hash` of all its messages."""
        whole = self._running.copy()
        whole.update(b"]")
        return whole.hexdigest()


def find_turn(
    user: User,
    messages: Sequence[Message],
    *,
    session: ChatSession | None,
    api_key_id: int | None,
    turn_type: str = "main",
) -> Found | None:
    """The turn that `messages` go on from; None when they begin a conversation.

    1. The turn after which the longest prefix of the messages stood: within the session when there
       is one, else among those that this key opened and that are not done.
    2. In a session, when the assistant has spoken after that prefix: the turn whose reply is the
       last of the assistant's messages, else the one before, and so on. Clients drop old messages,
       put the date into the system message, or summarise, and are still in their session. Of turns
       with the same reply the one wins that agrees with more of what stands before, then the
       newest.

    A main turn goes on from main turns alone: a background call is no part of a conversation.
    Messages without a word of the assistant's begin a conversation, also in a session that has one.
    """
    turns = Turn.objects.filter(session__user=user, session__deleted_at=None)
    turns = turns.select_related("session")
    if turn_type == "main":
        turns = turns.filter(turn_type="main")
    if session is None:
        return _by_prefix(turns.filter(session__api_key=api_key_id, session__done=False), messages)
    turns = turns.filter(session=session)
    found = _by_prefix(turns, messages)
    return _by_reply(turns, messages, beyond=found.length if found else 0) or found


def _by_prefix(turns: QuerySet[Turn], messages: Sequence[Message]) -> Found | None:
    lengths = {
        name: index + 1
        for index, name in enumerate(_names(messages))
        if messages[index]["role"] == "assistant"
    }
    if not lengths:
        return None
    # Every turn on the way is found: only the one that counts is read as a whole.
    found = turns.filter(history_hash__in=list(lengths)).values_list("history_hash", "pk")
    length, pk = max(((lengths[name], pk) for name, pk in found), default=(0, None))
    turn = turns.defer(*BULKY).filter(pk=pk).first()
    return Found(turn, length, same=True) if turn else None


def _by_reply(turns: QuerySet[Turn], messages: Sequence[Message], *, beyond: int) -> Found | None:
    ends = [i for i in range(beyond, len(messages)) if messages[i]["role"] == "assistant"]
    if not ends:
        return None
    answered = turns.exclude(history_hash="").exclude(state=TurnState.FAILED).defer(*BULKY)
    known = list(answered.order_by("-id")[:LOOKED_AT])
    for end in reversed(ends):
        alike = [turn for turn in known if _is_reply(messages[end], turn)]
        if alike:
            before = messages[:end]
            best = alike[0] if len(alike) == 1 else max(alike, key=lambda t: _agreeing(t, before))
            return Found(best, end + 1, same=False)
    return None


def _is_reply(message: Message, turn: Turn) -> bool:
    """Whether the message is the turn's reply, or what its client had of it when it hung up."""
    if plain(message) == plain(reply_message(turn)):
        return True
    text = message["content"].strip()
    return turn.state == TurnState.STOPPED and bool(text) and turn.reply.strip().startswith(text)


def _agreeing(turn: Turn, before: Sequence[Message]) -> tuple[int, int]:
    """How many messages before the turn's reply are the same, counted from the reply back."""
    count = 0
    for ours, theirs in zip(
        reversed(messages_for(turn, whole=True)), reversed(before), strict=False
    ):
        if plain(ours) != plain(theirs):
            break
        count += 1
    return count, turn.pk
