"""Jobs and what runs them. Changes go through the JSON API."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.functional import Promise, SimpleLazyObject
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from clawweb import disk
from clawweb.config import config
from clawweb.models import JobState, TrainingJob, User
from clawweb.selectors.agent import agent_status
from clawweb.selectors.chat import input_of
from clawweb.selectors.console import (
    STATES,
    chosen_jobs,
    early_end,
    has_unused_ratings,
    is_stale,
    loss_lines,
    queue_status,
    uses_of_samples,
)
from clawweb.selectors.judging import judge_status
from clawweb.selectors.learning import (
    BULKY,
    job_json,
    seconds_left,
    system_status,
)
from clawweb.selectors.policy import method_of, training_policy
from clawweb.selectors.usable import chosen_settings
from clawweb.sentences import said
from clawweb.views.charts import charts_context, job_or_404
from clawweb.views.inspector import text_of
from clawweb.views.versions import version_facts
from training.config import CHOOSABLE, TrainConfig

PER_PAGE = 25
EVENT_WORDS = {
    "queued": _("Queued"),
    "started": _("Started"),
    "loading": _("Loading the model"),
    "training": _("Training"),
    "gating": _("Testing the new version"),
    "deploying": _("Going live"),
    "deployed": _("Done"),
    "refused": _("Refused"),
    "no_signal": _("Nothing to learn"),
    "cancelled": _("Cancelled"),
    "put_back": _("Put back into the queue"),
    "finishing": _("Stopped early"),
    "unheard": _("Left to thumbs"),
    "ended_early": _("Training ended early"),
    "failed": _("Failed"),
    "adapter_accepted": _("The new version passed its tests"),
    "adapter_refused": _("The new version is refused"),
    "adapter_live": _("The new version answers"),
    "adapter_rolled_back": _("The version was rolled back"),
}
# What came of a job that led to no version, its ratings too, …
COUNT_AGAIN = _("Your agent is unchanged, and the ratings count again.")
FATES = {
    "refused": _(
        "Your agent is unchanged, and the ratings count again together with the next one you give."
    ),
    "no_signal": _("Your agent is unchanged."),
    "cancelled": COUNT_AGAIN,
    "failed": COUNT_AGAIN,
}
NOT_ALL_COUNT = _(
    "Your agent is unchanged. Some of the ratings are not used any more; the list below and My "
    "agent say why."
)
# … what its owner can do about it …
ADVICE = {
    "refused": _("What the version did not pass is in the table of tests."),
    "no_signal": _(
        "A reason or a sentence with a thumb down teaches most; each rating below says why it "
        "could not train."
    ),
    "failed": _(
        "Train again; if it fails once more, an admin finds the cause in the log of worker-gpu."
    ),
}
# … and more exactly where the reason of a failure tells
FAILURES = (
    (
        "worker died",
        _(
            "Most often the machine ran out of memory. An admin can free some or lower "
            "CLAWWEB_TRAIN_TOKENS."
        ),
    ),
    (
        "gradient norm",
        _(
            "The sums of a step came out as no number. Train again; if it happens once more, "
            "another method may do."
        ),
    ),
    (
        "out of memory",
        _(
            "The graphics card was full. An admin can lower CLAWWEB_VLLM_GPU_SHARE or "
            "CLAWWEB_TRAIN_TOKENS."
        ),
    ),
)

METHOD_WORDS = {
    "combine": _(
        "hints by distillation, thumbs beside them by reward, then by KTO; thumbs alone by KTO"
    ),
    "opd": _("hints by distillation, other thumbs by reward; thumbs alone by KTO"),
    "binary": _("thumbs by reward, hints left aside"),
    "kto": _("thumbs by KTO, hints left aside"),
    "apo_zero_unpaired": _("KTO with the base as the reference"),
}

# What else a job may be given (docs/algorithms.md), the usual choice first; and numbers.
SETTINGS = {
    "estimator": (
        _("How a hint teaches"),
        {
            "full": _("over all words that could come next"),
            "topk": _("over the few likeliest words"),
            "token": _("through the words that were said"),
        },
    ),
    "topk_support": (
        _("Whose few likeliest words"),
        {"student": _("the agent's"), "teacher": _("those of the one who knows the hint")},
    ),
    "thumbs": (
        _("Thumbs up and down, alone and after hints"),
        {
            "kto": _("by KTO"),
            "apo_zero_unpaired": _("by KTO with the base as the reference"),
            "binary": _("by reward"),
        },
    ),
    "teacher": (
        _("Who knows the hint"),
        {"base": _("the base model"), "parent": _("the version before")},
    ),
    "reanswer_hints": (
        _("A prompt answered anew learns"),
        {"own": _("its own hint"), "collected": _("what was said again before its own")},
    ),
    "reanswer_sets": (
        _("Prompts are answered anew"),
        {"needed": _("the less, the more was liked"), "all": _("as often whatever was liked")},
    ),
    "combine": (
        _("Hints and thumbs, with combine"),
        {"losses": _("as two losses"), "advantages": _("as one sum of advantages")},
    ),
}
USUAL = TrainConfig()
NUMBERS = [(name, getattr(USUAL, name)) for name in CHOOSABLE if name not in SETTINGS]


@never_cache
@login_required
@require_safe
def jobs(request: HttpRequest) -> HttpResponse:
    context = {
        **_jobs_context(request),
        "methods": METHOD_WORDS.items(),
        "settings": [(name, label, words.items()) for name, (label, words) in SETTINGS.items()],
        "numbers": NUMBERS,
        "usual": method_of(training_policy()),
        "states": STATES,
        "state": request.GET.get("state", ""),
        "method": request.GET.get("method", ""),
    }
    return render(request, "console/jobs.html", context)


@never_cache
@login_required
@require_safe
def jobs_part(request: HttpRequest) -> HttpResponse:
    return render(request, "console/_jobs.html", _jobs_context(request))


@never_cache
@login_required
@require_safe
def system_part(request: HttpRequest) -> HttpResponse:
    """A part of its own: it asks the model server, which may take seconds to not answer."""
    status = {
        **system_status(),
        "judge": _judge(request.user)["words"],
        "queue": queue_status(),
        "most": config().max_kept_loras,
        "disk": {"free": disk.free_bytes(), "is_low": disk.is_low(), "least": disk.reserve_bytes()},
    }
    for worker in status["workers"]:
        worker["doing"] = said(worker["doing"])
    loaded = status["engine"]["adapters"] or []
    if not request.user.runs_training:  # names of others' versions are none of their business
        own = set(request.user.adapters.values_list("name", flat=True))
        loaded = [name for name in loaded if name in own]
    return render(request, "console/_system.html", {"status": status, "loaded": loaded})


@never_cache
@login_required
@require_safe
def job(request: HttpRequest, job_id: str) -> HttpResponse:
    row = job_or_404(request.user, job_id)
    context = {**_job_context(request.user, row), **charts_context(request, row)}
    return render(request, "console/job.html", context)


@never_cache
@login_required
@require_safe
def job_part(request: HttpRequest, job_id: str, part: str) -> HttpResponse:
    row = job_or_404(request.user, job_id)
    context = _job_context(request.user, row, with_samples=part != "head")
    return render(request, f"console/_job_{part}.html", context)


def _jobs_context(request: HttpRequest) -> dict[str, Any]:
    state, method = request.GET.get("state", ""), request.GET.get("method", "")
    rows = chosen_jobs(request.user, state=state, method=method)
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    lines = loss_lines(list(page))
    return {
        "page": page,
        "is_filtered": bool(state or method),
        "jobs": [{**_job_row(job), "line": lines.get(job.pk)} for job in page],
        "agent": agent_status(request.user),
        "judge": _judge(request.user),
    }


def _judge(user: User) -> dict[str, Any]:
    """The judge of the whole installation for admins, as far as it concerns them for others."""
    return judge_status(None if user.runs_training else user)


def _job_row(job: TrainingJob) -> dict[str, Any]:
    """A job with what the pages need besides the public fields."""
    return {
        **job_json(job),
        "reason": said(job.reason),
        "ended_early": SimpleLazyObject(lambda: said(early_end(job))),  # few rows show it
        "owner": job.user,
        "active": job.is_active,
        "cancelling": job.is_active and job.cancel_requested,
        "finishing": job.state in ("loading", "training") and job.finish_requested,
        "stale": is_stale(job),
        "parent_version": job.parent.version if job.parent else 0,
        "child_version": job.child.version if job.child else None,
        "took": _took(job),
        "rolled_back": job.child is not None and job.child.rolled_back_at is not None,
        "left": seconds_left(job),
        "advice": SimpleLazyObject(lambda: _advice(job)),
        "method_words": METHOD_WORDS.get(job.method, ""),
    }


def _settings(known: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Each setting as the job trained with it; and what had been asked for, where that differs."""
    trained = known.get("trained_as", {})
    asked = [(name, value) for name, value in known.items() if name != "trained_as"]
    return [
        (name, trained.get(name, value), value if name in trained else None)
        for name, value in asked
    ]


