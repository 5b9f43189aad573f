"""`/v1`: OpenAI's chat API over the caller's own agent. Bearer keys only; OpenAI's error shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from clawweb import tasks
from clawweb.acting import bearer
from clawweb.api.admission import within_limits
from clawweb.api.auth import lacks
from clawweb.api.chat_request import ChatRequest
from clawweb.api.completions import Answer, detach, failure, stop_all
from clawweb.api.openai_errors import OUR_FAULT, Unacceptable
from clawweb.limits import Refused, note_wrong_key
from clawweb.logs import route_of
from clawweb.models import ApiKey, Turn, TurnState, User
from clawweb.models.ids import is_number
from clawweb.orm import in_db
from clawweb.problem import openai_error as error
from clawweb.records import MAX_SESSION_NAME, is_printable
from clawweb.selectors.learning import adapters_of
from clawweb.services import requests
from clawweb.services.accounts import key_for
from clawweb.services.errors import ServiceError
from clawweb.services.outage import outage
from clawweb.services.requests import Request
from clawweb.turn_types import classify

log = logging.getLogger(__name__)
View = Callable[..., Awaitable[HttpResponseBase]]  # of a request, its key and the path's names
SMALL = 1 << 16  # bytes of a body; reading a larger one would hold up everybody's streams
STREAM = {
    # Of a text without a charset many clients take Latin-1 for granted.
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # else nginx keeps words until it has some kilobytes of them
}
MAX_ONCE = 255
_YES = ("1", "true", "yes", "on")
WANTED = "Send a valid key as `Authorization: Bearer <key>`."


def with_key(
    scope: str, method: str
) -> Callable[[View], Callable[..., Awaitable[HttpResponseBase]]]:
    """Lets a view be called by `method` with a key that has `scope`; errors in OpenAI's shape."""

    def wrap(view: View) -> Callable[..., Awaitable[HttpResponseBase]]:
        @csrf_exempt
        async def guarded(request: HttpRequest, **names: str) -> HttpResponseBase:
            if request.method != method:
                refused = error(405, f"Use {method} here.", code="method_not_allowed")
                refused["Allow"] = method
                return refused

            async def answer() -> HttpResponseBase:
                key = await _known_key(request)
                if key is None:
                    return error(401, WANTED, code="invalid_api_key")
                if scope not in key.scopes:
                    return error(403, lacks(key, scope), code="missing_scope")
                return await within_limits(
                    key,
                    lambda: _answered(partial(view, request, key, **names), request),
                    generates=method == "POST",
                )

            return await _answered(answer, request)

        return guarded

    return wrap


async def _known_key(request: HttpRequest) -> ApiKey | None:
    key = await in_db(key_for, bearer(request)) if bearer(request) else None
    if key is None:
        await in_db(note_wrong_key, request.META.get("REMOTE_ADDR", ""))
    return key


async def _answered(
    answer: Callable[[], Awaitable[HttpResponseBase]], request: HttpRequest
) -> HttpResponseBase:
    """The answer, or its error in OpenAI's shape."""
    try:
        return await answer()
    except Refused as exc:
        response = error(429, str(exc), code="rate_limit_exceeded")
        for name, value in exc.headers.items():
            response[name] = value
        return response
    except Unacceptable as exc:
        return error(exc.status, str(exc), code=exc.code, param=exc.param)
    except ServiceError as exc:
        return _refused(exc)
    except Exception as exc:
        log.exception("%s failed", route_of(request))
        if out := outage(exc):
            return _refused(out)
        return error(500, OUR_FAULT, code="internal_error")


def _refused(exc: ServiceError) -> HttpResponse:
    response = error(exc.status, str(exc), code=exc.title)
    if exc.retry_after:
        response["Retry-After"] = str(exc.retry_after)
    return response


@with_key("chat", "GET")
async def models(request: HttpRequest, key: ApiKey) -> HttpResponseBase:
    """What the caller may name as `model`."""
    return JsonResponse({"object": "list", "data": await in_db(_models_of, key.user)})


@with_key("chat", "GET")
async def model(request: HttpRequest, key: ApiKey, name: str) -> HttpResponseBase:
    """One of them."""
    for found in await in_db(_models_of, key.user):
        if found["id"] == name:
            return JsonResponse(found)
    raise _no_model(name)


