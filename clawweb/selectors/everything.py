"""All that is kept about a user, as named files of lines; and how many lines there will be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.db.models import Model, Q, QuerySet

from clawweb.models import AuditEvent, Comparison, Event, Judgement, SavedView, StepMetric, User
from clawweb.records import Line
from clawweb.selectors.learning import adapter_json, adapters_of, job_json, jobs_of
from clawweb.selectors.records import conversation_lines, finished_turns, pages, sessions_of
from clawweb.selectors.transfers import transfer_json, transfers_of

README = """Everything that this installation keeps about you, as JSON, one object a line.

profile        your account and its settings
conversations  chats, replies and ratings; can be brought in again on another installation
samples        what each rating gave to training, and what became of it
judgements     what the judge made of your replies, where one is set
comparisons    which of two replies you liked better
jobs, metrics  each training and what its steps measured
events         what happened to your jobs and versions, in order
versions       each version of your agent with its tests and the sha256 of its weights;
               the weights themselves can be downloaded under Versions
keys           your API keys, without their secrets
browsers       where you are signed in: program, address and times
sign_in        your second factor and your account at a provider elsewhere, without secrets
views          the filters that you saved
transfers      your exports and imports
audit          what you did, and what others did to your things
"""
_SECRETS = {"password", "hashed", "lease_token", "lease_until", "path", "session_key", "data"}
_PROFILE_ONLY = {"id", "groups", "user_permissions", "is_staff"}


def everything(user: User) -> dict[str, Callable[[], Iterator[Line]]]:
    """Each file's name and its lines; nothing is read before a file is asked for."""
    audit = AuditEvent.objects.filter(Q(subject=user) | Q(actor=user))
    metrics = StepMetric.objects.filter(job__user=user)
    # What can still be had back is in no file, nor what was said about it.
    samples = user.samples.filter(turn__session__deleted_at=None)
    judgements = Judgement.objects.filter(turn__session__user=user, turn__session__deleted_at=None)
    return {
        "profile": lambda: iter([_plain(user, _PROFILE_ONLY)]),
        "conversations": lambda: conversation_lines(user),
        "samples": lambda: _rows(samples.select_related("turn", "job", "adapter")),
        "judgements": lambda: _rows(judgements.select_related("turn", "next_turn")),
        "comparisons": lambda: _rows(_comparisons(user)),
        "jobs": lambda: (job_json(job) for job in pages(jobs_of(user))),
        "metrics": lambda: _rows(metrics.select_related("job")),
        "events": lambda: _rows(
            Event.objects.filter(user=user).select_related("job", "adapter"),
        ),
        "versions": lambda: (
            {**adapter_json(row), "sha256": row.sha256} for row in pages(adapters_of(user))
        ),
        "keys": lambda: _rows(user.api_keys.all()),
        "browsers": lambda: _rows(UserSession.objects.filter(user=user)),
        "sign_in": lambda: chain(
            _rows(Authenticator.objects.filter(user=user)),
            _rows(SocialAccount.objects.filter(user=user)),
        ),
        "views": lambda: _rows(SavedView.objects.filter(user=user)),
        "transfers": lambda: (transfer_json(row) for row in pages(transfers_of(user))),
        "audit": lambda: _rows(audit.select_related("actor", "subject")),
    }


def count(user: User) -> int:
    """About how many lines: the many ones, for a bar that moves."""
    metrics = StepMetric.objects.filter(job__user=user)
    return sum(
        rows.count()
        for rows in (sessions_of(user), finished_turns(user), user.samples.all(), metrics)
    )


def _comparisons(user: User) -> QuerySet[Comparison]:
    rows = Comparison.objects.filter(user=user, first__session__deleted_at=None)
    return rows.select_related("first", "second")


def _rows(rows: QuerySet[Any]) -> Iterator[Line]:
    return (_plain(row) for row in pages(rows))


def _plain(row: Model, without: set[str] = frozenset()) -> Line:  # type: ignore[assignment]
    """The row's columns; what it points at by its public name. No secrets, no owner: it is they."""
    line: Line = {}
    for field in row._meta.concrete_fields:
        if field.name in _SECRETS | without or field.name == "user":
            continue
        value = getattr(row, field.name)
        line[field.name] = _name(value) if isinstance(value, Model) else value
    return line


def _name(row: Model) -> str:
    for name in ("public_id", "username", "name"):
        if hasattr(row, name):
            return str(getattr(row, name))
    return str(row.pk)
