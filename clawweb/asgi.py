"""HTTP and websockets. Static files are served in front of Django, by hashed name."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
from pathlib import Path
from typing import Any
from urllib.parse import quote

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawweb.settings")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()  # before anything that needs the apps

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.http import HttpRequest
from django.urls import path, re_path
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from clawweb.consumers import ChatConsumer, NudgeConsumer
from clawweb.logs import about
from clawweb.models.ids import uuid7
from clawweb.problem import for_programs
from clawweb.records import storable

log = logging.getLogger(__name__)

MOST_BODY = 8 * 1024 * 1024  # bytes; Django refuses more than 4 MiB in words of its own
MOST_FILE = 52 * 1024 * 1024  # an import, which has at most 50 MiB, and its form
MOST_OPEN = 65_536  # connections and files
TAKE_FILES = ("/data/import/", "/api/imports")
TOO_LARGE = "The request is larger than %d MB, and no larger one is taken here."
HASHED = re.compile(r"\.[0-9a-f]{12}\.\w+$")


def raise_limit_of_open_files() -> None:
    """As far as this process may, to MOST_OPEN. Many systems begin with 1024 for the sake of
    programs that call select(); a browser keeps up to seven connections open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # a system with another limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class HashedFiles(StaticFiles):
    """Static files as collectstatic left them: packed ones to whoever takes gzip, and those of a
    hashed name for good. Pages are never packed: beside what a stranger can put into one, the
    length of a packed page would tell the secrets in it (BREACH)."""

    def file_response(
        self, full_path: Any, stat_result: Any, scope: Any, status_code: int = 200
    ) -> Response:
        packed = Path(f"{full_path}.gz")
        has_packed = packed.exists()
        takes_it = has_packed and _takes_gzip(Headers(scope=scope).get("accept-encoding", ""))
        if takes_it:
            full_path, stat_result = packed, packed.stat()
        response = super().file_response(full_path, stat_result, scope, status_code)
        if takes_it and isinstance(response, FileResponse):
            response.headers["Content-Encoding"] = "gzip"
        if has_packed:
            response.headers["Vary"] = "Accept-Encoding"
        if HASHED.search(scope["path"]):
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


class Bounded:
    """No larger body than any page or call takes. Django would write all of it to a file first,
    whoever sends it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        most = MOST_FILE if scope["path"] in TAKE_FILES else MOST_BODY
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > most:
            await _too_large(scope["path"])(scope, receive, send)
            return
        taken, answered = 0, False

        async def counted() -> Any:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            return message if taken <= most else {"type": "http.disconnect"}

        async def told(message: Any) -> None:
            nonlocal answered
            answered = True
            await send(message)

        await self.app(scope, counted, told)
        if taken > most and not answered:
            await _too_large(scope["path"])(scope, receive, send)


def _too_large(path: str) -> Response:
    """What whoever sends it hears; programs in the shape of their errors."""
    words = TOO_LARGE % (50 if path in TAKE_FILES else 4)
    asked = HttpRequest()
    asked.path, asked.request_id = path, str(uuid7())  # type: ignore[attr-defined]
    with about(request=asked.request_id):  # type: ignore[attr-defined]
        log.warning(words)
    headers = {"X-Request-Id": asked.request_id}  # type: ignore[attr-defined]
    told = for_programs(asked, status=413, title="too_large", detail=words)
    if told is None:
        return PlainTextResponse(words, 413, headers)
    return Response(told.content, 413, {**headers, "Content-Type": told["Content-Type"]})


class Storable:
    """An address with what databases refuse in a text replaced, as in all else that comes in: then
    it names nothing. PostgreSQL would not even look for it."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        query = scope["query_string"].replace(b"%00", quote(storable("\0")).encode())
        scope = {**scope, "path": storable(scope["path"]), "query_string": query}
        await self.app(scope, receive, send)


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, and not as refused (`gzip;q=0`)."""
    for entry in accepted.lower().split(","):
        name, _, quality = entry.replace(" ", "").partition(";q=")
        if name == "gzip":
            return not quality or quality.strip("0.") != ""
    return False


def _http():  # type: ignore[no-untyped-def]
    if not (settings.STATIC_ROOT / "staticfiles.json").exists():
        return ASGIStaticFilesHandler(django_application)  # before collectstatic: from the sources
    return Starlette(
        routes=[
            Mount("/static", HashedFiles(directory=settings.STATIC_ROOT)),
            Mount("/", django_application),
        ]
    )


async def _nowhere(scope: Any, receive: Any, send: Any) -> None:
    """A socket of an address that there is not is refused (403)."""
    await receive()
    await send({"type": "websocket.close", "code": 1000})


raise_limit_of_open_files()
application = ProtocolTypeRouter(
    {
        "http": Bounded(Storable(_http())),
        "websocket": AuthMiddlewareStack(
            URLRouter(
                [
                    path("ws/chat/", ChatConsumer.as_asgi()),
                    path("ws/nudges/", NudgeConsumer.as_asgi()),
                    re_path("", _nowhere),
                ]
            )
        ),
    }
)
