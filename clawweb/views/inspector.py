"""The inspector: everything that is stored about one's own sessions. Reads only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from clawweb.models import DropReason, Judgement, TrainingSample, Turn
from clawweb.selectors.chat import (
    begins_anew,
    input_of,
    reply_of,
    session_json,
    sessions_of,
    tool_calls_of,
    turn_of,
    turns_of,
)
from clawweb.selectors.judging import judgements_of
from clawweb.selectors.learning import job_number, receipt
from clawweb.turn_types import explain
from clawweb.views.chat import own_session
from rollouts.types import Message

PER_PAGE = 30


@never_cache
@login_required
@require_GET
def sessions(request: HttpRequest) -> HttpResponse:
    page = Paginator(sessions_of(request.user), PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "inspector/sessions.html", {"page": page})


@never_cache
@login_required
@require_GET
def session(request: HttpRequest, session_id: str) -> HttpResponse:
    row = own_session(request.user, session_id)
    page = Paginator(turns_of(row), PER_PAGE).get_page(request.GET.get("page"))
    judgements = judgements_of(page)
    return render(
        request,
        "inspector/session.html",
        {
            "session": session_json(row),
            "page": page,
            "turns": [
                {**turn_facts(turn, judgements.get(turn.pk)), "number": number}
                for number, turn in enumerate(page, page.start_index())
            ],
        },
    )


@never_cache
@login_required
@require_GET
def turn_part(request: HttpRequest, turn_id: str) -> HttpResponse:
    """One turn, fetched again when it, its rating or what became of that has changed."""
    try:
        turn = turn_of(request.user, turn_id)
    except Turn.DoesNotExist:
        raise Http404(_("You have no turn with that address.")) from None
    number = turn.session.turns.filter(pk__lte=turn.pk).count()
    facts = {**turn_facts(turn, judgements_of([turn]).get(turn.pk)), "number": number}
    return render(request, "inspector/_turn.html", {"turn": facts})


def turn_facts(turn: Turn, judgement: Judgement | None = None) -> dict[str, Any]:
    """A turn with its feedback, judgement, samples and numbers, for people."""
    feedback = sorted(turn.feedback.all(), key=lambda row: row.pk)
    messages = input_of(turn)
    return {
        "row": turn,
        "messages": messages,
        "text": text_of(messages),
        "anew": begins_anew(turn),
        "why_type": explain(turn.turn_type, turn.turn_type_from),
        "reply": reply_of(turn),
        "tool_calls": tool_calls_of(turn),
        "parent": turn.parent.public_id if turn.parent else None,
        "prompt_tokens": len(turn.prompt_ids) if turn.prompt_ids is not None else None,
        "response_tokens": len(turn.response_ids) if turn.response_ids is not None else None,
        "logprobs": logprob_summary(turn.logprobs),
        "sampling": {name: value for name, value in turn.sampling.items() if value is not None},
        "seconds": seconds_of(turn),
        "receipt": receipt(turn),
        "feedback": feedback[::-1],
        "judgement": judgement,
        "samples": [sample_facts(sample) for sample in turn.samples.all()][::-1],
    }


def text_of(messages: Sequence[Message]) -> str:
    """What the user said, among a turn's new messages; else what the tools answered."""
    said = next((m["content"] for m in reversed(messages) if m["role"] == "user"), None)
    if said is not None and messages[-1]["role"] != "tool":
        return said
    return "\n".join(m["content"] for m in messages if m["role"] == "tool")


def sample_facts(sample: TrainingSample) -> dict[str, Any]:
    return {
        "row": sample,
        "why": DropReason(sample.drop_reason).label if sample.drop_reason else "",
        "job_number": job_number(sample.job) if sample.job else None,
    }


def logprob_summary(logprobs: list[float] | None) -> dict[str, float] | None:
    """Mean, least likely token and perplexity; None where none were recorded."""
    if not logprobs:
        return None
    mean = math.fsum(logprobs) / len(logprobs)
    return {"mean": mean, "least": min(logprobs), "perplexity": math.exp(min(-mean, 700.0))}


def seconds_of(turn: Turn) -> dict[str, float]:
    """How long people waited: for the first word, and for all of it."""
    spans = {"first_token": turn.first_token_at, "all": turn.finished_at}
    return {name: (end - turn.created_at).total_seconds() for name, end in spans.items() if end}
