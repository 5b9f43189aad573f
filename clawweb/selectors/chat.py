"""Reads of conversations. Every query starts from the user whose data it reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from django.db.models import (
    CharField,
    Count,
    Exists,
    Func,
    Manager,
    OuterRef,
    Q,
    QuerySet,
    TextField,
)
from django.db.models.lookups import IContains
from django.utils.translation import gettext as _

from clawweb import sentences, valkey
from clawweb.markdown import render
from clawweb.models import (
    FINISHED,
    ChatSession,
    Comparison,
    Feedback,
    FeedbackReason,
    Turn,
    User,
)
from clawweb.selectors.asking import instructions_of, under
from clawweb.selectors.learning import BULKY, Waiting, receipt
from rollouts.types import Message, ReplyShape


def sessions_of(user: User) -> QuerySet[ChatSession]:
    """The user's sessions, newest first, with `turns_main` and `turns_side`."""
    return (
        ChatSession.objects.filter(user=user, deleted_at=None)
        .annotate(
            turns_main=Count("turns", filter=Q(turns__turn_type="main")),
            turns_side=Count("turns", filter=Q(turns__turn_type="side")),
        )
        .order_by("-updated_at", "-id")
    )


def sessions_with(user: User, words: str) -> QuerySet[ChatSession]:
    """Those whose name, or anything said in them, holds the words."""
    said = turns_holding(Turn.objects.filter(session=OuterRef("pk")), words)
    return sessions_of(user).filter(Q(title__icontains=words) | Exists(said))


def turns_holding(turns: QuerySet[Turn], words: str) -> QuerySet[Turn]:
    """Those in which somebody or the agent says the words."""
    asked = turns.alias(words_asked=Said("input_messages"))
    return asked.filter(Q(reply__icontains=words) | Q(words_asked__icontains=words))


@CharField.register_lookup
@TextField.register_lookup
class InAnyCase(IContains):
    """Whether a text holds words, in capitals or not. SQLite's LIKE knows that of ASCII's letters
    alone: for words with others each text is read in small ones (`lower_all`, clawweb/apps.py)."""

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        if not isinstance(self.rhs, str) or self.rhs.isascii():
            return super().as_sql(compiler, connection)
        text, values = self.process_lhs(compiler, connection)
        return f"instr(lower_all({text}), %s) > 0", [*values, self.rhs.lower()]


class Said(Func):
    """What is said in a column of messages, without the names and escapes of its JSON."""

    output_field = TextField()

    def as_sqlite(self, compiler: Any, connection: Any, **more: Any) -> Any:
        said = "group_concat(json_extract(value, '$.content'), char(10))"
        template = f"(SELECT {said} FROM json_each(%(expressions)s))"
        return self.as_sql(compiler, connection, template=template, **more)

    def as_postgresql(self, compiler: Any, connection: Any, **more: Any) -> Any:
        said = "string_agg(message ->> 'content', chr(10))"
        template = f"(SELECT {said} FROM jsonb_array_elements(%(expressions)s) AS message)"
        return self.as_sql(compiler, connection, template=template, **more)


def session_of(user: User, name: str) -> ChatSession:
    """One session by its own id or else by the caller's name for it; DoesNotExist otherwise."""
    found = sessions_of(user)
    return found.filter(public_id=name).first() or found.get(external_id=name)


def turn_of(user: User, public_id: str) -> Turn:
    """One of the user's turns; DoesNotExist for anybody else's."""
    return _with_neighbours(Turn.objects).get(
        session__user=user, session__deleted_at=None, public_id=public_id
    )


def _with_neighbours(turns: Manager[Turn]) -> QuerySet[Turn]:
    """With what `turn_json` says beside each; of where memory begins that is its id alone."""
    rows = turns.select_related("session", "session__user", "parent", "context_start", "adapter")
    return rows.defer(*(f"context_start__{name}" for name in BULKY))


def turns_of(session: ChatSession) -> QuerySet[Turn]:
    return (
        _with_neighbours(session.turns)
        .prefetch_related("feedback", "samples", "samples__job", "samples__adapter")
        .order_by("id")
    )


def path_to(turn: Turn) -> list[Turn]:
    """The turns from the first one to this one, along the branch that it lies on."""
    if turn.parent_id is None:
        return [turn]
    rows = turn.session.turns.filter(pk__lte=turn.pk).defer(*BULKY)
    turns = {row.pk: row for row in rows}
    path, at = [], turns.get(turn.pk, turn)
    while at is not None:
        path.append(at)
        at = turns.get(at.parent_id) if at.parent_id else None
    return path[::-1]


def input_of(turn: Turn) -> list[Message]:
    """The turn's new messages, wherever they are kept."""
    if turn.recorded:
        return list(turn.input_messages)
    return list(valkey.kept_text(turn.public_id).get("input", []))


