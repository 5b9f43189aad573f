"""A job that stops early: who may ask for it, what it keeps, what it must not write any more."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from clawweb import tasks
from clawweb.models import (
    AuditEvent,
    Event,
    JobSample,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
)
from clawweb.selectors.console import early_end
from clawweb.services import feedback, finishing, jobs
from clawweb.services.errors import LeaseLost, NothingToKeep
from clawweb.services.notes import take_back_note
from tests.factories import claimed_job, comment, make_turn, rated

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def samples() -> list[TrainingSample]:
    return list(TrainingSample.objects.order_by("pk"))


def test_a_job_that_loads_its_model_can_be_stopped_and_kept(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    finishing.finish_job(job)
    assert finishing.finish_wanted(job)
    assert AuditEvent.objects.get(action="finish_job").before == {"state": JobState.LOADING}


def test_what_is_thrown_away_is_not_kept(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    jobs.cancel_job(job)
    with pytest.raises(NothingToKeep):
        finishing.finish_job(job)
    assert not finishing.finish_wanted(job)


def test_a_worker_that_lost_its_job_gives_nothing_of_it_back(alice):
    rated(alice, 1)
    said = comment(alice, "Use metres.")
    job = claimed_job(alice)
    take_back_note(user=alice, text="Use metres.")
    TrainingJob.objects.update(lease_token="another worker's")
    before = list(TrainingSample.objects.order_by("pk").values_list("state", "job"))
    finishing.give_back_untrained(job, ())
    finishing.leave_out_withdrawn(job)
    with pytest.raises(LeaseLost):
        finishing.drop_samples(job, {samples()[0].pk: "too_long"})
    assert list(TrainingSample.objects.order_by("pk").values_list("state", "job")) == before
    assert job.job_samples.filter(sample__turn=said).exists()


def test_an_early_end_leaves_out_neither_what_was_dropped_nor_what_was_answered_anew(alice):
    rated(alice, 2)
    job = claimed_job(alice)
    dropped, left = samples()
    finishing.drop_samples(job, {dropped.pk: "too_long"})
    JobSample.objects.create(job=job, sample=left, role="reanswer")
    finishing.give_back_untrained(job, ())
    kept = set(job.job_samples.values_list("sample", "role"))
    assert kept == {(dropped.pk, "new"), (left.pk, "reanswer")}
    assert [sample.state for sample in samples()] == [SampleState.DROPPED, SampleState.READY]
    assert Event.objects.get(job=job, kind="finishing").text.endswith(": 1")


def test_what_is_left_of_what_the_trainer_dropped_is_no_part_of_the_job(alice):
    turn = comment(alice, "Use metres.")
    job = claimed_job(alice)
    (sample,) = samples()
    take_back_note(user=alice, text="Use metres.")
    finishing.drop_samples(job, {sample.pk: "hint_no_effect"})
    assert list(turn.samples.order_by("pk").values_list("state", "job")) == [
        (SampleState.DROPPED, None),
        (SampleState.READY, None),
    ]


def test_a_job_that_made_all_its_steps_says_nothing_of_an_early_end(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    jobs.advance(job, state=JobState.TRAINING, step=8, steps=8)
    finishing.note_early_end(job, "learned")
    assert not Event.objects.filter(job=job, kind="ended_early").exists()


@pytest.mark.parametrize("end", ["put back", "killed"])
def test_an_early_end_is_that_of_its_own_attempt(alice, end):
    rated(alice, 1)
    job = claimed_job(alice)
    jobs.advance(job, state=JobState.TRAINING, step=2, steps=8)
    finishing.note_early_end(job, "time")
    jobs.advance(job, state=JobState.GATING)
    assert early_end(job)
    if end == "put back":
        jobs.put_back(job)
        assert not early_end(job)  # it will be trained anew
    TrainingJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    again = jobs.claim_job(job.public_id)
    assert again is not None
    assert not early_end(again)


def test_a_correction_that_the_method_leaves_aside_is_learned_by_thumb(alice):
    turn = make_turn(alice)
    feedback.rate_turn(
        turn=turn, author=alice, changes={"value": -1, "correction": "Six metres.", "final": True}
    )
    job = claimed_job(alice, method="kto")
    finishing.note_unheard(job, (), distils=False)
    assert turn.samples.get().by_thumb


@pytest.mark.parametrize("state", [JobState.TRAINING, JobState.QUEUED])
def test_a_cancelled_job_ends_also_where_no_worker_is_left(alice, state):
    rated(alice, 1)
    job = claimed_job(alice)
    jobs.advance(job, state=JobState.TRAINING)
    assert jobs.cancel_job(job)
    tasks._sweep_jobs()
    assert TrainingJob.objects.get().is_active  # its worker is asked, and has not answered yet
    if state == JobState.QUEUED:  # asked to stop as its worker was
        jobs.put_back(job)
    else:
        TrainingJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    tasks._sweep_jobs()
    ended = TrainingJob.objects.get()
    assert (ended.state, ended.reason) == (JobState.CANCELLED, "It was cancelled.")
    assert samples()[0].state == SampleState.READY
    with pytest.raises(LeaseLost):  # who comes back writes nothing more
        jobs.advance(job, phase="late")
