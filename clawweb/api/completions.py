"""The replies to one chat completion request, whole or streamed, as OpenAI writes them.

Only what was asked for goes out: no token ids, no log-probs unasked, never the model's reasoning.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine
from contextlib import aclosing
from typing import Any

from django.http import JsonResponse
from django.http.response import HttpResponseBase

from clawweb.api.chat_request import ChatRequest
from clawweb.api.openai_errors import OUR_FAULT
from clawweb.limits import book, limits_of
from clawweb.models import ApiKey, Turn, TurnState
from clawweb.orm import in_db
from clawweb.problem import openai_error as error
from clawweb.records import LINE_ENDS
from clawweb.selectors import chat as chats
from clawweb.services import requests
from clawweb.streams import ERASED, Ended, Piece, follow

log = logging.getLogger(__name__)

_DETACHED: set[asyncio.Task[None]] = set()
_WAITING = 64  # chunks of all choices that a slow reader has not taken; then we read no further
PACE_SECONDS = 10  # proxies cut connections on which nothing came for a minute, some for half
STOP_SECONDS = 20  # in which a stopped reply has ended, or its generator has
STILL_HERE = b": waiting\n\n"  # a comment, which readers of event streams leave out
BROKEN = (TurnState.FAILED, TurnState.INTERRUPTED)  # half a reply is not a reply that stopped


class Answer:
    """The replies to one request while they are written by the generator."""

    def __init__(self, turns: list[Turn], body: ChatRequest, key: ApiKey) -> None:
        self.turns = turns
        self.body = body
        self.key = key
        self.created = int(time.time())
        self.ended: list[Ended | None] = [None] * len(turns)
        self.is_known_who = False  # which version answers: not while the reply stands in line
        self.is_broken = False  # a stream that cannot be read on
        self._begun: list[Piece] = []
        self._first = follow(turns[0])
        self._beginning: asyncio.Task[None] | None = None

    async def begun(self) -> Ended | None:
        """Until the first reply has begun or ended, so that the headers name its version; not for
        longer than the line may be silent. How it ended when nothing of it came."""
        self._beginning = asyncio.create_task(self._first_piece())
        await self._or_stop(self._beginning, seconds=PACE_SECONDS)
        ended = self._begun[-1].ended if self._beginning.done() else None
        if ended is not None and ended.state == TurnState.FAILED:
            detach(self._stop())  # nobody will read the other choices
        return ended

    async def _first_piece(self) -> None:
        async for piece in self._first:
            self._note(0, piece)
            self._begun.append(piece)
            if piece.text or piece.calls or piece.ended:
                break
        if self.ended[0] is not None:
            await self._first.aclose()

    def _note(self, index: int, piece: Piece) -> None:
        if piece.by is not None:
            self.turns[index].adapter_name, self.turns[index].fallback = piece.by
            self.is_known_who |= index == 0
        if piece.ended is not None:
            self.ended[index] = piece.ended

    async def _pieces(self, index: int) -> AsyncGenerator[Piece, None]:
        if index == 0 and self._beginning:
            await self._beginning
        for piece in self._begun if index == 0 else ():
            yield piece
        async with aclosing(self._first if index == 0 else follow(self.turns[index])) as pieces:
            async for piece in pieces:
                self._note(index, piece)
                yield piece

    async def _or_stop(self, *tasks: asyncio.Task[None], seconds: float | None = None) -> None:
        """Until all have read what they wait for, or the time is over. A caller who hangs up stops
        the generation.

        At once, and not when the readers have ended: a client library may swallow their
        cancellation.
        """
        try:
            done, _ = await asyncio.wait(tasks, timeout=seconds)
        except asyncio.CancelledError:
            detach(self._stop())
            for task in tasks:
                task.cancel()
            raise
        for task in done:
            task.result()

    async def _stop(self) -> None:
        for turn in self.turns:
            await in_db(requests.hang_up, turn)
        if limits_of(self.key).tokens:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.gather(*map(self._see_end, range(len(self.turns))))
            await self._book()

    async def _see_end(self, index: int) -> None:
        if self.ended[index] is None:
            async for piece in follow(self.turns[index]):
                self._note(index, piece)

    async def _book(self) -> None:
        """Count what the replies took, once they have ended."""
        if limits_of(self.key).tokens:
            counts = [ended.completion_tokens or 0 for ended in self.ended if ended]
            prompt = self.ended[0].prompt_tokens if self.ended[0] else None
            await in_db(book, self.key, (prompt or 0) + sum(counts))

    async def whole(self) -> HttpResponseBase:
        """All choices at once."""
        logprobs: list[list[dict[str, Any]]] = [[] for _ in self.turns]
        readers = [self._read(index, found) for index, found in enumerate(logprobs)]
        await self._or_stop(*map(asyncio.create_task, readers))
        await self._book()
        for ended in self.ended:
            if ended is not None and ended.state in BROKEN:
                return failure(ended)
        messages = await in_db(self._messages)
        if not messages:
            return failure(ERASED)
        choices = [
            {
                "index": index,
                "message": {**_plain(message), "refusal": None},
                "logprobs": self._logprobs(logprobs[index]),
                "finish_reason": self._reason(index),
            }
            for index, message in enumerate(messages)
        ]
        head = self._head("chat.completion")
        return JsonResponse({**head, "choices": choices, "usage": self._usage()})

    async def _read(self, index: int, logprobs: list[dict[str, Any]]) -> None:
        async with aclosing(self._pieces(index)) as pieces:
            async for piece in pieces:
                logprobs += piece.logprobs

    def _messages(self) -> list[dict[str, Any]]:
        """Those of all choices; none when they were erased as soon as they had ended."""
        rows = {t.pk: t for t in Turn.objects.filter(pk__in=[t.pk for t in self.turns])}
        if len(rows) < len(self.turns):
            return []
        return [dict(chats.reply_message(rows[turn.pk])) for turn in self.turns]

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events of all choices as they come, then usage if asked for, then [DONE].
        A comment whenever nothing came for a while, in line or from a slow model server."""
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(maxsize=_WAITING)
        readers = [
            asyncio.create_task(self._choice(index, queue)) for index in range(len(self.turns))
        ]
        finished = False
        try:
            waiting = len(readers)
            if self._beginning and not self._beginning.done():
                yield STILL_HERE
            while waiting:
                try:
                    async with asyncio.timeout(PACE_SECONDS):
                        chunk = await queue.get()
                except TimeoutError:
                    yield STILL_HERE
                    continue
                if chunk is None:
                    waiting -= 1
                else:
                    yield _event(chunk)
            if self.is_broken:
                return  # no [DONE]: half a reply must not look like a whole one
            if self.body.wants_usage:
                usage = {"choices": [], "usage": self._usage()}
                yield _event({**self._head("chat.completion.chunk"), **usage})
            yield b"data: [DONE]\n\n"
            finished = True
        finally:
            for task in readers:
                task.cancel()
            detach(self._book() if finished else self._stop())

    async def _choice(self, index: int, queue: asyncio.Queue[dict[str, Any] | None]) -> None:
        """One choice's chunks, into the queue."""
        first: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        try:
            async with aclosing(self._pieces(index)) as pieces:
                async for piece in pieces:
                    if first and piece.calls and not piece.text:
                        first["content"] = None  # as OpenAI begins a reply that only calls tools
                    for delta in _deltas(piece):
                        if first:
                            await queue.put(self._chunk(index, first))
                            first = {}
                        await queue.put(self._chunk(index, delta, logprobs=piece.logprobs))
            if first:
                await queue.put(self._chunk(index, first))
            ended = self.ended[index]
            if ended is not None and ended.state in BROKEN:
                await queue.put(json.loads(failure(ended).content))
            else:
                await queue.put(self._chunk(index, {}, self._reason(index)))
        except Exception:
            log.exception("%s cannot be read on", self.turns[index].public_id)
            self.is_broken = True
            await queue.put(json.loads(error(500, OUR_FAULT, code="internal_error").content))
        finally:
            await queue.put(None)

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if "content" in delta else None,
            "finish_reason": reason,
        }
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return {**chunk, "usage": None} if self.body.wants_usage else chunk

    def _logprobs(self, entries: Any) -> dict[str, Any] | None:
        """None unless asked for, and where there are none (a tool call, the log was lost)."""
        if not self.body.logprobs or not entries:
            return None
        return {"content": [_shown(entry) for entry in entries], "refusal": None}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.turns[0].public_id,
            "object": kind,
            "created": self.created,
            "model": self.body.model,
        }

    def _reason(self, index: int) -> str:
        ended = self.ended[index]
        return (ended.finish_reason if ended else "") or "stop"

    def _usage(self) -> dict[str, int] | None:
        """Counts of all choices; None when one is not known."""
        prompt = self.ended[0].prompt_tokens if self.ended[0] else None
        replies = [ended.completion_tokens if ended else None for ended in self.ended]
        counts = [count for count in replies if count is not None]
        if prompt is None or len(counts) < len(replies):
            return None
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sum(counts),
            "total_tokens": prompt + sum(counts),
        }


