"""A request id on every request and every answer, so that an error can be found in the logs; and
the short way to `/v1`."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import resolve
from django.utils import timezone
from django.utils.decorators import sync_and_async_middleware
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from clawweb import acting
from clawweb.config import config, listed
from clawweb.logs import route_of
from clawweb.models import User
from clawweb.models.ids import uuid7
from clawweb.problem import problem
from clawweb.selectors.access import lacks_second_factor

log = logging.getLogger(__name__)

_UNLOGGED = ("/livez", "/readyz", "/metrics")  # machines ask these all the time
_GIVEN = re.compile(r"[A-Za-z0-9._-]{8,64}")
_MINUTES = re.compile(r"-?[0-9]{1,3}")  # less than a day


def _name(request: HttpRequest) -> str:
    given = request.headers.get("X-Request-Id", "")
    request.request_id = given if _GIVEN.fullmatch(given) else str(uuid7())  # type: ignore[attr-defined]
    return request.request_id  # type: ignore[attr-defined, no-any-return]


def _log(request: HttpRequest, response: HttpResponse, began: float) -> None:
    """One line; who asks as far as it is known already."""
    if request.path_info in _UNLOGGED:
        return
    match = request.resolver_match
    named = match.kwargs if match else {}
    user = getattr(request, "auth", None) or request.__dict__.get("_cached_user")
    ids = {
        "user": getattr(user, "pk", None),
        "turn": response.headers.get("X-Clawweb-Turn") or named.get("turn_id"),
        "job": named.get("job_id"),
        "milliseconds": round((time.monotonic() - began) * 1000),
    }
    known = {name: value for name, value in ids.items() if value is not None}
    log.info("%s %s %d", request.method, route_of(request), response.status_code, extra=known)


def _told(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """The answer; instead of the bare one that ninja has for a wrong verb one that says the right
    ones."""
    if response.status_code != 405 or not request.path_info.startswith("/api/"):
        return response
    verbs = response.headers.get("Allow", "")
    detail = _("Use %(verbs)s here.") % {"verbs": verbs}
    told = problem(request, status=405, title="method_not_allowed", detail=detail)
    told["Allow"] = verbs
    return told


@sync_and_async_middleware
def request_id(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Takes a well-formed X-Request-Id over or makes one."""
    if iscoroutinefunction(get_response):

        async def middleware(request: HttpRequest) -> HttpResponse:
            name, began = _name(request), time.monotonic()
            with acting.in_request(request):
                response = _told(request, await _awaited(get_response(request)))
                _log(request, response, began)
            response["X-Request-Id"] = name
            return response

    else:

        def middleware(request: HttpRequest) -> HttpResponse:  # type: ignore[misc]
            name, began = _name(request), time.monotonic()
            with acting.in_request(request):
                response: HttpResponse = _told(request, get_response(request))
                _log(request, response, began)
            response["X-Request-Id"] = name
            return response

    return middleware


@sync_and_async_middleware
def programs(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """`/v1` takes keys and gives JSON: sessions, CSRF, languages and pages are no matter of it.
    Each of their middlewares is a trip to one thread that all requests share, and back."""
    if not iscoroutinefunction(get_response):
        return get_response

    async def middleware(request: HttpRequest) -> HttpResponse:
        if not request.path_info.startswith("/v1/"):
            return await _awaited(get_response(request))
        request.get_host()  # raises for a host that is not ours
        shared = _shared_with(request)
        match = request.resolver_match = resolve(request.path_info)
        if shared and request.method == "OPTIONS":
            response = HttpResponse(status=204)  # a browser asks before it sends a page's request
        else:
            response = await _awaited(match.func(request, *match.args, **match.kwargs))
        response["X-Content-Type-Options"] = "nosniff"
        for name, value in shared.items():
            response[name] = value
        return response

    return middleware


def _shared_with(request: HttpRequest) -> dict[str, str]:
    """What lets the scripts of a page elsewhere call `/v1`, where its origin is named in the
    settings: they still need a key, and no cookie counts here."""
    origin = request.headers.get("Origin")  # few clients but browsers send one
    if not origin or origin not in [each.rstrip("/") for each in listed(config().cors_origins)]:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", ""),
        "Access-Control-Expose-Headers": "*",
        "Access-Control-Max-Age": "600",
        "Vary": "Origin, Access-Control-Request-Headers",
    }


async def _awaited(response: Awaitable[HttpResponse]) -> HttpResponse:
    return await response


class Waiting(MiddlewareMixin):
    """Who waits for an admin sees that, and nothing else: whatever page there is, or will be. An
    admin who must have a second factor is led to it."""

    def process_view(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponse | None:
        match = request.resolver_match
        name = match.url_name if match and not match.namespaces else None
        note_seen(request)
        if name in _OPEN or request.path_info.startswith("/api/"):  # that one answers for itself
            return None
        user: Any = request.user
        if not user.is_authenticated:
            return None
        if name not in _TO_A_SECOND_FACTOR and lacks_second_factor(user):
            return redirect("mfa_activate_totp")
        if not user.is_pending:
            return None
        admins = User.objects.filter(is_superuser=True, is_active=True).order_by("id")
        context = {"user": None, "waiting": user, "admins": [str(row) for row in admins[:5]]}
        return render(request, "accounts/pending.html", context, status=403)


class TimeZone(MiddlewareMixin):
    """Days and hours as they are where the browser is: it says in a cookie by how many minutes its
    clock is ahead of UTC (shell.js). UTC before its first page, and for programs. Not by the name
    of a zone: browsers know names that a server may not have."""

    def process_request(self, request: HttpRequest) -> None:
        said = request.COOKIES.get("ahead", "")
        minutes = int(said) if _MINUTES.fullmatch(said) else 0
        timezone.activate(timezone.get_fixed_timezone(minutes))

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        timezone.deactivate()  # the thread goes on to others
        return response


_OPEN = ("signin", "signin_link", "signout", "jsi18n", "language")
_TO_A_SECOND_FACTOR = (
    *("mfa_activate_totp", "mfa_view_recovery_codes", "account_reauthenticate", "password"),
)


def note_seen(request: HttpRequest) -> None:
    """Write down that this browser was here: once in some minutes for each process, because a
    write for each page would be most of what a small database does."""
    if acting.bearer(request) or settings.SESSION_COOKIE_NAME not in request.COOKIES:
        return
    now = time.monotonic()
    key = request.session.session_key or ""
    if now - _SEEN.get(key, -SEEN_SECONDS) < SEEN_SECONDS or not request.user.is_authenticated:
        return
    if len(_SEEN) > MOST_SEEN:
        _SEEN.clear()
    _SEEN[key] = now
    try:
        UserSession.objects.create_from_request(request)
    except DatabaseError as exc:  # a full disk, say: the page is worth more
        log.warning("not written down that a browser was here: %s", exc)


SEEN_SECONDS = 300.0
MOST_SEEN = 10_000
_SEEN: dict[str, float] = {}
