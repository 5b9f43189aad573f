"""Jobs: claims, leases and endings; no sample is lost and none trains twice."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone

from clawweb import sentences, training_run
from clawweb.config import config
from clawweb.engine import base_hash
from clawweb.models import (
    JobSample,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
    Turn,
)
from clawweb.selectors.agent import agent_status
from clawweb.selectors.learning import (
    held_back_samples,
    job_json,
    metric_points,
    receipt,
    versions_behind,
)
from clawweb.selectors.notes import notes_of
from clawweb.services import chat, feedback, finishing, health, jobs, sessions
from clawweb.services.errors import AlreadyTraining, LeaseLost, NothingReady
from rollouts.types import BASE, Message
from tests.factories import claimed_job, down, make_adapter, make_turn, rated, up

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def states(user):
    return list(
        TrainingSample.objects.filter(user=user).order_by("id").values_list("state", flat=True)
    )


def test_a_full_batch_queues_one_job_and_no_second(alice):
    rated(alice, config().batch - 1)
    assert jobs.queue_batch(alice) is None
    down(make_turn(alice))
    job = jobs.queue_batch(alice)
    assert job is not None
    assert (job.state, job.trigger) == (JobState.QUEUED, "batch")
    assert jobs.queue_batch(alice) is None
    with pytest.raises(AlreadyTraining, match="A training of yours is not over yet"):
        jobs.queue_job(user=alice)


def test_train_now_needs_one_ready_sample(alice):
    with pytest.raises(NothingReady, match="Rate a reply"):
        jobs.queue_job(user=alice)
    down(make_turn(alice))
    assert jobs.queue_job(user=alice).state == JobState.QUEUED


def test_another_users_samples_are_not_claimed(alice, bob):
    rated(alice, 2)
    rated(bob, 3)
    job = claimed_job(alice)
    assert {sample.user for sample in jobs.samples_of(job)} == {alice}
    assert states(bob) == ["ready"] * 3


def test_a_job_claims_at_most_64_oldest_first_and_the_rest_stay(alice):
    rated(alice, 70)
    job = claimed_job(alice)
    assert states(alice) == ["claimed"] * 64 + ["ready"] * 6
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1))
    second = claimed_job(alice)
    assert len(jobs.samples_of(second)) == 6
    twice = JobSample.objects.filter(role="new").values_list("sample", flat=True)
    assert len(set(twice)) == len(twice) == 70


def test_only_one_of_two_workers_gets_a_job(alice):
    rated(alice, 1)
    queued = jobs.queue_job(user=alice)
    assert jobs.claim_job(queued.public_id) is not None
    assert jobs.claim_job(queued.public_id) is None


def test_a_job_whose_lease_ran_out_is_taken_up_with_the_same_samples(alice):
    rated(alice, 3)
    dead = claimed_job(alice)
    down(make_turn(alice))
    TrainingJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    assert jobs.forgotten_jobs() == [dead]
    again = jobs.claim_job(dead.public_id)
    assert again is not None
    assert again.attempt == 2
    assert [s.pk for s in jobs.samples_of(again)] == [s.pk for s in jobs.samples_of(dead)]
    with pytest.raises(LeaseLost):
        jobs.record_step(dead, step=1, steps=4, values={"loss": 1.0}, phase="")
    with pytest.raises(LeaseLost):
        jobs.end_job(dead, state=JobState.FAILED)
    assert not jobs.renew(dead)
    assert jobs.renew(again)


def test_after_three_crashed_attempts_the_job_fails_and_its_samples_count_again(alice):
    rated(alice, 2)
    name = claimed_job(alice).public_id
    for attempt in (2, 3):
        TrainingJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
        job = jobs.claim_job(name)
        assert job is not None
        assert job.attempt == attempt
    TrainingJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    assert jobs.claim_job(name) is None
    assert TrainingJob.objects.get().state == JobState.FAILED
    assert states(alice) == ["ready", "ready"]


def test_a_worker_that_is_asked_to_stop_gives_its_job_back_without_a_crash(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    jobs.put_back(job)
    assert not jobs.renew(job)  # the worker that was stopped writes nothing more
    again = jobs.claim_job(job.public_id)
    assert again is not None
    assert (again.attempt, again.crashes) == (2, 0)
    assert len(jobs.samples_of(again)) == 1


def test_being_stopped_is_none_of_the_three_times_that_a_job_finds_no_database(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    for _ in range(3):
        jobs.put_back(job)
        job = jobs.claim_job(job.public_id)
    for _ in range(2):
        training_run._end_broken(job, OperationalError("the server closed the connection"))
        job = jobs.claim_job(job.public_id)
        assert job is not None
    training_run._end_broken(job, OperationalError("the server closed the connection"))
    job.refresh_from_db()
    assert job.state == JobState.FAILED


def test_learned_samples_say_in_which_version(alice):
    turns = rated(alice, 1)
    job = claimed_job(alice)
    assert receipt(turns[0])["state"] == "in_training"
    adapter = make_adapter(alice, 1)
    jobs.end_job(job, state=JobState.DEPLOYED, learned=adapter)
    said = receipt(turns[0])
    assert (said["state"], said["adapter"], said["job"]) == ("learned", adapter.name, job.public_id)
    assert said["text"] == "learned in v1"
    adapter.rolled_back_at = timezone.now()
    adapter.save()
    assert receipt(turns[0])["text"] == "learned in v1 (rolled back)"


@pytest.mark.parametrize("end", [JobState.FAILED, JobState.CANCELLED, JobState.REFUSED])
def test_after_a_job_that_made_nothing_samples_count_again_but_wait_for_a_newer_rating(alice, end):
    rated(alice, 8)
    jobs.end_job(claimed_job(alice), state=end, reason="because")
    assert states(alice) == ["ready"] * 8
    assert jobs.queue_batch(alice) is None
    down(make_turn(alice))
    assert jobs.queue_batch(alice) is not None


def test_a_thumb_that_waited_for_its_reason_while_a_job_ran_is_new(alice):
    waits = make_turn(alice)
    feedback.rate_turn(turn=waits, author=alice, changes={"value": -1})
    rated(alice, 8)
    job = claimed_job(alice)
    TrainingSample.objects.filter(turn=waits).update(settles_at=timezone.now() + timedelta(hours=1))
    jobs.end_job(job, state=JobState.REFUSED, reason="because")
    assert jobs.queue_batch(alice) is None
    TrainingSample.objects.filter(turn=waits).update(state=SampleState.READY)  # an hour later
    assert jobs.queue_batch(alice) is not None


def test_a_lease_that_was_handed_over_is_nobodys(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    jobs.held(job).update(lease_token="", lease_until=None)
    job.lease_token = ""
    assert not jobs.renew(job)


@pytest.mark.parametrize("begun", [True, False])
def test_who_cancels_is_not_trained_at_once_on_what_was_rated_meanwhile(alice, begun):
    rated(alice, 8)
    job = claimed_job(alice) if begun else jobs.queue_job(user=alice)
    rated(alice, 8)
    if begun:
        jobs.end_job(job, state=JobState.CANCELLED)
    else:
        jobs.cancel_job(job)
    assert jobs.queue_batch(alice) is None
    down(make_turn(alice))
    assert jobs.queue_batch(alice) is not None


def test_after_two_refusals_a_sample_is_not_used(alice):
    turns = rated(alice, 1)
    for _ in range(2):
        jobs.end_job(claimed_job(alice), state=JobState.REFUSED, reason="it repeats itself")
    assert (receipt(turns[0])["state"], receipt(turns[0])["drop_reason"]) == ("not_used", "refused")


def test_a_rating_changed_while_it_trains_makes_a_new_sample_and_the_old_one_is_marked(alice):
    turns = rated(alice, 1)
    job = claimed_job(alice)
    up(turns[0])
    assert states(alice) == ["claimed", "ready"]
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1))
    old, new = TrainingSample.objects.order_by("id")
    assert (old.state, old.replaced_by, new.state, new.reward) == ("trained", new, "ready", 1)


def test_a_rating_changed_while_a_job_fails_does_not_come_back_twice(alice):
    turns = rated(alice, 1)
    job = claimed_job(alice)
    up(turns[0])
    jobs.end_job(job, state=JobState.FAILED)
    assert states(alice) == ["superseded", "ready"]


def test_a_lock_is_looked_at_again_at_the_claim(alice):
    turns = rated(alice, 2)
    turns[0].session.locked = True
    turns[0].session.save()
    job = claimed_job(alice)
    assert [sample.turn for sample in jobs.samples_of(job)] == [turns[1]]
    assert receipt(turns[0])["state"] == "saved"


def test_refused_versions_do_not_make_a_reply_older(alice):
    for version in (1, 2, 3):
        make_adapter(alice, version, "refused", live_at=None)
    make_adapter(alice, 4, "live")
    turn = make_turn(alice, version=0)
    down(turn)
    assert [s.turn for s in jobs.samples_of(claimed_job(alice))] == [turn]


def test_versions_that_were_left_do_not_make_a_reply_older(alice):
    for version in (1, 2, 3, 4, 5):  # each rolled back, the sixth begins at the base model
        make_adapter(alice, version)
    live = make_adapter(alice, 6, "live")
    turn = make_turn(alice, version=0)
    down(turn)
    assert [s.turn for s in jobs.samples_of(claimed_job(alice))] == [turn]
    assert versions_behind(live, turn) == 1


@pytest.mark.parametrize("misfit", [{"base_hash": "another base"}, {"rank": 1024}])
def test_where_the_version_does_not_fit_the_model_base_replies_train(alice, misfit):
    parent = None
    for version in (1, 2, 3, 4, 5):
        state = "live" if version == 5 else "standby"
        parent = make_adapter(alice, version, state, parent=parent, **misfit)
    opened = chat.open_turn(
        session=sessions.open_session(user=alice),
        parent=None,
        messages=[Message(role="user", content="q")],
    )
    turn, policy = chat.claim_turn(opened.public_id, base_hash=base_hash())
    Turn.objects.filter(pk=turn.pk).update(
        state="complete", reply="r", prompt_ids=[1], response_ids=[2], logprobs=[-1.0]
    )
    turn.refresh_from_db()
    status = agent_status(alice)
    assert (policy, turn.fallback) == (BASE, "")
    assert (status["version"], status["stands_aside"]) == (0, 5)
    down(turn)
    job = claimed_job(alice)
    assert (job.parent, [s.turn for s in jobs.samples_of(job)]) == (None, [turn])


def test_ratings_given_while_a_job_ran_count_as_newer(alice):
    rated(alice, 8)
    job = claimed_job(alice)
    rated(alice, 8)
    jobs.end_job(job, state=JobState.REFUSED, reason="because")
    assert jobs.queue_batch(alice) is not None


def test_steps_count_on_through_attempts_and_unmeasured_values_are_absent(alice):
    rated(alice, 1)
    job = claimed_job(alice)
    jobs.record_step(job, step=1, steps=4, values={"loss": 1.0, "kl": None}, phase="p")
    TrainingJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    again = jobs.claim_job(job.public_id)
    assert again is not None
    jobs.record_step(again, step=1, steps=4, values={"loss": 0.5}, phase="p")
    points = metric_points(again)
    assert [(p["step"], p["attempt"], p["loss"]) for p in points] == [(1, 1, 1.0), (2, 2, 0.5)]
    assert "kl" not in points[0]
    assert [p["step"] for p in metric_points(again, after=1)] == [2]


def test_cancelling_a_queued_job_ends_it_and_a_running_one_is_asked(alice):
    rated(alice, 1)
    queued = jobs.queue_job(user=alice)
    assert jobs.cancel_job(queued)
    queued.refresh_from_db()
    assert queued.state == JobState.CANCELLED
    running = claimed_job(alice)
    assert jobs.cancel_job(running)
    assert jobs.cancel_wanted(running)
    jobs.end_job(running, state=JobState.CANCELLED)
    assert not jobs.cancel_job(running)
    assert states(alice) == ["ready"]


def test_a_queued_job_says_what_it_waits_for(alice):
    rated(alice, 1)
    job = jobs.queue_job(user=alice)
    assert job_json(job)["waits_for"] == "a training worker to start"
    health.beat("worker-gpu@a", "worker-gpu", sentences.LOADS)
    assert job_json(job)["waits_for"] == "the training worker: loading the model"
    health.beat("worker-gpu@b", "worker-gpu", sentences.IDLE)
    assert job_json(job)["waits_for"] == "the training worker to take it"


def test_samples_dropped_by_the_trainer_keep_their_reason_whatever_becomes_of_the_job(alice):
    turns = rated(alice, 2)
    job = claimed_job(alice)
    first = jobs.samples_of(job)[0]
    finishing.drop_samples(job, {first.pk: "hint_no_effect"})
    jobs.end_job(job, state=JobState.FAILED)
    assert receipt(turns[0])["drop_reason"] == "hint_no_effect"
    assert states(alice) == ["dropped", "ready"]


def test_each_attempt_says_anew_whose_words_are_not_heard(alice):
    (earlier,) = rated(alice, 1)
    earlier.samples.update(state=SampleState.TRAINED, by_thumb=True)
    turns = rated(alice, 2)
    job = claimed_job(alice)
    JobSample.objects.create(job=job, sample=earlier.samples.get(), role="replay")
    first, second = (turn.samples.get().pk for turn in turns)
    TrainingSample.objects.filter(pk=first).update(token_effects=[0.1])  # it was heard before

    def left() -> set[int]:
        return set(TrainingSample.objects.filter(by_thumb=True).values_list("pk", flat=True))

    old = earlier.samples.get().pk
    finishing.note_unheard(job, {old, first}, distils=True)
    assert left() == {old, first}
    assert TrainingSample.objects.get(pk=first).token_effects is None
    finishing.note_unheard(job, {second}, distils=True)
    assert left() == {old, second}
    assert [event.text.split(": ")[1] for event in job.events.filter(kind="unheard")] == ["1"] * 2
    finishing.note_unheard(job, (), distils=True)
    assert left() == {old}  # the version that learned it had not heard it
    assert job.events.filter(kind="unheard").count() == 2
    jobs.end_job(job, state=JobState.CANCELLED)
    with pytest.raises(LeaseLost):
        finishing.note_unheard(job, {first}, distils=True)


def test_the_sweep_asks_about_users_with_ready_samples_and_no_active_job(alice, bob):
    rated(alice, 1)
    rated(bob, 1)
    claimed_job(bob)
    down(make_turn(bob))
    assert jobs.users_with_batches() == [alice]


def test_held_back_samples_are_not_claimed(alice):
    rated(alice, 2)
    TrainingSample.objects.filter(pk=TrainingSample.objects.order_by("id")[0].pk).update(
        held_back=True
    )
    job = claimed_job(alice)
    assert len(jobs.samples_of(job)) == 1
    assert len(held_back_samples(alice)) == 1
    assert TrainingSample.objects.filter(state=SampleState.READY).count() == 1


@pytest.mark.parametrize(("method", "alone"), [("combine", False), ("kto", True), ("binary", True)])
def test_words_that_the_method_leaves_aside_are_learned_by_thumb(alice, method, alone):
    (told,) = rated(alice, 1)
    up(liked := make_turn(alice))
    job = claimed_job(alice, method=method)
    finishing.note_unheard(job, (), distils=not alone)
    assert [turn.samples.get().by_thumb for turn in (told, liked)] == [alone, False]
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    assert receipt(told)["text"] == "learned in v1" + " by its thumb alone" * alone
    (note,) = notes_of(alice)
    assert (note.by_thumb, note.by_method) == (alone, alone)
