"""A reply while it is written: its token log in Valkey, from both ends.

An entry holds text with its place (`offset`, in characters), parts of tool calls with theirs
(`at`), log-probs that the caller asked for, who answers (`by`), and last how it ended. A reader may
come late, leave and come back: it says how many characters it has, and gets the rest. What the log
has not (trimmed, Valkey restarted or down) the row has, at most a second later.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from clawweb import valkey
from clawweb.models import Turn, TurnState
from clawweb.orm import in_db
from clawweb.selectors.chat import reply_of, token_counts, tool_calls_of
from clawweb.selectors.waiting import replies_before
from rollouts.types import Delta

log = logging.getLogger(__name__)

BLOCK_MS = 1000
POLL_SECONDS = 0.3
DOWN_SECONDS = 1.0  # how long nothing is written after a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a reply ended, and how much of it there is."""

    state: str
    finish_reason: str
    error: str
    code: str
    chars: int
    calls: Sequence[int]  # characters of each tool call's arguments
    prompt_tokens: int | None
    completion_tokens: int | None


ERASED = Ended(
    state=TurnState.INTERRUPTED,
    finish_reason="",
    error="This chat was erased while its reply was written.",
    code="erased",
    chars=0,
    calls=(),
    prompt_tokens=None,
    completion_tokens=None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is new of a reply; `cursor` counts its characters up to the end of `text`."""

    text: str = ""
    cursor: int = 0
    calls: tuple[dict[str, Any], ...] = ()  # OpenAI's deltas
    logprobs: tuple[dict[str, Any], ...] = ()  # OpenAI's entries, of callers that asked
    by: tuple[str, str] | None = None  # adapter ("" = base) and why base had to answer
    before: int | None = None  # replies that are begun before this one, told when it changes
    ended: Ended | None = None  # in the last piece, and in no other


class TokenLogs:
    """The writing end, for all replies of one event loop. What comes while a write is under way
    goes out with the next one. While Valkey is down entries are lost: readers turn to the row."""

    def __init__(self) -> None:
        self._client = valkey.connect_async(read_seconds=2)
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._down_until = 0.0

    def begin(self, public_id: str, adapter: str, fallback: str) -> None:
        self._add(public_id, {"by": json.dumps([adapter, fallback])})

    def add(self, public_id: str, delta: Delta, *, offset: int, at: Sequence[int]) -> None:
        """`offset` is the text's place; `at` each call's, in the characters of its arguments."""
        fields: dict[str, Any] = {"offset": offset, "text": delta.text}
        if delta.tool_calls:
            calls = [{**c, "at": place} for c, place in zip(delta.tool_calls, at, strict=True)]
            fields["calls"] = json.dumps(calls)
        if delta.shown_logprobs:
            fields["logprobs"] = json.dumps(delta.shown_logprobs)
        self._add(public_id, fields)

    async def end(self, public_id: str, ended: Ended | None) -> None:
        """Nothing follows; None when the row alone says how it ended. Returns when written."""
        self._add(public_id, {"end": json.dumps(asdict(ended)) if ended else ""})
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        try:
            await self._client.aclose()
        except valkey.ValkeyError:
            return

    def _add(self, public_id: str, fields: dict[str, Any]) -> None:
        if asyncio.get_running_loop().time() < self._down_until:
            return
        self._waiting.append((valkey.gen_key(public_id), fields))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting:
                entries, self._waiting = self._waiting, []
                pipe = self._client.pipeline(transaction=False)
                for key, fields in entries:
                    pipe.xadd(key, fields, maxlen=valkey.MAX_ENTRIES)
                for key in {key for key, _ in entries}:  # made anew where Valkey has lost it
                    pipe.expire(key, valkey.TTL_SECONDS)
                await pipe.execute()
        except valkey.ValkeyError as exc:
            log.warning("the token log is off: %s", exc)
            self._waiting = []
            self._down_until = asyncio.get_running_loop().time() + DOWN_SECONDS
        finally:
            self._writing = None


async def follow(turn: Turn, cursor: int = 0) -> AsyncGenerator[Piece, None]:
    """All that is known of the reply after `cursor` characters; the last piece says how it
    ended."""
    place = _Place(cursor)
    client = await valkey.kept_client()
    last = "0"
    while True:
        try:
            # The blocking read comes first: what ends between it and the row is then in the row.
            entries = await client.xread(
                {valkey.gen_key(turn.public_id): last}, count=200, block=BLOCK_MS
            )
        except valkey.ValkeyError:
            entries = []
            await asyncio.sleep(POLL_SECONDS)
        place.has_gap = not entries
        for entry_id, fields in entries[0][1] if entries else ():
            last = entry_id
            piece = place.after(fields)
            if piece is not None:
                yield piece
                if piece.ended is not None:
                    return
        if place.has_gap:
            row = await in_db(_row, turn.pk)
            piece = place.after_row(*row) if row else place.erased()
            if piece is not None:
                yield piece
                if piece.ended is not None:
                    return


def ended_as(turn: Turn) -> Ended | None:
    """How the row says that the reply ended; None while it has not."""
    if not turn.is_finished:
        return None
    prompt_tokens, completion_tokens = token_counts(turn)
    return Ended(
        state=turn.state,
        finish_reason=turn.finish_reason,
        error=turn.error,
        code=turn.error_code,
        chars=len(reply_of(turn)),
        calls=[len(call["function"]["arguments"]) for call in tool_calls_of(turn)],
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )


def _row(pk: int) -> tuple[Turn, str, list[dict[str, Any]], Ended | None, int | None] | None:
    """What the row holds of the reply, and how many come before it; None when it is erased."""
    turn = Turn.objects.filter(pk=pk).first()
    if turn is None:
        return None
    ended = ended_as(turn)
    calls = tool_calls_of(turn) if ended else []
    return turn, reply_of(turn), calls, ended, replies_before(turn)


class _Place:
    """How much of a reply a reader has."""

    def __init__(self, chars: int) -> None:
        self.chars = chars
        self.calls: dict[int, int] = {}  # characters of each call's arguments
        self.before: int | None = None  # the last told
        self.has_gap = False

    def after(self, fields: Mapping[str, str]) -> Piece | None:
        """What is new in a log entry; `has_gap` when something before it is missing."""
        if "end" in fields:
            ended = Ended(**json.loads(fields["end"])) if fields["end"] else None
            if ended and ended.chars == self.chars and ended.calls == list(self.calls.values()):
                return Piece(cursor=self.chars, ended=ended)
            self.has_gap = True
            return None
        if "by" in fields:
            adapter, fallback = json.loads(fields["by"])
            return Piece(cursor=self.chars, by=(adapter, fallback))
        text = self._text(fields["text"], int(fields["offset"]))
        calls = [self._call(call) for call in json.loads(fields.get("calls", "[]"))]
        logprobs = json.loads(fields.get("logprobs", "[]")) if text == fields["text"] else ()
        return self._piece(text, [call for call in calls if call], logprobs)

    def after_row(
        self,
        turn: Turn,
        text: str,
        calls: Sequence[dict[str, Any]],
        ended: Ended | None,
        before: int | None,
    ) -> Piece | None:
        """What is new in the row; its tool calls are there when the reply is finished."""
        if turn.state == TurnState.PENDING:
            if before is None or before == self.before:
                return None
            self.before = before
            return Piece(cursor=self.chars, before=before)
        rest = [self._rest(index, call) for index, call in enumerate(calls)]
        new = self._text(text[self.chars :], self.chars)
        by = (turn.adapter_name, turn.fallback)
        return self._piece(new, [call for call in rest if call], (), by=by, ended=ended)

    def erased(self) -> Piece:
        """The end of a reply whose row is gone: what there was of it was read, or never will be."""
        calls = list(self.calls.values())
        return Piece(cursor=self.chars, ended=replace(ERASED, chars=self.chars, calls=calls))

    def _piece(
        self, text: str, calls: Sequence[dict[str, Any]], logprobs: Any, **more: Any
    ) -> Piece | None:
        if not (text or calls or more.get("ended")):
            return None
        return Piece(
            text=text, cursor=self.chars, calls=tuple(calls), logprobs=tuple(logprobs), **more
        )

    def _text(self, text: str, offset: int) -> str:
        if offset > self.chars:
            self.has_gap = True
            return ""
        new = text[self.chars - offset :]
        self.chars += len(new)
        return new

    def _call(self, call: dict[str, Any]) -> dict[str, Any] | None:
        at, index = call.pop("at"), call["index"]
        known, begins = self.calls.get(index), "id" in call
        is_next = begins and index == len(self.calls)  # calls come in order, the lost ones too
        if at > (known or 0) or (known is None and not is_next):
            self.has_gap = True
            return None
        if known is not None and (begins or at < known):
            return None  # read already
        self.calls[index] = at + len(call["function"].get("arguments", ""))
        return call

    def _rest(self, index: int, call: dict[str, Any]) -> dict[str, Any] | None:
        known, arguments = self.calls.get(index), call["function"]["arguments"]
        self.calls[index] = len(arguments)
        if known is None:
            return {"index": index, **call}
        rest = {"index": index, "function": {"arguments": arguments[known:]}}
        return rest if len(arguments) > known else None
