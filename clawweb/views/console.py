"""The versions that came out of training. Changes go through the JSON API."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from clawweb.models import User
from clawweb.selectors.learning import adapter_json, adapters_of, agent_status


@never_cache
@login_required
@require_GET
def adapters(request: HttpRequest) -> HttpResponse:
    return render(request, "console/adapters.html", _adapters_context(request.user))


@never_cache
@login_required
@require_GET
def adapters_part(request: HttpRequest) -> HttpResponse:
    return render(request, "console/_adapters.html", _adapters_context(request.user))


def _adapters_context(user: User) -> dict[str, Any]:
    rows = list(adapters_of(user))
    numbers = {row.name: row.version for row in rows}
    versions = [adapter_json(row) for row in rows]
    for version in versions:
        version["parent_version"] = numbers.get(version["parent"] or "", 0)
    return {
        "versions": versions,
        "live": next((version for version in versions if version["state"] == "live"), None),
        "agent": agent_status(user),
    }
