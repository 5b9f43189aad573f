"""Chats of people who let reviewers read them. Each one that is opened is written down."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from clawweb.markdown import render as as_html
from clawweb.models import ChatSession
from clawweb.selectors.access import READ, readable_sessions
from clawweb.selectors.chat import input_of, latest_feedback, turns_of, with_labels
from clawweb.services import audit
from clawweb.views.inspector import text_of

PER_PAGE = 30


@never_cache
@login_required
@require_safe
def review(request: HttpRequest) -> HttpResponse:
    """Whose chats there are to read; a chat's name is made of its words, so it is not in here."""
    if not request.user.may_review:
        raise PermissionDenied
    page = Paginator(readable_sessions(request.user), PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "review/review.html", {"page": page})


@never_cache
@login_required
@require_safe
@transaction.atomic
def review_session(request: HttpRequest, session_id: str) -> HttpResponse:
    """One chat; who reads it is in the audit log before it is shown."""
    try:
        session = readable_sessions(request.user).get(public_id=session_id)
    except ChatSession.DoesNotExist:
        raise Http404(_("There is no chat with that address for you to read.")) from None
    audit.record(READ, session)
    page = Paginator(turns_of(session).filter(recorded=True), PER_PAGE)
    shown = page.get_page(request.GET.get("page"))
    said = {turn.pk: latest_feedback(turn) for turn in shown}
    with_labels([row for row in said.values() if row])
    turns = [
        {
            "row": turn,
            "text": text_of(input_of(turn)),
            "html": as_html(turn.reply),
            "said": said[turn.pk],
        }
        for turn in shown
    ]
    context = {"session": session, "page": shown, "turns": turns}
    return render(request, "review/session.html", context)
