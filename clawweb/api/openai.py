"""`/v1`: OpenAI's chat API over the caller's own agent. Bearer keys only; OpenAI's error shape."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from pydantic import ValidationError

from clawweb import tasks
from clawweb.api.admission import within_limits
from clawweb.api.auth import bearer
from clawweb.api.chat_request import ChatRequest, Unacceptable, headers_of
from clawweb.limits import Refused, book, limits_of, note_wrong_key
from clawweb.models import ApiKey, Turn, TurnState, User
from clawweb.orm import in_db
from clawweb.selectors import chat as chats
from clawweb.selectors.learning import adapters_of
from clawweb.services import requests
from clawweb.services.accounts import key_for
from clawweb.services.errors import ServiceError
from clawweb.services.requests import Request
from clawweb.streams import read_reply
from clawweb.turn_types import classify

log = logging.getLogger(__name__)
View = Callable[[HttpRequest, ApiKey], Awaitable[HttpResponseBase]]
_DETACHED: set[asyncio.Task[None]] = set()
WANTED = "Send a valid key as `Authorization: Bearer <key>`."
STOP_SECONDS = 20  # in which a stopped reply has ended, or its generator has
BROKEN = (TurnState.FAILED, TurnState.INTERRUPTED)  # half a reply is not a reply that stopped


def error(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> JsonResponse:
    """OpenAI's error shape."""
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    body = {"message": message, "type": kind, "param": param, "code": code}
    return JsonResponse({"error": body}, status=status)


def with_key(
    scope: str, method: str
) -> Callable[[View], Callable[..., Awaitable[HttpResponseBase]]]:
    """Lets a view be called by `method` with a key that has `scope`; errors in OpenAI's shape."""

    def wrap(view: View) -> Callable[..., Awaitable[HttpResponseBase]]:
        @csrf_exempt
        async def guarded(request: HttpRequest) -> HttpResponseBase:
            if request.method != method:
                return error(405, f"Use {method} here.")
            try:
                key = await _known_key(request)
                if key is None:
                    return error(401, WANTED, code="invalid_api_key")
                if scope not in key.scopes:
                    return error(403, f"This key lacks the scope {scope!r}.", code="missing_scope")
                return await within_limits(
                    key, lambda: _answered(view, request, key), generates=method == "POST"
                )
            except Refused as exc:
                response = error(429, str(exc), code="rate_limit_exceeded")
                for name, value in exc.headers.items():
                    response[name] = value
                return response

        return guarded

    return wrap


async def _known_key(request: HttpRequest) -> ApiKey | None:
    key = await in_db(key_for, bearer(request)) if bearer(request) else None
    if key is None:
        await in_db(note_wrong_key, request.META.get("REMOTE_ADDR", ""))
    return key


async def _answered(view: View, request: HttpRequest, key: ApiKey) -> HttpResponseBase:
    """The view's answer, or its error in OpenAI's shape."""
    try:
        return await view(request, key)
    except Unacceptable as exc:
        return error(exc.status, str(exc), code=exc.code, param=exc.param)
    except ServiceError as exc:
        return error(exc.status, str(exc), code=exc.title)
    except Exception:
        log.exception("%s failed", request.path)
        return error(500, "Something broke on our side. Try again.", code="internal_error")


@with_key("chat", "GET")
async def models(request: HttpRequest, key: ApiKey) -> HttpResponseBase:
    """What the caller may name as `model`."""

    def versions() -> list[int]:
        rows = adapters_of(key.user).filter(state__in=["live", "standby"])
        return list(rows.values_list("version", flat=True))

    names = ["agent", "base", *(f"agent@v{number}" for number in await in_db(versions))]
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "clawweb"} for name in names]
    return JsonResponse({"object": "list", "data": data})


@csrf_exempt
async def unknown(request: HttpRequest) -> HttpResponse:
    return error(404, f"There is no {request.path} here.", code="unknown_url")


