"""Who is acting, and in which request: set where a request comes in, read where acts are audited.

A context and no argument: what a service may do does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.http import HttpRequest
from structlog.contextvars import bound_contextvars

_REQUEST: ContextVar[HttpRequest | None] = ContextVar("request", default=None)


@contextmanager
def in_request(request: HttpRequest) -> Iterator[None]:
    """What happens in here is done by whoever sent this request."""
    token = _REQUEST.set(request)
    try:
        with bound_contextvars(request=request_id()):  # on each line that is logged meanwhile
            yield
    finally:
        _REQUEST.reset(token)


def bearer(request: HttpRequest) -> str:
    """The key that it came with, as it was sent; empty without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def request_id() -> str:
    """Of the request at hand; empty outside of one."""
    return getattr(_REQUEST.get(), "request_id", "")


def actor() -> Any:
    """The user whom the request at hand has let in, by key or by session; None = nobody."""
    request = _REQUEST.get()
    if request is None:
        return None
    user = getattr(request, "auth", None) or getattr(request, "user", None)
    return user if user is not None and user.is_authenticated else None