def failure(ended: Ended) -> JsonResponse:
    """A reply that failed, as an error."""
    if ended.code == "context_length_exceeded":
        return error(400, ended.error, code=ended.code, param="messages")
    if ended.code == "refused_by_engine":
        return error(400, ended.error, code=ended.code)
    if ended.code == ERASED.code:
        return error(410, ended.error, code=ended.code)
    return error(503, ended.error or "The reply failed.", code=ended.code or ended.state)


def detach(work: Coroutine[Any, Any, None]) -> None:
    """Finish `work` whatever becomes of the request: a caller who hangs up may do so twice."""
    task = asyncio.create_task(work)
    _DETACHED.add(task)
    task.add_done_callback(_DETACHED.discard)


async def stop_all(turns: Awaitable[list[Turn]]) -> None:
    for turn in await turns:
        await in_db(requests.hang_up, turn)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Content is null where a reply only calls tools."""
    return (
        {**message, "content": message["content"] or None} if "tool_calls" in message else message
    )


def _deltas(piece: Piece) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"content": piece.text}] if piece.text else []
    return deltas + [{"tool_calls": [call]} for call in piece.calls]


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's fields of a token's log-prob, and no other."""
    names = ("token", "logprob", "bytes")
    top = [{name: other.get(name) for name in names} for other in entry.get("top_logprobs") or ()]
    return {**{name: entry.get(name) for name in names}, "top_logprobs": top}


def _event(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk, ensure_ascii=False).translate(LINE_ENDS)}\n\n".encode()