def _models_of(user: User) -> list[dict[str, Any]]:
    base = {"object": "model", "created": int(user.date_joined.timestamp()), "owned_by": "clawweb"}
    found = [{"id": "agent", **base}, {"id": "base", **base}]
    for row in adapters_of(user).filter(state__in=["live", "standby"]):
        created = int(row.created_at.timestamp())
        found.append({"id": f"agent@v{row.version}", **base, "created": created})
    return found


@csrf_exempt
async def unknown(request: HttpRequest) -> HttpResponse:
    words = f"There is no {request.path} here, but POST /v1/chat/completions and GET /v1/models."
    return error(404, words, code="unknown_url")


@csrf_exempt
async def without_version(request: HttpRequest) -> HttpResponse:
    """Whose client was given the address alone. A page would be no answer that it can read."""
    words = f"There is no {request.path} here. Add /v1 to the base URL that your client was given."
    return error(404, words, code="unknown_url")


@with_key("chat", "POST")
async def chat_completions(request: HttpRequest, key: ApiKey) -> HttpResponseBase:
    """One or more replies of the caller's agent, streamed or whole. Each choice is a turn."""
    try:
        raw = request.body
        read = partial(ChatRequest.read, raw)
        body = read() if len(raw) < SMALL else await asyncio.to_thread(read)
    except RequestDataTooBig as exc:
        raise Unacceptable(
            "The request is larger than 4 MB.", status=413, code="too_large"
        ) from exc
    answer = Answer(await _opened(key, body, headers_of(request)), body, key)
    detach(in_db(tasks.after_opening, answer.turns[0]))  # the reply does not wait for it
    if body.stream:
        ended = await answer.begun()
        if ended is not None and ended.state == TurnState.FAILED:
            return failure(ended)
        response: HttpResponseBase = StreamingHttpResponse(answer.events(), headers=STREAM)
    else:
        response = await answer.whole()
    _describe(response, answer)
    return response


def headers_of(request: HttpRequest) -> dict[str, str]:
    """Session, turn type, done and what marks a re-sent request, from the headers, checked; absent
    ones are left out."""
    found: dict[str, str] = {}
    if session := _text(request, "X-Session-Id"):
        if len(session) > MAX_SESSION_NAME or not is_printable(session):
            raise Unacceptable(f"X-Session-Id has at most {MAX_SESSION_NAME} printable characters.")
        found["session"] = session
    if kind := request.headers.get("X-Turn-Type", "").lower():
        if kind not in ("main", "side"):
            raise Unacceptable("X-Turn-Type is main or side.")
        found["turn_type"] = kind
    if request.headers.get("X-Session-Done", "").lower() in _YES:
        found["done"] = "yes"
    if once := _text(request, "Idempotency-Key"):
        if len(once) > MAX_ONCE or not is_printable(once):
            raise Unacceptable(f"Idempotency-Key has at most {MAX_ONCE} printable characters.")
        found["once"] = once
    retries = request.headers.get("X-Stainless-Retry-Count", "")
    if retries.isdecimal() and int(retries[:9]) > 0:
        found["retried"] = "yes"
    return found


def _text(request: HttpRequest, name: str) -> str:
    """A header's words: curl sends them in UTF-8, browsers and others in Latin-1, as which they
    come here."""
    words = request.headers.get(name, "")
    try:
        return words.encode("latin-1").decode()
    except UnicodeError:
        return words


async def _opened(key: ApiKey, body: ChatRequest, headers: dict[str, str]) -> list[Turn]:
    """The request's turns. A caller who hangs up meanwhile stops what has just been opened."""
    opening = asyncio.ensure_future(in_db(_open, key, body, headers))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        detach(stop_all(opening))
        raise


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
            shape=body.shape(),
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
    if number != model and is_number(number):
        found = adapters_of(user).filter(version=int(number), state__in=["live", "standby"])
        if found.exists():
            return
    raise _no_model(model)


def _no_model(name: str) -> Unacceptable:
    return Unacceptable(
        f"The model {name!r} does not exist; `GET /v1/models` lists yours.",
        status=404,
        code="model_not_found",
        param="model",
    )


def _describe(response: HttpResponseBase, answer: Answer) -> None:
    """The headers that say who answered; a stream that still waits for it does not know."""
    turn = answer.turns[0]
    if answer.is_known_who:
        response["X-Clawweb-Adapter"] = turn.adapter_name or "base"
    response["X-Clawweb-Session"] = turn.session.public_id
    response["X-Clawweb-Turn"] = turn.public_id
    if turn.fallback:
        response["X-Clawweb-Fallback"] = turn.fallback
