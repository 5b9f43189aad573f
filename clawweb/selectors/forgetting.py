"""Reads of forgetting: which versions learned from a chat, and which chats any learned from."""

from __future__ import annotations

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
    samples = TrainingSample.objects.filter(turn__session=session)
    trained = samples.filter(state=SampleState.TRAINED, adapter__isnull=False)
    used = JobSample.objects.filter(sample__in=samples, job__child__isnull=False).filter(
        # What the trainer dropped taught nothing; what was learned may count again since then, and
        # be dropped then, as after a job whose version never answered.
        Q(role__in=["replay", "reanswer"])
        | ~Q(sample__state=SampleState.DROPPED)
        | Q(job__state__in=[JobState.REFUSED, JobState.FAILED, JobState.CANCELLED])
    )
    found = set(trained.values_list("adapter_id", flat=True))
    found |= set(used.values_list("job__child_id", flat=True))
    rows = list(AdapterVersion.objects.filter(user=session.user_id).order_by("version"))
    for row in rows:  # a parent's number is the smaller one
        if row.parent_id in found:
            found.add(row.pk)
    return [row for row in rows if row.pk in found and row.state != AdapterState.ERASED]


def learned_chats(user: User) -> tuple[list[LearnedChat], bool]:
    """The chats that versions learned from, the one whose ratings were learned last first; also
    deleted ones that can still be had back. And whether there are more than these."""
    sessions = ChatSession.objects.filter(user=user)
    trained = sessions.filter(turns__samples__state=SampleState.TRAINED)
    newest = trained.annotate(learned=Max("turns__samples__id")).order_by("-learned")
    rows = list(newest[: SHOWN + 1])  # one more says whether there are more
    found = [LearnedChat(session=s, versions=versions_that_learned_from(s)) for s in rows[:SHOWN]]
    return [chat for chat in found if chat.versions], len(rows) > SHOWN
