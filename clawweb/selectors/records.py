"""A user's rows as lines of a file, a few at a time: memory holds one session, never all of them.

Rows are fetched in pages and not by one long cursor: an open read keeps SQLite from writing
progress after anybody else has written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeVar

from django.db.models import F, Model, Q, QuerySet

from clawweb.models import (
    FINISHED,
    GONE_SAMPLE,
    ChatSession,
    Feedback,
    TrainingSample,
    Turn,
    User,
)
from clawweb.records import VERSION, Line, dpo_line, kto_line, sft_line
from clawweb.selectors.chat import latest_feedback, messages_along, reply_message, said
from clawweb.selectors.learning import BULKY
from rollouts.types import Message

Row = TypeVar("Row", bound=Model)
PAGE = 100


def lines_of(user: User, shape: str) -> tuple[int, Iterator[list[Line]]]:
    """How many steps an export takes, and the steps: each gives the lines that it adds."""
    if shape == "conversations":
        steps = sessions_of(user).count() + finished_turns(user).count()
        return steps, ([line] for line in conversation_lines(user))
    turns = said_about(finished_turns(user), user)
    return turns.count(), sample_lines(user, shape)


def sessions_of(user: User) -> QuerySet[ChatSession]:
    """Those that are not deleted: what can still be had back is in no file."""
    return ChatSession.objects.filter(user=user, deleted_at=None)


def finished_turns(user: User) -> QuerySet[Turn]:
    """Replies that are over; what is being written now is in the next export. Without the numbers
    of one model and one installation: no file takes them elsewhere."""
    turns = Turn.objects.filter(session__user=user, session__deleted_at=None, state__in=FINISHED)
    return turns.defer(*BULKY)


def pages(rows: QuerySet[Row]) -> Iterator[Row]:
    """All rows by rising primary key, a page at a time."""
    last = 0
    while page := list(rows.filter(pk__gt=last).order_by("pk")[:PAGE]):
        yield from page
        last = page[-1].pk


# Conversations


def conversation_lines(user: User) -> Iterator[Line]:
    for session in pages(sessions_of(user)):
        yield from lines_of_session(session)


def lines_of_session(session: ChatSession) -> Iterator[Line]:
    yield session_line(session)
    turns = finished_turns(session.user).filter(session=session).prefetch_related("feedback")
    named = turns.annotate(
        parent_name=F("parent__public_id"), start_name=F("context_start__public_id")
    )
    for turn in pages(named):
        yield turn_line(turn, session)


def session_line(session: ChatSession) -> Line:
    return {
        "type": "session",
        "version": VERSION,
        "id": session.public_id,
        "external_id": session.external_id,
        "title": session.title,
        "locked": session.locked,
        "pinned": session.pinned,
        "temporary": session.temporary,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "closed_at": session.closed_at,
        "done": session.done,
    }


def turn_line(turn: Any, session: ChatSession) -> Line:
    """`turn` is annotated with `parent_name` and `start_name`."""
    return {
        "type": "turn",
        "version": VERSION,
        "id": turn.public_id,
        "session": session.public_id,
        "parent": turn.parent_name,
        "context_start": turn.start_name,
        "turn_type": turn.turn_type,
        "turn_type_from": turn.turn_type_from,
        "source": turn.source,
        "model": turn.asked,
        "state": turn.state,
        "recorded": turn.recorded,
        "input": turn.input_messages,
        "reply": turn.reply,
        "tool_calls": turn.tool_calls,
        "reasoning": turn.reasoning,
        "tools": turn.tools,
        "tool_choice": turn.tool_choice,
        "response_format": turn.response_format,
        "prompted_hints": turn.prompted_hints,
        "instructions": turn.instructions,
        "trial": turn.trial,
        "adapter": turn.adapter_name,
        "adapter_version": turn.version,
        "fallback": turn.fallback,
        "sampling": turn.sampling,
        "finish_reason": turn.finish_reason,
        "error": turn.error,
        "error_code": turn.error_code,
        "created_at": turn.created_at,
        "started_at": turn.started_at,
        "first_token_at": turn.first_token_at,
        "finished_at": turn.finished_at,
        "feedback": [
            feedback_line(row) for row in sorted(turn.feedback.all(), key=lambda row: row.pk)
        ],
    }


def feedback_line(row: Feedback) -> Line:
    return {
        "value": row.value,
        "reasons": row.reasons,
        "comment": row.comment,
        "correction": row.correction,
        "final": row.is_final,
        "source": row.source,
        "adapter": row.adapter_name,
        "content_hash": row.content_hash,
        "at": row.created_at,
    }


# Samples, as TRL reads them


def said_about(turns: QuerySet[Turn], user: User) -> QuerySet[Turn]:
    """Those that somebody or a judge has said something about."""
    judged = TrainingSample.objects.filter(user=user, judgement__isnull=False)
    judged = judged.exclude(state__in=GONE_SAMPLE)  # a newer word has not replaced it
    rated = Feedback.objects.filter(turn__session__user=user)
    return turns.filter(Q(pk__in=rated.values("turn")) | Q(pk__in=judged.values("turn")))


def sample_lines(user: User, shape: str) -> Iterator[list[Line]]:
    """A step for each turn that something was said about: its lines in TRL's `shape`, if any."""
    tooled = finished_turns(user).exclude(tools=[], tool_calls=[])
    has_tools = tooled.exists()
    rated = said_about(finished_turns(user), user)
    sessions = sessions_of(user).filter(pk__in=rated.values("session"))
    with_tools = Q(pk__in=tooled.values("session"))
    # Readers take the kinds of the columns from the first megabytes: the richest come first.
    for session in chain(pages(sessions.filter(with_tools)), pages(sessions.exclude(with_tools))):
        whole = finished_turns(user).filter(session=session).prefetch_related("feedback", "samples")
        turns = {turn.pk: turn for turn in pages(whole)}
        rewards = {pk: reward_of(turn) for pk, turn in turns.items()}
        for pk in rated.filter(session=session).order_by("pk").values_list("pk", flat=True):
            if pk in turns:
                yield list(_lines_about(turns[pk], turns, rewards, shape, has_tools))