def reply_of(turn: Turn) -> str:
    if turn.recorded or not turn.is_finished:
        return turn.reply
    return str(valkey.kept_text(turn.public_id).get("reply", ""))


def tool_calls_of(turn: Turn) -> list[dict[str, Any]]:
    """The calls of the turn's reply, wherever they are kept."""
    if turn.recorded:
        return list(turn.tool_calls)
    return list(valkey.kept_text(turn.public_id).get("tool_calls", []))


def shape_of(turn: Turn) -> ReplyShape:
    """What the reply may be, wherever that is kept."""
    if turn.recorded:
        kept: dict[str, Any] = {
            "tools": turn.tools,
            "tool_choice": turn.tool_choice,
            "response_format": turn.response_format,
        }
    else:
        kept = valkey.kept_text(turn.public_id).get("shape", {})
    return ReplyShape(**kept)


def token_counts(turn: Turn) -> tuple[int | None, int | None]:
    """How many tokens prompt and reply have; None when that is not known."""
    if turn.recorded:
        prompt, reply = turn.prompt_ids, turn.response_ids
        return None if prompt is None else len(prompt), None if reply is None else len(reply)
    prompt, reply = valkey.kept_text(turn.public_id).get("tokens", (None, None))
    return prompt, reply


def reply_message(turn: Turn) -> Message:
    """The reply as the message that a client sends back, with the tools that it called."""
    return said(reply_of(turn), tool_calls_of(turn))


def said(text: str, tool_calls: Sequence[dict[str, Any]] = ()) -> Message:
    """An assistant's message; `tool_calls` stands in it only when there are any."""
    message = Message(role="assistant", content=text)
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    return message


def begins_anew(turn: Turn) -> bool:
    """Whether the turn's messages are the client's whole conversation, which it has changed since
    the turn that this one follows."""
    return turn.source == "api" and turn.context_start_id == turn.pk


def messages_for(turn: Turn, *, whole: bool = False) -> list[Message]:
    """What the model is asked for this turn: the branch so far, from where its memory begins.

    `whole` gives the conversation as its client knows it, also what memory has dropped, and
    without the user's standing instructions.
    """
    return messages_along(path_to(turn), whole=whole)


def messages_along(path: list[Turn], *, whole: bool = False) -> list[Message]:
    """As `messages_for`, for the last turn of a branch that is at hand."""
    turn = path[-1]
    path = path[max((i for i, row in enumerate(path) if begins_anew(row)), default=0) :]
    messages: list[Message] = []
    start = turn.context_start_id
    if not whole and start is not None and path[0].pk < start:
        if _may_be_told(path[0], turn):
            messages += [m for m in input_of(path[0]) if m["role"] == "system"]
        path = [row for row in path if row.pk >= start]
    for earlier in path[:-1]:
        if _may_be_told(earlier, turn):
            messages += [*input_of(earlier), reply_message(earlier)]
    messages += input_of(turn)
    return messages if whole else under(instructions_of(turn), messages)


def _may_be_told(earlier: Turn, turn: Turn) -> bool:
    """Whether the earlier turn may stand in the turn's prompt. What is not to be kept gets into no
    column of a turn that is; and its texts are gone after an hour, both halves."""
    if earlier.recorded:
        return True
    return not turn.recorded and bool(valkey.kept_text(earlier.public_id))


def memory_begins_at(turn: Turn) -> bool:
    """Whether nothing of what was said before the turn may stand in its prompt: so its memory
    begins with it."""
    return turn.parent is not None and not _may_be_told(turn.parent, turn)


def next_turn(turn: Turn) -> Turn | None:
    """The main turn that the conversation went on with; None while nobody has said more.

    The newest: an edited message, a reply asked for again, or a list of tool results that has grown
    replaces what was said before it.
    """
    return turn.children.filter(turn_type="main").order_by("-id").first()


def latest_feedback(turn: Turn) -> Feedback | None:
    """The row that counts: the newest by id."""
    return max(turn.feedback.all(), key=lambda row: row.pk, default=None)


def with_labels(rows: Sequence[Feedback]) -> Sequence[Feedback]:
    """The same rows; each now has `labels`, what its reasons are called for the reader. Those that
    have them already cost no query: a page gives them to all its rows at once."""
    if all(hasattr(row, "labels") for row in rows):
        return rows
    known = dict(FeedbackReason.objects.values_list("slug", "label"))
    for row in rows:
        slugs = [reason["slug"] for reason in row.reasons]
        row.labels = [_(known[slug]) if slug in known else slug for slug in slugs]  # type: ignore[attr-defined]
    return rows


def active_reasons() -> QuerySet[FeedbackReason]:
    return FeedbackReason.objects.filter(active=True)