@with_key("chat", "POST")
async def chat_completions(request: HttpRequest, key: ApiKey) -> HttpResponseBase:
    """One or more replies of the caller's agent, streamed or whole. Each choice is a turn."""
    try:
        body = ChatRequest.model_validate_json(request.body)
    except RequestDataTooBig as exc:
        raise Unacceptable("The request is larger than 4 MB.", status=413) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Unacceptable(f"{where}: {first['msg']}", param=where or None) from exc
    answer = Answer(await _opened(key, body, headers_of(request)), body, key)
    _detach(in_db(tasks.after_opening, answer.turns[0]))  # the reply does not wait for it
    if body.stream:
        response: HttpResponseBase = StreamingHttpResponse(
            answer.events(), content_type="text/event-stream"
        )
        response["Cache-Control"] = "no-cache"
        await answer.begun()
        if answer.turns[0].state == TurnState.FAILED:
            return _failure(answer.turns[0])
    else:
        response = await answer.whole()
    _describe(response, answer.turns[0])
    return response


async def _opened(key: ApiKey, body: ChatRequest, headers: dict[str, str]) -> list[Turn]:
    """The request's turns. A caller who hangs up meanwhile stops what has just been opened."""
    opening = asyncio.ensure_future(in_db(_open, key, body, headers))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        _detach(_stop_all(opening))
        raise


async def _stop_all(turns: Awaitable[list[Turn]]) -> None:
    for turn in await turns:
        await in_db(requests.hang_up, turn)


def _detach(work: Coroutine[Any, Any, None]) -> None:
    """Finish `work` whatever becomes of the request: a caller who hangs up may do so twice."""
    task = asyncio.create_task(work)
    _DETACHED.add(task)
    task.add_done_callback(_DETACHED.discard)


def _open(key: ApiKey, body: ChatRequest, headers: dict[str, str]) -> list[Turn]:
    """Place the request in a session and open a turn per choice; the choices are siblings."""
    _check_model(key.user, body.model)
    messages = body.plain_messages()
    turn_type, said_by = classify(messages, header=headers.get("turn_type"), body=body.turn_type)
    return requests.open_request(
        Request(
            key=key,
            messages=messages,
            params=body.sampling(),
            asked=body.model,
            session=headers.get("session") or body.session_id,
            turn_type=turn_type,
            turn_type_from=said_by,
            done=bool(headers.get("done") or body.session_done),
            once=headers.get("once"),
            retried="retried" in headers,
        )
    )


def _check_model(user: User, model: str) -> None:
    if model in ("agent", "base"):
        return
    number = model.removeprefix("agent@v")
    if number != model and number.isdigit():
        found = adapters_of(user).filter(version=int(number), state__in=["live", "standby"])
        if found.exists():
            return
    raise Unacceptable(
        f"The model {model!r} does not exist; `GET /v1/models` lists yours.",
        status=404,
        code="model_not_found",
        param="model",
    )


def _fresh(turns: list[Turn]) -> list[Turn]:
    rows = {
        t.pk: t
        for t in Turn.objects.select_related("session__user").filter(pk__in=[t.pk for t in turns])
    }
    return [rows[turn.pk] for turn in turns]


def _describe(response: HttpResponseBase, turn: Turn) -> None:
    """The headers that say who answered."""
    response["X-Clawweb-Adapter"] = turn.adapter_name or "base"
    response["X-Clawweb-Session"] = turn.session.public_id
    response["X-Clawweb-Turn"] = turn.public_id
    if turn.fallback:
        response["X-Clawweb-Fallback"] = turn.fallback


