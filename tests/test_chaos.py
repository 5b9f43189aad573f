"""The promises that `make chaos` checks: each is seen to be broken where it is broken."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from bench.chaos.invariants import Row, at_rest, told_and_kept, violations
from clawweb.config import config
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    GateResult,
    JobSample,
    SampleState,
    TrainingJob,
    TrainingSample,
    Turn,
)
from clawweb.services import feedback
from tests.factories import claimed_job, make_adapter, make_turn, rated

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("engine")]


def query(sql: str) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def broken() -> list[str]:
    return violations(query, config().var)


@pytest.fixture
def version(alice: Any) -> AdapterVersion:
    """Live, passed, whole."""
    adapter = make_adapter(alice, 1, AdapterState.LIVE, sha256=hashlib.sha256(b"w").hexdigest())
    weights_of(adapter).write_bytes(b"w")
    GateResult.objects.create(adapter=adapter, measure="drift", value=0.1, limit=0.2, ok=True)
    GateResult.objects.create(adapter=adapter, measure="preference", ok=None)
    return adapter


def weights_of(adapter: AdapterVersion) -> Path:
    return config().var / adapter.path / "adapter_model.safetensors"


def test_a_system_at_rest_breaks_no_promise(alice, version):
    rated(alice, 3)
    make_turn(alice, adapter=version)
    assert at_rest(query) == []
    assert broken() == []


def test_what_moves_is_not_at_rest(alice):
    rated(alice, 8)
    claimed_job(alice)
    Turn.objects.filter(pk=make_turn(alice).pk).update(state="streaming")
    assert at_rest(query) == ["replies", "jobs"]


def test_a_forgotten_claim_is_seen(alice):
    rated(alice, 8)
    job = claimed_job(alice)
    assert broken() == []
    TrainingJob.objects.filter(pk=job.pk).update(state="failed")
    assert len(broken()) == 8


def test_a_drop_without_a_reason_and_a_lesson_without_a_version_are_seen(alice):
    rated(alice, 2)
    first, second = TrainingSample.objects.all()
    TrainingSample.objects.filter(pk=first.pk).update(state=SampleState.DROPPED)
    TrainingSample.objects.filter(pk=second.pk).update(state=SampleState.TRAINED)
    assert [line.split(" is ")[1] for line in broken()] == [
        "dropped without a reason",
        "trained and names no version",
    ]


def test_a_sample_that_two_jobs_learned_is_seen(alice):
    rated(alice, 1)
    sample = TrainingSample.objects.get()
    for _ in range(2):
        job = TrainingJob.objects.create(user=alice, state="deployed")
        JobSample.objects.create(job=job, sample=sample, role="new")
        JobSample.objects.create(job=job, sample=sample, role="replay")
    assert broken() == [f"sample {sample.pk} was learned by 2 jobs"]


def test_a_version_that_failed_its_gate_or_never_had_one_is_seen(alice, version):
    version.gate.update(ok=False)
    assert len(broken()) == 2
    version.gate.update(ok=None)  # nothing that it was held to
    assert broken() == [f"{version.name} is live and its gate was never measured"]
    version.gate.all().delete()
    assert broken() == [f"{version.name} is live and its gate was never measured"]


def test_missing_and_changed_weights_are_seen(alice, version):
    weights_of(version).write_bytes(b"x")
    assert broken() == [f"{version.name} has other weights on disk than its gate saw"]
    weights_of(version).unlink()
    assert broken() == [f"{version.name} has no weights on disk"]


def test_an_answer_by_anothers_version_is_seen(bob, version):
    turn = make_turn(bob, adapter=version, adapter_name=version.name)
    assert broken() == [f"{turn.public_id} was answered by {version.name}, another's"]


def test_what_callers_were_told_is_there_once(alice, bob):
    turn = make_turn(alice, reply="tea")
    for value in (-1, 1):
        feedback.rate_turn(turn=turn, author=alice, changes={"value": value})
    name, question = turn.public_id, turn.input_messages[-1]["content"]

    def kept(reply: str, values: list[int], tries: int, sent: str = question) -> list[str]:
        return told_and_kept(
            query,
            asked={"alice": 1, "bob": 0},
            replies={name: (sent, reply)},
            ratings={name: values},
            tries=Counter({name: tries}),
        )

    assert kept("tea", [-1, 1], 2) == []
    assert kept("tea", [1], 2) == []  # the first one came through and was not acknowledged
    assert "another text" in kept("coffee", [-1, 1], 2)[0]
    assert "another message" in kept("tea", [-1, 1], 2, sent="What?")[0]
    assert "was rated [1, -1]" in kept("tea", [1, -1], 2)[0]
    assert "1 times at most" in kept("tea", [1], 1)[0]
    make_turn(alice, question)
    more, twice = kept("tea", [-1, 1], 2)
    assert more == "alice asked 1 times at most and has 2 turns"
    assert twice == f"alice asked once and has 2 turns: {question}"
    for _ in range(2):  # who else is there may ask as they like
        make_turn(bob, "again")
    lost = told_and_kept(
        query,
        asked={"alice": 2},
        replies={"turn-0": ("x", "y")},
        ratings={"turn-0": [1]},
        tries=Counter(),
    )
    assert sum("turn-0" in line for line in lost) == 2
