"""One's own data as files: what can be taken out, what comes in, how far it is."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from clawweb import tasks
from clawweb.models import User
from clawweb.selectors.transfers import transfer_json, transfers_of
from clawweb.sentences import said
from clawweb.services import transfers
from clawweb.services.errors import ServiceError
from clawweb.views.problems import posted_from

PER_PAGE = 20
SHAPE_WORDS = {
    "everything": gettext_lazy("Everything that is kept about me, as a ZIP"),
    "conversations": gettext_lazy("Sessions, replies and ratings, to bring in again"),
    "kto": gettext_lazy("Rated replies, good or bad (KTO)"),
    "dpo": gettext_lazy("Pairs of a better and a worse reply (DPO)"),
    "sft": gettext_lazy("Good replies and corrections (SFT)"),
}
SHORT_WORDS = {
    "everything": gettext_lazy("everything"),
    "conversations": gettext_lazy("conversations"),
    "openclaw": gettext_lazy("OpenClaw-RL's records"),
}


@never_cache
@login_required
@require_safe
def data(request: HttpRequest) -> HttpResponse:
    context = {"shapes": SHAPE_WORDS.items(), **_context(request)}
    return render(request, "data/data.html", context)


@never_cache
@login_required
@require_safe
def transfers_part(request: HttpRequest) -> HttpResponse:
    return render(request, "data/_transfers.html", _context(request))


@login_required
@posted_from("data")
def bring_in(request: HttpRequest) -> HttpResponse:
    """A form of its own, because a browser sends files by forms; the API takes the same."""
    user: Any = request.user
    file = request.FILES.get("file")
    if file is None:
        messages.error(request, _("Choose a file first."))
        return redirect("data")
    try:
        row = transfers.queue_import(user=user, chunks=file.chunks())
    except ServiceError as exc:
        messages.error(request, str(exc))
        return redirect("data")
    tasks.enqueue(tasks.run_transfer, row.public_id)
    messages.success(request, _("The file is here. What is in it comes in now."))
    return redirect("data")


def _context(request: HttpRequest) -> dict[str, Any]:
    user: User = request.user  # type: ignore[assignment]  # signed in
    page = Paginator(transfers_of(user), PER_PAGE).get_page(request.GET.get("page"))
    return {"page": page, "transfers": [_row(row) for row in page]}


def _row(row: Any) -> dict[str, Any]:
    told = transfer_json(row)
    words = SHORT_WORDS.get(row.shape, row.shape.upper())
    left_out = [said(why) for why in told["left_out"]]
    return {**told, "words": words, "note": said(told["note"]), "left_out": left_out}