def _asked_again(job: TrainingJob) -> list[tuple[str, str, str]]:
    """What the job was given besides its method, as fields that are sent for another such job: each
    one's name, value and kind. A float as programs write it, whatever the page's language."""
    chosen = chosen_settings(job.config)
    return [
        (name, str(value), "hidden" if isinstance(value, str) else "number")
        for name, value in chosen.items()
        if value != getattr(USUAL, name)
    ]


def _took(job: TrainingJob) -> str:
    """As one says it: 48 s, 10 min 50 s, 1 h 5 min; nothing while it runs, nor where the clock was
    set back meanwhile: nobody knows then."""
    if not job.started_at or not job.finished_at or job.finished_at < job.started_at:
        return ""
    minutes, seconds = divmod(round((job.finished_at - job.started_at).total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _advice(job: TrainingJob) -> str:
    """What came of it and what to do about it; "" of one that runs or went live."""
    if job.state not in FATES:
        return ""
    promises = job.state != JobState.NO_SIGNAL
    fate = NOT_ALL_COUNT if promises and has_unused_ratings(job) else FATES[job.state]
    return f"{fate} {_what_to_do(job)}".strip()


def _what_to_do(job: TrainingJob) -> str | Promise:
    if job.state == JobState.FAILED:
        for sign, words in FAILURES:
            if sign in job.reason:
                return words
    return ADVICE.get(job.state, "")


def _job_context(user: User, job: TrainingJob, *, with_samples: bool = True) -> dict[str, Any]:
    own = job.user_id == user.pk
    return {
        "job": _job_row(job),
        "own": own,
        "settings": _settings(job.config),
        "asked_again": _asked_again(job),
        # Hints and replies are the owner's; an admin sees how many there are.
        "job_samples": _job_samples(job) if own and with_samples else [],
        "uses": uses_of_samples(job),
        "adapter": version_facts(job.child) if job.child else None,
        "events": [
            {
                "at": event.at,
                "what": EVENT_WORDS.get(event.kind, event.kind),
                "text": said(event.text),
            }
            for event in job.events.all()
        ],
    }


def _job_samples(job: TrainingJob) -> list[dict[str, Any]]:
    found = job.job_samples.select_related("sample__turn__session").order_by("id")
    rows = found.defer("sample__token_effects", *(f"sample__turn__{name}" for name in BULKY))
    return [
        {"role": row.role, "sample": row.sample, "text": text_of(input_of(row.sample.turn))}
        for row in rows
    ]
