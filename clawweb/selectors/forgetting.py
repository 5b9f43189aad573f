"""Reads of forgetting: which versions learned from a chat, and which chats any learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Max, Q

from clawweb.models import (
    AdapterState,
    AdapterVersion,
    ChatSession,
    JobSample,
    JobState,
    SampleState,
    TrainingSample,
    User,
)

SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedChat:
    """A chat, and the versions that have learned from it."""

    session: ChatSession
    versions: list[AdapterVersion]  # oldest first


def versions_that_learned_from(session: ChatSession) -> list[AdapterVersion]:
    """Those trained on its ratings or reminded of them, and all that grew from these; oldest
    first. Without those whose files are gone."""
    return _versions_by_chat(session.user_id, [session.pk])[session.pk]


def _versions_by_chat(user_id: int, chats: Sequence[int]) -> dict[int, list[AdapterVersion]]:
    """As many queries for all chats as for one: the page of what was learned lists twenty."""
    trained = TrainingSample.objects.filter(
        turn__session__in=chats, state=SampleState.TRAINED, adapter__isnull=False
    )
    used = JobSample.objects.filter(
        sample__turn__session__in=chats, job__child__isnull=False
    ).filter(
        # What the trainer dropped taught nothing; what was learned may count again since then, and
        # be dropped then, as after a job whose version never answered.
        Q(role__in=["replay", "reanswer"])
        | ~Q(sample__state=SampleState.DROPPED)
        | Q(job__state__in=[JobState.REFUSED, JobState.FAILED, JobState.CANCELLED])
    )
    found: dict[int, set[int]] = {chat: set() for chat in chats}
    pairs = trained.order_by().values_list("turn__session", "adapter").distinct()
    more = used.order_by().values_list("sample__turn__session", "job__child").distinct()
    for chat, version in [*pairs, *more]:
        found[chat].add(version)
    rows = list(AdapterVersion.objects.filter(user=user_id).order_by("version"))
    for learned in found.values():
        for row in rows:  # a parent's number is the smaller one
            if row.parent_id in learned:
                learned.add(row.pk)
    there = [row for row in rows if row.state != AdapterState.ERASED]
    return {chat: [row for row in there if row.pk in learned] for chat, learned in found.items()}


def learned_chats(user: User) -> tuple[list[LearnedChat], bool]:
    """The chats that versions learned from, the one whose ratings were learned last first; also
    deleted ones that can still be had back. And whether there are more than these."""
    sessions = ChatSession.objects.filter(user=user)
    trained = sessions.filter(turns__samples__state=SampleState.TRAINED)
    newest = trained.annotate(learned=Max("turns__samples__id")).order_by("-learned")
    rows = list(newest[: SHOWN + 1])  # one more says whether there are more
    versions = _versions_by_chat(user.pk, [row.pk for row in rows[:SHOWN]])
    found = [LearnedChat(session=row, versions=versions[row.pk]) for row in rows[:SHOWN]]
    return [chat for chat in found if chat.versions], len(rows) > SHOWN
