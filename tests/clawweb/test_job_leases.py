"""A job's row under its lease: how long it is held, what counts on from attempt to attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from clawweb.config import config
from clawweb.models import (
    AuditEvent,
    Consent,
    DropReason,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
    User,
)
from clawweb.selectors.policy import batch_of, training_policy
from clawweb.services import feedback, jobs
from clawweb.services.errors import LeaseLost, NothingReady
from tests.factories import claimed_job, down_alone, make_turn, rated, up

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def test_a_renewed_lease_holds_for_as_long_as_a_fresh_one(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    TrainingJob.objects.update(lease_until=timezone.now() + timedelta(seconds=1))
    assert jobs.renew(job)
    job.refresh_from_db()
    left = (job.lease_until - timezone.now()).total_seconds()
    assert left == pytest.approx(config().lease_seconds, abs=5)


def test_steps_of_one_attempt_follow_each_other_and_those_of_the_next_go_on(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    for step in (1, 2, 3):
        jobs.record_step(job, step=step, steps=8, values={}, phase="")
    started = TrainingJob.objects.get().started_at
    TrainingJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    again = jobs.claim_job(job.public_id)
    assert (again.step, again.started_at) == (0, started)
    for step in (1, 2):
        jobs.record_step(again, step=step, steps=8, values={}, phase="")
    assert list(job.metrics.values_list("step", flat=True)) == [1, 2, 3, 4, 5]


def test_only_what_nobody_holds_is_forgotten_the_oldest_first(alice, bob):
    for user in (alice, bob):
        rated(user, 1)
    lapsed, queued = claimed_job(alice), jobs.queue_job(user=bob)
    assert jobs.forgotten_jobs() == [queued]
    TrainingJob.objects.filter(pk=lapsed.pk).update(
        lease_until=timezone.now() - timedelta(seconds=1)
    )
    assert jobs.forgotten_jobs() == [lapsed, queued]


def test_who_paused_learning_is_not_asked_about(alice, bob):
    for user in (alice, bob):
        rated(user, 1)
    User.objects.filter(pk=bob.pk).update(learning_paused=True)
    assert jobs.users_with_batches() == [alice]


def test_a_batch_of_what_the_method_cannot_use_is_not_full(alice, monkeypatch):
    policy = training_policy()
    turns = rated(alice, batch_of(policy))
    monkeypatch.setattr(jobs, "usable_among", lambda rows, *_: rows.exclude(turn=turns[0]))
    assert jobs.queue_batch(alice) is None
    monkeypatch.undo()
    assert jobs.queue_batch(alice) is not None
    assert not AuditEvent.objects.filter(action="start_job").exists()  # nobody did


def test_a_job_writes_no_effects_to_a_sample_that_is_not_its_own(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    down_alone(make_turn(alice))
    own, other = TrainingSample.objects.order_by("pk")
    jobs.note_effects(job, {own.pk: [0.12345], other.pk: [0.5]})
    effects = TrainingSample.objects.order_by("pk").values_list("token_effects", flat=True)
    assert list(effects) == [[round(0.12345, 4)], None]


def test_who_trains_no_more_has_nothing_kept_aside(alice):
    rated(alice, 1)
    TrainingSample.objects.update(held_back=True)
    jobs.withdraw_consent(alice)
    sample = TrainingSample.objects.get()
    assert (sample.state, sample.held_back) == (SampleState.DROPPED, False)


def test_what_was_rated_anew_stays_replaced_when_training_is_declined(alice):
    (turn,) = rated(alice, 1)
    up(turn)
    jobs.withdraw_consent(alice)
    states = TrainingSample.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == [SampleState.SUPERSEDED, SampleState.DROPPED]


def test_a_thumb_that_waited_for_its_reason_while_a_job_was_cancelled_is_not_new(alice):
    """Who cancels has seen it; `refused` counts it as new (test_jobs.py)."""
    waits = make_turn(alice)
    feedback.rate_turn(turn=waits, author=alice, changes={"value": -1})
    rated(alice, 8)
    jobs.end_job(claimed_job(alice), state=JobState.CANCELLED)
    later = timezone.now() + timedelta(hours=1)
    waits.samples.update(settles_at=later, state=SampleState.READY)
    assert jobs.queue_batch(alice) is None


def test_who_lost_a_job_notes_nothing_of_its_samples(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    sample = TrainingSample.objects.get()
    TrainingJob.objects.update(lease_token="another worker's")
    for note, what in ((jobs.note_effects, {sample.pk: [0.5]}), (jobs.note_reanswers, [sample.pk])):
        with pytest.raises(LeaseLost):
            note(job, what)
    sample.refresh_from_db()
    assert sample.token_effects is None
    assert list(job.job_samples.values_list("role", flat=True)) == ["new"]


def test_what_two_attempts_answered_anew_is_noted_once(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    for _ in range(2):
        jobs.note_reanswers(job, [TrainingSample.objects.get().pk])
    assert job.job_samples.filter(role="reanswer").count() == 1


def test_who_trains_no_more_is_told_why_no_job_begins(alice):
    alice.consent = Consent.KEEP
    rated(alice, 1)
    with pytest.raises(NothingReady, match="Your settings say not to train"):
        jobs.queue_job(user=alice)


def test_whose_settings_changed_since_a_job_was_queued_trains_nothing(alice):
    rated(alice, 1)
    queued = jobs.queue_job(user=alice)
    User.objects.filter(pk=alice.pk).update(consent=Consent.KEEP)
    assert jobs.samples_of(jobs.claim_job(queued.public_id)) == []
    assert TrainingSample.objects.get().drop_reason == DropReason.CONSENT


@pytest.mark.parametrize("begun", [True, False])
def test_only_a_job_that_no_worker_has_begun_is_cancelled_before_it_started(alice, begun):
    rated(alice, 1)
    job = claimed_job(alice) if begun else jobs.queue_job(user=alice)
    if begun:
        jobs.put_back(job)
    jobs.cancel_job(job)
    job.refresh_from_db()
    words = "It was cancelled." if begun else "It was cancelled before it started."
    assert (job.state, job.reason) == (JobState.CANCELLED, words)


def test_who_cancels_is_audited_with_what_the_job_was_at(alice):
    rated(alice, 1)
    jobs.cancel_job(jobs.queue_job(user=alice))
    jobs.cancel_job(claimed_job(alice))
    before = AuditEvent.objects.filter(action="cancel_job").order_by("pk")
    assert [row.before["state"] for row in before] == ["queued", "loading"]
