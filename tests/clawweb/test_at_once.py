"""The same thing done by several at the same moment, each on a connection of its own.

SQLite lets one writer in at a time; PostgreSQL lets all of them in, and only the compare-and-swaps
and the constraints keep them apart. `make test-services` runs this there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from clawweb.models import (
    AdapterState,
    AdapterVersion,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
    Turn,
    TurnState,
    User,
)
from clawweb.services import chat, erasure, feedback, jobs, sessions, versions
from clawweb.services.errors import ServiceError
from clawweb.stack import database
from rollouts.types import Message, SamplingParams
from tests.factories import make_adapter, make_turn, rated

pytestmark = [pytest.mark.db, pytest.mark.django_db(transaction=True, serialized_rollback=True)]
MANY = 6


def at_once(act: Callable[[int], Any]) -> list[Any]:
    """What each of MANY got: a result, or the refusal in the service's own words."""
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        pytest.skip("threads would share one connection")
    together = threading.Barrier(MANY)

    def one(number: int) -> Any:
        together.wait(10)
        try:
            return act(number)
        except ServiceError as refusal:
            return refusal
        finally:
            connections.close_all()

    with ThreadPoolExecutor(MANY) as pool:
        return list(pool.map(one, range(MANY)))


def test_ratings_of_one_reply_leave_one_sample_and_lose_no_word(alice):
    turn = make_turn(alice)
    votes = at_once(
        lambda n: feedback.rate_turn(
            turn=Turn.objects.get(pk=turn.pk),
            author=alice,
            changes={"value": -1, "comment": f"word {n}"},
        )
    )
    assert len({row.pk for row in votes}) == MANY
    unclaimed = TrainingSample.objects.filter(
        turn=turn, state__in=[SampleState.WAITING, SampleState.READY]
    )
    newest = turn.feedback.order_by("-id").first()
    assert [sample.feedback_id for sample in unclaimed] == [newest.pk]
    assert TrainingSample.objects.filter(turn=turn).count() == MANY


def test_one_batch_queues_one_job(alice):
    rated(alice, 8)
    at_once(lambda _: jobs.queue_batch(alice))
    assert TrainingJob.objects.filter(user=alice).count() == 1


def test_one_worker_gets_the_job_and_each_sample_is_claimed_once(alice):
    rated(alice, 8)
    job = jobs.queue_job(user=alice)
    claimed = [each for each in at_once(lambda _: jobs.claim_job(job.public_id)) if each]
    assert len(claimed) == 1
    assert claimed[0].attempt == 1
    samples = TrainingSample.objects.filter(user=alice)
    assert {sample.state for sample in samples} == {SampleState.CLAIMED}
    assert claimed[0].job_samples.filter(role="new").count() == 8


def test_a_rating_beside_a_claim_is_learned_or_counts_anew(alice):
    turns = rated(alice, 8)
    job = jobs.queue_job(user=alice)

    def act(number: int) -> Any:
        if number == 0:
            return jobs.claim_job(job.public_id)
        turn = Turn.objects.get(pk=turns[number].pk)
        return feedback.rate_turn(turn=turn, author=alice, changes={"value": 1})

    at_once(act)
    job.refresh_from_db()
    assert job.state == JobState.LOADING
    for turn in turns[1:MANY]:
        states = list(turn.samples.order_by("id").values_list("state", flat=True))
        assert states in (
            [SampleState.CLAIMED, SampleState.READY],  # the claim was first
            [SampleState.SUPERSEDED, SampleState.READY],  # the rating was first
            [SampleState.SUPERSEDED, SampleState.CLAIMED],  # and then the claim took the new one
        ), states


def test_a_rating_waits_for_a_job_that_is_giving_its_sample_back(alice, monkeypatch):
    turn = rated(alice, 1)[0]
    claimed = jobs.claim_job(jobs.queue_job(user=alice).public_id)
    given_back, rating = threading.Event(), threading.Event()
    note, merged = jobs._note, feedback._merged

    def slow_note(*args: Any) -> None:
        note(*args)
        if args[1] == JobState.FAILED:  # given back, and not committed yet
            given_back.set()
            rating.wait(10)
            time.sleep(0.3)

    def seen_merged(*args: Any) -> Any:
        rating.set()
        return merged(*args)

    monkeypatch.setattr(jobs, "_note", slow_note)
    monkeypatch.setattr(feedback, "_merged", seen_merged)

    def act(number: int) -> Any:
        if number == 0:
            return jobs.end_job(claimed, state=JobState.FAILED)
        if number == 1:
            given_back.wait(10)
            row = Turn.objects.get(pk=turn.pk)
            return feedback.rate_turn(turn=row, author=alice, changes={"value": 1})
        return None

    at_once(act)
    states = list(turn.samples.order_by("id").values_list("state", flat=True))
    assert states == [SampleState.SUPERSEDED, SampleState.READY]


def test_two_versions_are_never_live_at_once(alice, engine):
    adapters = [make_adapter(alice, n + 1) for n in range(MANY)]
    at_once(
        lambda n: versions.promote(
            user=alice, adapter=AdapterVersion.objects.get(pk=adapters[n].pk)
        )
    )
    assert AdapterVersion.objects.filter(user=alice, state=AdapterState.LIVE).count() == 1


def test_a_pending_reply_is_claimed_by_one_generator(alice):
    session = sessions.open_session(user=alice)
    turns = [
        chat.open_turn(
            session=session,
            parent=None,
            messages=[Message(role="user", content=f"question {n}")],
            params=SamplingParams(),
        )
        for n in range(3)
    ]
    names = [turn.public_id for turn in turns]
    found = at_once(lambda n: chat.claim_turn(names[n % 3], base_hash="x"))
    claimed = [each[0] for each in found if each]
    assert sorted(turn.pk for turn in claimed) == sorted(turn.pk for turn in turns)
    for turn in Turn.objects.filter(pk__in=[turn.pk for turn in claimed]):
        assert turn.state == TurnState.STREAMING
    tokens = [turn.lease_token for turn in claimed]
    assert len(set(tokens)) == len(tokens)


def test_of_admins_who_leave_at_once_one_stays():
    admins = [User.objects.create_superuser(f"admin{n}") for n in range(MANY)]
    left = at_once(lambda n: erasure.erase_user(admins[n]))
    assert sum(isinstance(each, ServiceError) for each in left) == 1
    assert User.objects.filter(is_superuser=True, is_active=True).count() == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite serves one machine")
def test_of_several_starts_one_at_a_time_migrates() -> None:
    inside: list[int] = []

    def start(number: int) -> int:
        with database.one_at_a_time():
            inside.append(number)
            time.sleep(0.2)
            most = len(inside)
            inside.remove(number)
        return most

    assert at_once(start) == [1] * MANY