def reward_of(turn: Turn) -> int | None:
    """+1 or -1 as the user has it now, else as the judge does; None when neither says."""
    rating = latest_feedback(turn)
    if rating is not None and rating.value is not None:
        return rating.value
    judged = [
        sample
        for sample in turn.samples.all()
        if sample.judgement_id is not None and sample.state not in GONE_SAMPLE
    ]
    return max(judged, key=lambda row: row.pk).reward if judged else None


def _lines_about(
    turn: Turn, turns: dict[int, Turn], rewards: dict[int, int | None], shape: str, has_tools: bool
) -> Iterator[Line]:
    prompt = prompt_of(turn, turns)
    reward = rewards[turn.pk]
    if prompt is None or reward is None or not (turn.reply or turn.tool_calls):
        return
    # A column is text in all lines of a file, or in none; TRL reads the tools from text, too.
    more: Line = {"tools": json.dumps(turn.tools)} if has_tools else {}
    reply = reply_message(turn)
    rating = latest_feedback(turn)
    correction = rating.correction if rating else ""
    if shape == "kto":
        yield kto_line(prompt, reply, reward == 1, more)
    elif shape == "sft":
        if reward == 1:
            yield sft_line(prompt, reply, more)
        if correction:
            yield sft_line(prompt, said(correction), more)
    elif shape == "dpo" and reward == -1:
        if correction:
            yield dpo_line(prompt, said(correction), reply, more)
        for other in turns.values():
            liked = rewards[other.pk] == 1 and other.parent_id == turn.parent_id
            alike = liked and other.input_messages == turn.input_messages
            if alike and other.tools == turn.tools and prompt_of(other, turns) == prompt:
                yield dpo_line(prompt, reply_message(other), reply, more)


def prompt_of(turn: Turn, turns: dict[int, Turn]) -> list[Message] | None:
    """What was asked, from `turns` of its session; None when a part of it was not kept.

    Hints that stood in the prompt are left out, as training leaves them out.
    """
    path = [turn]
    while path[-1].parent_id is not None:
        parent = turns.get(path[-1].parent_id)
        if parent is None:
            return None
        path.append(parent)
    return messages_along(path[::-1]) if all(row.recorded for row in path) else None
