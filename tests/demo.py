"""A small installation's rows as they look after two weeks, for checks and pictures of pages.
Written by the services that make them in earnest, but for their dates.

`manage.py shell --command "from tests.demo import main; main()"` writes them into this
environment's database and prints, as JSON, each person's session cookie and what stands in the
addresses of pages."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from clawweb import sentences
from clawweb.engine import base_hash
from clawweb.models import (
    AdapterVersion,
    ChatSession,
    Comparison,
    JobState,
    Judgement,
    TrainingJob,
    Transfer,
    Turn,
    User,
)
from clawweb.selectors.complaints import complaints_of
from clawweb.services import accounts, feedback, health, jobs, versions
from clawweb.services.sessions import open_session
from tests.factories import make_turn, up

BACKEND = "django.contrib.auth.backends.ModelBackend"
PASSWORD = "only for the demo"
STEPS = 40
TEXTS = json.loads((Path(__file__).parent / "demo.json").read_text())
_questions, _replies, _wishes = (
    itertools.cycle(TEXTS[name]) for name in ("questions", "replies", "wishes")
)


@transaction.atomic  # one wait for the disk
def main() -> None:
    """In a database without these people."""
    sys.stdout.write(f"{json.dumps(write())}\n")


def write() -> dict[str, Any]:
    """The rows; what `main` prints of them."""
    random.seed(7)
    ada = User.objects.create_user("ada", password=PASSWORD)
    root = User.objects.create_superuser("root")
    new = User.objects.create_user("newcomer")
    guest = User.objects.create_user("guest", password=PASSWORD)
    version_of(guest, days=1)
    live = [version_of(ada, days=12)]
    refused_job(ada, days=8)
    live.append(version_of(ada, days=6))
    chats = [talk(ada, **each) for each in reversed(TEXTS["talks"])][::-1]
    rate([turn for chat in chats for turn in chat.turns.order_by("id")][:6])
    failed_job(root)
    running_job(root)
    around(ada, chats)
    for chat, each in zip(chats, TEXTS["talks"], strict=True):
        date_chats(ChatSession.objects.filter(pk=chat.pk), each["days_ago"])
    return {
        "cookies": {user.username: cookie(user) for user in (ada, root, new, guest)},
        "session_id": chats[0].public_id,
        "job_id": live[1].job.public_id,
    }


def cookie(user: User) -> str:
    """Of a signed-in session."""
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = BACKEND
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.save()
    return str(store.session_key)


def talk(user: User, days_ago: int, title: str, said: Sequence[Sequence[str]]) -> ChatSession:
    session = open_session(user=user)
    live = AdapterVersion.objects.filter(user=user, state="live").first()
    turn = None
    for text, reply in said:
        turn = make_turn(
            user,
            text,
            session=session,
            parent=turn,
            reply=reply,
            adapter=live,
            adapter_name=live.name if live else "",
            version=live.version if live else 0,
        )
    session.title, session.pinned = title, title.startswith("Tomatoes")
    session.save()
    return session


def date_chats(chats: QuerySet[ChatSession], days_ago: int) -> None:
    """As if they had been held so many days ago, in a few seconds each."""
    at = timezone.now() - timedelta(days=days_ago, minutes=20 + 7 * days_ago)
    Turn.objects.filter(session__in=list(chats)).update(
        created_at=at,
        started_at=at,
        first_token_at=at + timedelta(seconds=0.4),
        finished_at=at + timedelta(seconds=4.2),
    )
    chats.update(created_at=at, updated_at=at)


def rate(turns: Sequence[Turn]) -> None:
    for turn in turns:
        said = dict(next(_wishes))
        feedback.rate_turn(turn=turn, author=turn.session.user, changes={**said, "final": True})


def version_of(user: User, days: int) -> AdapterVersion:
    """Nine ratings, the job that learned from them, and its version, live since."""
    job = trained_job(user)
    adapter = registered(job, accepted=True)
    versions.go_live(adapter, over=job.parent, why="it passed its tests")
    jobs.end_job(job, state=JobState.DEPLOYED, reason="", learned=adapter)
    date(job, days)
    AdapterVersion.objects.filter(pk=adapter.pk).update(live_at=timezone.now() - timedelta(days))
    return AdapterVersion.objects.select_related("job").get(pk=adapter.pk)


def refused_job(user: User, days: int) -> None:
    job = trained_job(user)
    registered(job, accepted=False)
    reason = "31% of its test replies do not come to an end (at most 20%)"
    jobs.end_job(job, state=JobState.REFUSED, reason=reason)
    date(job, days)


def failed_job(user: User) -> None:
    job = started_job(user)
    record(job, 3)
    jobs.end_job(
        job, state=JobState.FAILED, reason="There was not enough memory for a batch of 512 tokens."
    )
    date(job, 2)


def running_job(user: User) -> None:
    job = started_job(user)
    jobs.advance(job, state=JobState.TRAINING, phase="rated replies", steps=STEPS)
    record(job, 14)


def started_job(user: User) -> TrainingJob:
    live = AdapterVersion.objects.filter(user=user, state="live").first()
    turns = []
    for _ in range(9):
        values: dict[str, Any] = {"version": live.version if live else 0, "adapter": live}
        turns.append(make_turn(user, next(_questions), reply=next(_replies), **values))
    rate(turns)
    for turn in turns[:3]:
        place = {"session": turn.session, "parent": turn, "reply": "Gladly."}
        again = make_turn(user, next(_questions), **place, **values)
        if live:
            up(again)
    queued = jobs.queue_job(user=user, trigger="batch")
    job = jobs.claim_job(queued.public_id)
    assert job is not None
    return job


def trained_job(user: User) -> TrainingJob:
    job = started_job(user)
    jobs.advance(job, state=JobState.TRAINING, phase="rated replies", steps=STEPS)
    record(job, STEPS)
    jobs.advance(job, state=JobState.GATING, phase="testing the new version")
    return job


def record(job: TrainingJob, steps: int) -> None:
    """Metrics as a run has them: they fall, they shake, some are not measured in each step."""
    for step in range(1, steps + 1):
        fall = math.exp(-step / 12)
        on_thumbs = step > STEPS - 4
        values = {
            "loss": 0.15 + 1.3 * fall + random.gauss(0, 0.06),
            "reward": max(-1.0, min(1.0, 0.5 - 0.9 * fall + random.gauss(0, 0.15)))
            if step % 3
            else None,
            "kl": None if on_thumbs else 0.01 + 0.2 * fall + random.random() * 0.02,
            "grad_norm": (0.4 + 1.1 * fall + abs(random.gauss(0, 0.2))) * (25 if step == 23 else 1),
            "tokens_per_second": 120 + random.gauss(0, 9),
            "seconds": 2.2,
            "phase": "thumbs" if on_thumbs else "rated",
        }
        jobs.record_step(job, step=step, steps=STEPS, values=values, phase="rated replies")


def registered(job: TrainingJob, *, accepted: bool) -> AdapterVersion:
    number = versions.next_version(job.user)
    measures = [
        measure("empty", 0.0, 0.02, True, "0% of its test replies are empty (at most 2%)"),
        measure(
            "cut_off",
            0.06 if accepted else 0.31,
            0.2,
            accepted,
            f"{6 if accepted else 31}% of its test replies do not come to an end (at most 20%)",
        ),
        measure("length", 34.0, 3.0, True, "its test replies are 34 tokens long (at least 3)"),
        measure(
            "question",
            0.71,
            0.25,
            True,
            "its test replies fit what was asked 71% as well as the base model's (at least 25%)",
        ),
        measure(
            "preference",
            None,
            -0.05,
            None,
            "not measured: needs 2 liked and 2 disliked replies that were held back",
        ),
        measure(
            "drift",
            0.11,
            0.17,
            True,
            "on subjects you never rated it differs from the base model by 0.11 "
            "(at most 0.17, what your wishes explain)",
        ),
    ]
    return versions.register(
        job,
        version=number,
        path=Path("adapters") / f"u{job.user_id}" / f"v{number}.1",
        sha256=f"{number:02x}" * 32,
        rank=8,
        size_bytes=4_900_000,
        base_hash=base_hash(),
        measures=measures,
        accepted=accepted,
        note="" if accepted else measures[1].text,
    )


def measure(
    name: str, value: float | None, limit: float, ok: bool | None, text: str
) -> versions.Measure:
    return SimpleNamespace(measure=name, value=value, limit=limit, ok=ok, text=text)


def date(job: TrainingJob, days: int) -> None:
    """As if it had run so many days ago."""
    at = timezone.now() - timedelta(days=days, hours=1)
    end = at + timedelta(seconds=118)
    TrainingJob.objects.filter(pk=job.pk).update(created_at=at, started_at=at, finished_at=end)
    date_chats(ChatSession.objects.filter(turns__samples__job_samples__job=job).distinct(), days)
    # The last point stands well before the end, as the tests come after it.
    for rows, apart in ((job.events, 118 / job.events.count()), (job.metrics, 2)):
        for number, each in enumerate(rows.all()):
            rows.filter(pk=each.pk).update(at=at + timedelta(seconds=apart * number))


def recheck(user: User) -> None:
    """The newest complaint has been asked again of the version that answers now; nobody judged."""
    live = AdapterVersion.objects.get(user=user, state="live")
    complaint = complaints_of(user, live)[0]
    again = make_turn(
        user,
        session=complaint.session,
        reply="In a pot of cold water: bring it to the boil, wait seven minutes.",
        asked=f"agent@v{live.version}",
        turn_type="side",
        adapter=live,
        version=live.version,
    )
    Turn.objects.filter(pk=again.pk).update(input_messages=complaint.input_messages)
    at = complaint.session.created_at  # nobody has spoken in that chat since
    ChatSession.objects.filter(pk=complaint.session_id).update(updated_at=at)
    Comparison.objects.create(user=user, kind="recheck", first=complaint, second=again)


def around(user: User, chats: Sequence[ChatSession]) -> None:
    """Beside chats and jobs: a judgement, a comparison, a failed reply, keys, files, workers."""
    first, second = chats[0].turns.order_by("id")[:2]
    Judgement.objects.create(
        turn=first,
        next_turn=second,
        state="judged",
        judge="a judge",
        score=1,
        votes=[{"score": 1, "hint": "", "text": "VERDICT: 1"}, {"error": "no verdict"}],
        judged_at=timezone.now(),
    )
    card = chats[2].turns.get()
    again = make_turn(
        user, session=chats[2], reply="May every wave that finds your shore\nbring seventy more."
    )
    Turn.objects.filter(pk=again.pk).update(input_messages=card.input_messages)
    Comparison.objects.create(
        user=user, kind="again", first=card, second=again, verdict="second",
        decided_at=timezone.now(),
    )  # fmt: skip
    recheck(user)
    make_turn(
        user,
        "Write a very long essay on moss.",
        reply="Moss is",
        state="interrupted",
        error="The server was stopped while it wrote this reply.",
    )
    accounts.make_key(user=user, name="notebook")
    Transfer.objects.create(
        user=user, kind="export", shape="kto", state="done", done=27, total=27,
        path="transfers/gone.jsonl", finished_at=timezone.now(),
    )  # fmt: skip
    Transfer.objects.create(
        user=user, kind="import", shape="conversations", state="failed",
        note="Its file cannot be written or read.", finished_at=timezone.now(),
    )  # fmt: skip
    for name, kind, doing in (
        ("generator@desk:11", "generator", sentences.WRITES % {"n": 0}),
        ("worker-light@desk", "worker-light", ""),
        ("worker-gpu@desk", "worker-gpu", "training"),
        ("beat@desk", "beat", ""),
    ):
        health.beat(name, kind, doing)
