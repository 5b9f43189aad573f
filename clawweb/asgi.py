"""HTTP and websockets. Static files are served in front of Django, by hashed name."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawweb.settings")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()  # before anything that needs the apps

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.urls import path
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from clawweb.consumers import ChatConsumer, NudgeConsumer


def _http():  # type: ignore[no-untyped-def]
    if not (settings.STATIC_ROOT / "staticfiles.json").exists():
        return ASGIStaticFilesHandler(django_application)  # before collectstatic: from the sources
    return Starlette(
        routes=[
            Mount("/static", StaticFiles(directory=settings.STATIC_ROOT)),
            Mount("/", django_application),
        ]
    )


application = ProtocolTypeRouter(
    {
        "http": _http(),
        "websocket": AuthMiddlewareStack(
            URLRouter(
                [
                    path("ws/chat/", ChatConsumer.as_asgi()),
                    path("ws/nudges/", NudgeConsumer.as_asgi()),
                ]
            )
        ),
    }
)
