"""The inspector: everything that is stored about one's own sessions. Reads only."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from clawweb import sentences
from clawweb.models import (
    Comparison,
    DropReason,
    Judgement,
    SavedView,
    TrainingSample,
    Turn,
)
from clawweb.models.ids import is_number
from clawweb.records import write_line
from clawweb.selectors.chat import (
    all_reasons,
    begins_anew,
    blind_turns,
    feedback_json,
    input_of,
    latest_feedback,
    reply_of,
    session_json,
    tool_calls_of,
    turn_of,
    turns_of,
    with_labels,
)
from clawweb.selectors.comparisons import comparisons_of, usable_versions
from clawweb.selectors.inspector import (
    Filters,
    instead_of,
    notes_in,
    rests_before,
    session_facts,
    sessions_where,
    stats_of,
    ticks_of,
)
from clawweb.selectors.judging import judgements_of
from clawweb.selectors.learning import Waiting, job_number, receipt
from clawweb.selectors.notes import stubborn_reasons
from clawweb.selectors.records import lines_of_session
from clawweb.selectors.tokens import EFFECT, heat, heats_of, prompt_tokens
from clawweb.services.errors import ServiceError
from clawweb.services.saved_views import delete_view, save_view
from clawweb.turn_types import explain
from clawweb.views.chat import own_session
from clawweb.views.problems import posted_from
from clawweb.views.session_filters import FilterForm
from rollouts.types import Message

PER_PAGE = 30
REST = timedelta(minutes=5)
VIEWS = "sessions"  # saved views of this page


@never_cache
@login_required
@require_safe
def sessions(request: HttpRequest) -> HttpResponse:
    form = FilterForm(request.user, request.GET)
    filters = form.filters()
    found = sessions_where(request.user, filters)
    page = Paginator(found, PER_PAGE).get_page(request.GET.get("page"))
    notes = notes_in(page)
    context = {
        "page": page,
        "rows": [{"session": row, "notes": notes.get(row.pk)} for row in page],
        "form": form,
        "filtered": filters != Filters(),
        "query": form.query(),
        "stats": stats_of(found),
        "views": SavedView.objects.filter(user=request.user, page=VIEWS),
    }
    return render(request, "inspector/sessions.html", context)


@login_required
@posted_from("sessions")
def saved_views(request: HttpRequest) -> HttpResponse:
    """Save the filters that the form's `query` holds, or delete the view of the id `drop`."""
    query, drop = request.POST.get("query", ""), request.POST.get("drop", "")
    if is_number(drop):
        gone = delete_view(user=request.user, view_id=int(drop))
        if gone is not None:
            query = gone.query  # still on the page: to be saved again
            words = _("The view “%(name)s” is deleted. Its filters are still set below.")
            messages.success(request, words % {"name": gone.name})
    else:
        try:
            row = save_view(
                user=request.user, page=VIEWS, name=request.POST.get("name", ""), query=query
            )
            messages.success(request, _("The view “%(name)s” is saved.") % {"name": row.name})
        except ServiceError as exc:
            messages.error(request, str(exc))
    return redirect(f"{reverse('sessions')}?{query}" if query else reverse("sessions"))


@never_cache
@login_required
@require_safe
def session(request: HttpRequest, session_id: str) -> HttpResponse:
    row = own_session(request.user, session_id)
    turns = turns_of(row)
    number = request.GET.get("page")
    named = row.turns.filter(public_id=request.GET.get("turn", "")).first()
    if named is not None and not number:
        number = (turns.filter(pk__lte=named.pk).count() - 1) // PER_PAGE + 1
    page = Paginator(turns, PER_PAGE).get_page(number)
    judgements, blind, instead = judgements_of(page), blind_turns(row), instead_of(row)
    with_labels([said for turn in page for said in turn.feedback.all()])
    rests, waiting = rests_before(page, least=REST), Waiting(request.user)
    replays: dict[int, list[Comparison]] = {}
    for replay in comparisons_of(request.user).filter(first__in=page, kind=Comparison.RECHECK):
        replays.setdefault(replay.first_id, []).insert(0, replay)  # they come newest first
    facts = [
        turn_facts(turn, judgements.get(turn.pk), blind=turn.pk in blind, waiting=waiting)
        | {"number": number, "rest": rests.get(turn.pk), "replays": replays.get(turn.pk)}
        | {"instead": instead.get(turn.pk)}
        for number, turn in enumerate(page, page.start_index())
    ]
    context = {
        "session": session_json(row),
        "facts": session_facts(row),
        "page": page,
        "turns": facts,
        "ticks": ticks_of(row, PER_PAGE),
        "reasons": all_reasons(),
        "stubborn": stubborn_reasons(request.user),
        "versions": usable_versions(request.user),
    }
    return render(request, "inspector/session.html", context)


