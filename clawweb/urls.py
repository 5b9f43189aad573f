"""Routes."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path, re_path

from clawweb.api import health, openai
from clawweb.api.rest import api

urlpatterns = [
    path("v1/chat/completions", openai.chat_completions),
    path("v1/models", openai.models),
    re_path(r"^v1(/.*)?$", openai.unknown),
    path("api/", api.urls),
    path("livez", health.livez),
    path("readyz", health.readyz),
    path("metrics", health.metrics),
    path("admin/", admin.site.urls),
]
