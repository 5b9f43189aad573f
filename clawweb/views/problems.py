"""Error pages that say what happened, with the id under which the log has it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(request, "404.html", 404)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(request, "403.html", 403)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _page(request, "403_csrf.html", 403)


def crashed(request: HttpRequest) -> HttpResponse:
    return _page(request, "500.html", 500)


def _page(request: HttpRequest, template: str, status: int) -> HttpResponse:
    request_id = getattr(request, "request_id", "")
    return render(request, template, {"request_id": request_id}, status=status)