@never_cache
@login_required
@require_safe
def map_part(request: HttpRequest, session_id: str) -> HttpResponse:
    """All turns of a session at a glance, fetched again when one of them has changed."""
    row = own_session(request.user, session_id)
    number = request.GET.get("page", "")
    context = {
        "session": session_json(row),
        "ticks": ticks_of(row, PER_PAGE),
        "page": {"number": int(number) if is_number(number) else 1},
    }
    return render(request, "inspector/_map.html", context)


@never_cache
@login_required
@require_safe
def turn_part(request: HttpRequest, turn_id: str) -> HttpResponse:
    """One turn, fetched again when it, its rating or what became of that has changed; `reply` says
    how the reply is shown, `prompt` asks for the prompt too."""
    turn = _own_turn(request, turn_id)
    shown = request.GET.get("reply", EFFECT)
    is_blind = turn.pk in blind_turns(turn.session)
    facts = turn_facts(turn, judgements_of([turn]).get(turn.pk), shown=shown, blind=is_blind)
    if request.GET.get("prompt") and not is_blind:
        facts["prompt"], facts["prompt_by_number"] = prompt_tokens(turn) or (None, False)
    facts["number"] = turn.session.turns.filter(pk__lte=turn.pk).count()
    facts["instead"] = instead_of(turn.session).get(turn.pk)
    return render(request, "inspector/_turn.html", {"turn": facts})


@never_cache
@login_required
@require_safe
def replay_part(request: HttpRequest, comparison_id: str) -> HttpResponse:
    """What another version answered to a turn's words, beside the turn's own reply."""
    row = comparisons_of(request.user).filter(public_id=comparison_id).first()
    if row is None or row.kind != Comparison.RECHECK:
        raise Http404(_("You have no such comparison."))
    return render(request, "inspector/_replay.html", {"replay": row})


def _own_turn(request: HttpRequest, turn_id: str) -> Turn:
    try:
        return turn_of(request.user, turn_id)
    except Turn.DoesNotExist:
        raise Http404(_("You have no turn with that address.")) from None


@never_cache
@login_required
@require_safe
def download(request: HttpRequest, session_id: str, kind: str) -> HttpResponse:
    """The session as an export has it: a line for it and for each turn, or all as one object."""
    row = own_session(request.user, session_id)
    lines = [write_line(line) for line in lines_of_session(row)]
    if kind == "jsonl":
        body, of_type = "".join(lines), "application/jsonl"
    else:
        first, *turns = (line.rstrip("\n") for line in lines)
        inner = ",\n".join(turns)
        body = f'{{"session": {first},\n"turns": [\n{inner}\n]}}\n'
        of_type = "application/json"
    named = f'attachment; filename="{row.public_id}.{kind}"'
    return HttpResponse(body, content_type=of_type, headers={"Content-Disposition": named})


def turn_facts(
    turn: Turn,
    judgement: Judgement | None = None,
    *,
    shown: str = EFFECT,
    blind: bool = False,
    waiting: Waiting | None = None,
) -> dict[str, Any]:
    """A turn with its feedback, judgement, samples and numbers, for people. Who wrote a reply that
    is compared `blind` is not among them."""
    feedback = sorted(turn.feedback.all(), key=lambda row: row.pk)
    said = input_of(turn)
    reply = reply_of(turn)
    can_rate = turn.is_finished and bool(reply or turn.tool_calls) and turn.recorded
    return {
        "row": turn,
        "blind": blind,
        "fallback": sentences.said(turn.fallback),
        "can_rate": can_rate,
        "for_script": json.dumps(
            {
                "id": turn.public_id,
                "reply": reply,
                "can_rate": can_rate,
                "feedback": feedback_json(latest_feedback(turn)),
            }
        ),
        "heats": heats_of(turn),
        "heat": heat(turn, shown),
        "messages": said,
        "text": text_of(said),
        "anew": begins_anew(turn),
        "why_type": explain(turn.turn_type, turn.turn_type_from),
        "reply": reply,
        "tool_calls": tool_calls_of(turn),
        "parent": turn.parent.public_id if turn.parent else None,
        "prompt_tokens": len(turn.prompt_ids) if turn.prompt_ids is not None else None,
        "response_tokens": len(turn.response_ids) if turn.response_ids is not None else None,
        "logprobs": logprob_summary(turn.logprobs),
        "sampling": {name: value for name, value in turn.sampling.items() if value is not None},
        "seconds": seconds_of(turn),
        "receipt": receipt(turn, waiting),
        "feedback": with_labels(feedback[::-1]),
        "judgement": judgement,
        "why_unjudged": sentences.said(judgement.error) if judgement else "",
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
