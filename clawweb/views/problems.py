"""Error pages that say what happened, with the id under which the log has it; and the way back
from an address that takes a form alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import DisallowedHost, RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from clawweb.problem import for_programs
from clawweb.services.outage import outage

View = Callable[..., Any]


def posted_from(page: str) -> Callable[[View], View]:
    """POST alone. Who opens the address instead, as a browser does that shows what came of a form
    and is told to go there again, is led to the page with the form."""

    def decorate(view: View) -> View:
        post = require_POST(view)

        @wraps(view)
        def led(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if request.method in ("GET", "HEAD"):
                return redirect(page)
            response: HttpResponse = post(request, *args, **kwargs)
            return response

        return led

    return decorate


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    detail = f"There is no {request.path} here; /api/docs lists what there is."
    told = for_programs(request, status=404, title="not_found", detail=detail)
    return told or _page(request, "404.html", 404)


def unreadable(request: HttpRequest, exception: Exception) -> HttpResponse:
    """What Django refuses before any view: a host that is not ours, above all. The page goes
    without the request's context, which would ask for the host again."""
    status, title, detail = 400, "malformed", _("The request cannot be read.")
    if isinstance(exception, DisallowedHost):
        title, detail = "unknown_host", _of_host(request.META.get("HTTP_HOST", ""))
    if isinstance(exception, RequestDataTooBig):
        words = _("The request is larger than %(n)s MB.")
        status, title, detail = 413, "too_large", words % {"n": 4}
    if told := for_programs(request, status=status, title=title, detail=detail):
        return told
    context = {"request_id": getattr(request, "request_id", ""), "words": detail}
    return HttpResponse(render_to_string("400.html", context), status=status)


def _of_host(given: str) -> str:
    """Who opens the server to a network meets this first, and has to know where it is set."""
    name, _port = split_domain_port(given)
    if not name:
        words = _("%(host)s is no host name: those have letters, digits, dots and hyphens alone.")
        return words % {"host": given[:255]}
    words = _(
        "This server does not answer to the name %(host)s. Whoever runs it can add the name to "
        "CLAWWEB_ALLOWED_HOSTS and start it again."
    )
    return words % {"host": name[:255]}


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(request, "403.html", 403)


def crashed(request: HttpRequest) -> HttpResponse:
    """Without the request's context: what failed may be the very thing that a context asks for."""
    error = sys.exc_info()[1]  # Django calls this where it caught it
    out = outage(error) if error else None
    context = {"request_id": getattr(request, "request_id", ""), "out": out}
    answer = HttpResponse(render_to_string("500.html", context), status=out.status if out else 500)
    if out and out.retry_after:
        answer["Retry-After"] = str(out.retry_after)
    return answer


def _page(request: HttpRequest, template: str, status: int) -> HttpResponse:
    request_id = getattr(request, "request_id", "")
    return render(request, template, {"request_id": request_id}, status=status)
