"""Rows as the product makes them, in one call each."""

from __future__ import annotations

import hashlib
import itertools
import json
from types import SimpleNamespace
from typing import Any

from django.utils import timezone

from clawweb.config import config
from clawweb.engine import base_hash, current_template_hash
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    FeedbackReason,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
    Turn,
    TurnState,
    User,
)
from clawweb.selectors.chat import said
from clawweb.services import chat, feedback, jobs, sessions, versions
from rollouts.types import Message, SamplingParams

_count = itertools.count(1)
FINE = SimpleNamespace(  # as training.gate gives it, which takes seconds to import
    measure="length", value=20.0, limit=3.0, ok=True, text="20 tokens"
)


def make_turn(user: User, text: str = "", **values: Any) -> Turn:
    """A finished reply of the user's own agent, sampled plainly, as a generator leaves it."""
    session = values.pop("session", None) or sessions.open_session(user=user)
    turn = chat.open_turn(
        session=session,
        parent=values.pop("parent", None),
        messages=[Message(role="user", content=text or f"question {next(_count)}")],
        params=values.pop("params", SamplingParams()),
        asked=values.pop("asked", "agent"),
        turn_type=values.pop("turn_type", "main"),
        source=values.pop("source", "ui"),
    )
    reply = values.pop("reply", "a reply")
    row: dict[str, Any] = {
        "state": TurnState.COMPLETE,
        "reply": reply,
        "prompt_ids": [1, 2, 3],
        "response_ids": [4, 5],
        "logprobs": [-0.5, -0.25],
        "template_hash": current_template_hash(),
        "finished_at": timezone.now(),
        **values,
    }
    if row.get("version") and "adapter" not in row:
        row["adapter"] = AdapterVersion.objects.filter(user=user, version=row["version"]).first()
    Turn.objects.filter(pk=turn.pk).update(**row)
    turn = Turn.objects.select_related("session__user").get(pk=turn.pk)
    turn.history_hash = chat._history_after(turn, said(reply, turn.tool_calls))
    turn.save(update_fields=["history_hash"])
    return turn


def down(turn: Turn, reason: str = "too_long") -> None:
    feedback.rate_turn(
        turn=turn, author=turn.session.user, changes={"value": -1, "reasons": [reason]}
    )


def hint_of(slug: str) -> str:
    """What ticking the reason asks for."""
    return FeedbackReason.objects.get(slug=slug).hint


def down_alone(turn: Turn) -> None:
    """Without a word, and none to come."""
    changes = {"value": -1, "final": True}
    feedback.rate_turn(turn=turn, author=turn.session.user, changes=changes)


def comment(user: User, text: str, **values: Any) -> Turn:
    turn = make_turn(user, **values)
    feedback.rate_turn(turn=turn, author=user, changes={"value": -1, "comment": text})
    return turn


def in_state(turn: Turn, state: SampleState, **values: Any) -> None:
    TrainingSample.objects.filter(turn=turn).update(state=state, **values)


def up(turn: Turn) -> None:
    feedback.rate_turn(turn=turn, author=turn.session.user, changes={"value": 1})


def rated(user: User, count: int) -> list[Turn]:
    turns = [make_turn(user) for _ in range(count)]
    for turn in turns:
        down(turn)
    return turns


def write_weights(path: str, text: str) -> str:
    """What stands for weights, under var; its sha256."""
    folder = config().var / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


def write_probe(path: str, version: int, *, differs: bool = True) -> None:
    """What the scripted engine gives, as if a trainer had measured it; or what it does not."""
    scored = [-0.01 * (token + 1) - 0.001 * version if differs else -9.0 for token in (4, 5)]
    probe = {"prompt_ids": [1], "response_ids": [4, 5], "adapter_logprobs": scored}
    (config().var / f"{path}.probe.json").write_text(json.dumps(probe))


def make_adapter(
    user: User, version: int, state: str = AdapterState.STANDBY, **values: Any
) -> AdapterVersion:
    """The row of a version that passed the gate, a file for its weights, and its probe."""
    path = f"adapters/u{user.pk}/v{version}.1"
    row: dict[str, Any] = {
        "name": f"abcdefab-u{user.pk}-v{version}-{version:08x}",
        "path": path,
        "sha256": write_weights(path, f"weights of version {version}"),
        "size_bytes": 1,
        "rank": 8,
        "base_hash": base_hash(),
        "live_at": timezone.now(),
        **values,
    }
    write_probe(path, version)
    return AdapterVersion.objects.create(user=user, version=version, state=state, **row)


def claimed_job(user: User, **chosen: Any) -> TrainingJob:
    queued = jobs.queue_job(user=user, **chosen)
    job = jobs.claim_job(queued.public_id)
    assert job is not None
    return job


def registered(
    user: User, *, accepted: bool = True, differs: bool = True
) -> tuple[TrainingJob, AdapterVersion]:
    """A job with its version's row and folder, as training leaves them."""
    job = claimed_job(user)
    return job, register_version(job, accepted=accepted, differs=differs)


def register_version(
    job: TrainingJob, *, accepted: bool = True, differs: bool = True
) -> AdapterVersion:
    """The claimed job's version, saved and gated."""
    user = job.user
    version = versions.next_version(user)
    path = versions.folder_for(user, version, job.attempt)
    folder = config().var / path
    folder.mkdir(parents=True, exist_ok=True)
    adapter = versions.register(
        job,
        version=version,
        path=path,
        sha256=write_weights(str(path), "w"),
        size_bytes=3,
        rank=8,
        base_hash=base_hash(),
        measures=[FINE],
        accepted=accepted,
        note="" if accepted else "it repeats itself",
    )
    write_probe(str(path), version, differs=differs)
    return adapter


def hand_over(job: TrainingJob) -> None:
    """To the deployer, as training does once the gate has accepted."""
    jobs.advance(job, state=JobState.DEPLOYING, lease_token="", lease_until=None)


def handed_over(user: User, *, differs: bool = True) -> tuple[TrainingJob, AdapterVersion]:
    """A job on one rating whose version waits to go live."""
    rated(user, 1)
    job, adapter = registered(user, differs=differs)
    hand_over(job)
    return job, adapter
