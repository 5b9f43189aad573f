"""Errors for programs: RFC 9457 problem details with the request's id."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, JsonResponse


def problem(
    request: HttpRequest, *, status: int, title: str, detail: str, **more: Any
) -> JsonResponse:
    """`title` names the rule, `detail` says to a person what to do."""
    body = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        "request_id": getattr(request, "request_id", None),
        **more,
    }
    return JsonResponse(body, status=status, content_type="application/problem+json")
