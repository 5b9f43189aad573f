"""Errors for programs: OpenAI's shape under `/v1`, elsewhere RFC 9457 problem details with the
request's id."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, JsonResponse

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


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


def openai_error(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> JsonResponse:
    """OpenAI's error shape."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"message": message, "type": kind, "param": param, "code": code}
    return JsonResponse({"error": body}, status=status)


def for_programs(
    request: HttpRequest, *, status: int, title: str, detail: str
) -> JsonResponse | None:
    """What went wrong before any call was found, as the address's programs read it; None where
    people look at pages."""
    if request.path.startswith("/v1/"):
        return openai_error(status, detail, code=title)
    if request.path.startswith("/api/"):
        return problem(request, status=status, title=title, detail=detail)
    return None