def all_reasons() -> QuerySet[FeedbackReason]:
    """Then those that are in use no more: who ticked one may still say more, or untick it."""
    return FeedbackReason.objects.order_by("-active", "position", "id")


def feedback_json(row: Feedback | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        "value": row.value,
        "reasons": [reason["slug"] for reason in row.reasons],
        "comment": row.comment,
        "correction": row.correction,
    }


def blind_turns(session: ChatSession) -> set[int]:
    """The session's turns that are in a blind comparison which is not decided yet."""
    pairs = Comparison.objects.filter(kind=Comparison.BLIND, verdict="", first__session=session)
    return {pk for pair in pairs.values_list("first", "second") for pk in pair}


# What would tell who wrote a reply
_HIDDEN: dict[str, Any] = {
    **dict.fromkeys(("model", "adapter", "version")),
    **{"fallback": "", "trial": False, "prompted_hints": []},
}


def turn_json(
    turn: Turn,
    siblings: Iterable[str] | None = None,
    *,
    blind: bool | None = None,
    waiting: Waiting | None = None,
) -> dict[str, Any]:
    """A turn as browsers and the API see it; who wrote it is left out while it is compared
    `blind` (None: look)."""
    if blind is None:
        blind = turn.pk in blind_turns(turn.session)
    messages = input_of(turn)
    reply = reply_of(turn)
    if siblings is None:
        siblings = (
            turn.session.turns.filter(parent_id=turn.parent_id, turn_type=turn.turn_type)
            .order_by("id")
            .values_list("public_id", flat=True)
        )
    return {
        "id": turn.public_id,
        "session": turn.session.public_id,
        "parent": turn.parent.public_id if turn.parent else None,
        "memory_begins": turn.context_start.public_id if turn.context_start else None,
        "state": turn.state,
        "turn_type": turn.turn_type,
        "turn_type_from": turn.turn_type_from,
        "source": turn.source,
        "model": turn.asked,
        "text": next((m["content"] for m in reversed(messages) if m["role"] == "user"), ""),
        "input": messages,
        "reply": reply,
        "tool_calls": tool_calls_of(turn),
        "html": render(reply) if turn.state in FINISHED else None,
        "recorded": turn.recorded,
        "adapter": turn.adapter_name or None,
        "version": turn.version,
        "fallback": sentences.said(turn.fallback),
        "trial": turn.trial,
        "prompted_hints": turn.prompted_hints,
        "blind": blind,
        **(_HIDDEN if blind else {}),
        "finish_reason": turn.finish_reason,
        "error": sentences.said(turn.error),
        "error_code": turn.error_code,
        "siblings": list(siblings),
        "feedback": feedback_json(latest_feedback(turn)),
        "receipt": receipt(turn, waiting),
        "tokens": len(turn.response_ids) if turn.response_ids is not None else None,
        "created_at": turn.created_at,
        "started_at": turn.started_at,
        "first_token_at": turn.first_token_at,
        "finished_at": turn.finished_at,
    }


def outline(session: ChatSession) -> list[dict[str, str | None]]:
    """Each turn's id, parent and type, in order: enough to find a branch, without a text."""
    rows = session.turns.order_by("id")
    names = rows.values_list("public_id", "parent__public_id", "turn_type")
    return [dict(zip(("id", "parent", "turn_type"), row, strict=True)) for row in names]


def turns_json(session: ChatSession, only: Collection[str] | None = None) -> list[dict[str, Any]]:
    """All turns of a session, or those of these ids, with siblings found in one pass."""
    families: dict[tuple[str | None, str | None], list[str]] = {}
    for row in outline(session):
        families.setdefault((row["parent"], row["turn_type"]), []).append(str(row["id"]))
    turns = turns_of(session)
    if only is not None:
        turns = turns.filter(public_id__in=only)
    hidden, waiting = blind_turns(session), Waiting(session.user)
    return [
        turn_json(
            turn,
            families[turn.parent and turn.parent.public_id, turn.turn_type],
            blind=turn.pk in hidden,
            waiting=waiting,
        )
        for turn in turns
    ]


def session_json(session: ChatSession) -> dict[str, Any]:
    """A session with its counts; made from `sessions_of` or counted here."""
    main = getattr(session, "turns_main", None)
    if main is None:
        session = sessions_of(session.user).get(pk=session.pk)
    return {
        "id": session.public_id,
        "external_id": session.external_id,
        "title": session.title,
        "turns_main": session.turns_main,  # type: ignore[attr-defined]  # annotated
        "turns_side": session.turns_side,  # type: ignore[attr-defined]  # annotated
        "locked": session.locked,
        "pinned": session.pinned,
        "temporary": session.temporary,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "closed_at": session.closed_at,
    }