class Answer:
    """The replies to one request while they are written by the generator."""

    def __init__(self, turns: list[Turn], body: ChatRequest, key: ApiKey) -> None:
        self.turns = turns
        self.body = body
        self.key = key
        self.created = int(time.time())

    async def begun(self) -> None:
        """Until the first reply has a version (its first text) or an end: the headers name it."""
        await self._or_stop(self._first_piece())
        self.turns = await in_db(_fresh, self.turns)

    async def _first_piece(self) -> None:
        async for _ in read_reply(self.turns[0]):
            return

    async def _or_stop(self, *readers: Coroutine[Any, Any, None]) -> None:
        """Until all have read what they wait for. A caller who hangs up stops the generation.

        At once, and not when the readers have ended: a client library may swallow their
        cancellation.
        """
        tasks = [asyncio.create_task(reader) for reader in readers]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            _detach(self._stop())
            for task in tasks:
                task.cancel()
            raise
        for task in tasks:
            task.result()

    async def whole(self) -> HttpResponseBase:
        """All choices at once."""
        await self._or_stop(*(self._wait(turn) for turn in self.turns))
        await self._book()
        for turn in self.turns:
            if turn.state in BROKEN:
                return _failure(turn)
        replies = await in_db(lambda: [chats.reply_of(turn) for turn in self.turns])
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": reply},
                "finish_reason": turn.finish_reason or "stop",
                "logprobs": None,
            }
            for index, (turn, reply) in enumerate(zip(self.turns, replies, strict=True))
        ]
        return JsonResponse(
            {**self._head("chat.completion"), "choices": choices, "usage": self._usage()}
        )

    async def _wait(self, turn: Turn) -> None:
        async for _ in read_reply(turn):
            pass

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events of all choices as they come, then usage if asked for, then [DONE]."""
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(maxsize=256)
        readers = [
            asyncio.create_task(self._choice(index, turn, queue))
            for index, turn in enumerate(self.turns)
        ]
        finished = False
        try:
            waiting = len(readers)
            while waiting:
                chunk = await queue.get()
                if chunk is None:
                    waiting -= 1
                else:
                    yield _event(chunk)
            if self.body.wants_usage:
                self.turns = await in_db(_fresh, self.turns)
                usage = {"choices": [], "usage": self._usage()}
                yield _event({**self._head("chat.completion.chunk"), **usage})
            yield b"data: [DONE]\n\n"
            finished = True
        finally:
            for task in readers:
                task.cancel()
            _detach(self._book() if finished else self._stop())

    async def _choice(self, index: int, turn: Turn, queue: asyncio.Queue[Any]) -> None:
        """One choice's chunks, into the queue."""
        try:
            await queue.put(self._chunk(index, {"role": "assistant", "content": ""}))
            async for piece in read_reply(turn):
                await queue.put(self._chunk(index, {"content": piece.text}))
            row = (await in_db(_fresh, [turn]))[0]
            if row.state in BROKEN:
                await queue.put(json.loads(_failure(row).content))
            else:
                await queue.put(self._chunk(index, {}, row.finish_reason or "stop"))
        finally:
            await queue.put(None)

    def _chunk(
        self, index: int, delta: dict[str, str], reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.turns[0].public_id,
            "object": kind,
            "created": self.created,
            "model": self.body.model,
        }

    def _usage(self) -> dict[str, int]:
        prompt = len(self.turns[0].prompt_ids or ())
        replies = sum(len(turn.response_ids or ()) for turn in self.turns)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": replies,
            "total_tokens": prompt + replies,
        }

    async def _stop(self) -> None:
        for turn in self.turns:
            await in_db(requests.hang_up, turn)
        if limits_of(self.key).tokens:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.gather(*map(self._wait, self.turns))
            await self._book()

    async def _book(self) -> None:
        """Count what the replies took, once they have ended."""
        self.turns = await in_db(_fresh, self.turns)
        await in_db(book, self.key, self._usage()["total_tokens"])


def _event(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()


def _failure(turn: Turn) -> JsonResponse:
    if turn.error_code == "context_length_exceeded":
        return error(400, turn.error, code=turn.error_code, param="messages")
    if turn.error_code == "refused_by_engine":
        return error(400, turn.error, code=turn.error_code)
    return error(503, turn.error or "The reply failed.", code=turn.error_code or turn.state)
