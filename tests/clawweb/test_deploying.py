"""A version on its way to live: what lets it go there, what stops it, what makes it wait."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.db import InterfaceError, OperationalError

from clawweb import deployment
from clawweb import engine as rooms
from clawweb.config import config
from clawweb.models import AdapterState, AdapterVersion, Consent, JobState, TrainingJob, User
from clawweb.selectors.agent import refusals
from clawweb.selectors.learning import live_adapter, policy_of, receipt
from clawweb.services import jobs, serving, versions
from clawweb.services.errors import CannotPromote
from rollouts.engines.scripted import ScriptedEngine
from rollouts.errors import BadReply, EngineUnavailable, UnknownAdapter
from tests.factories import hand_over, handed_over, make_adapter, rated, registered

pytestmark = [pytest.mark.db, pytest.mark.django_db]


async def no_answer(*_, **__):
    raise EngineUnavailable("no answer")


def test_deploying_moves_live_and_the_samples_are_learned(alice, engine):
    turns = rated(alice, 1)
    job, adapter = registered(alice)
    hand_over(job)
    deployment.deploy(job.public_id)
    assert live_adapter(alice) == adapter
    assert TrainingJob.objects.get().state == JobState.DEPLOYED
    assert receipt(turns[0])["text"] == "learned in v1"


def test_deploying_twice_does_nothing_the_second_time(alice, engine):
    job, adapter = handed_over(alice)
    deployment.deploy(job.public_id)
    deployment.deploy(job.public_id)
    assert live_adapter(alice) == adapter
    assert adapter.live_before == []


def test_a_version_that_the_server_sees_otherwise_than_the_trainer_does_not_go_live(alice, engine):
    make_adapter(alice, 1, AdapterState.LIVE)
    turns = rated(alice, 1)
    job, adapter = registered(alice, differs=False)
    hand_over(job)
    deployment.deploy(job.public_id)
    adapter.refresh_from_db()
    job.refresh_from_db()
    assert live_adapter(alice).version == 1
    assert (adapter.state, job.state) == (AdapterState.REFUSED, JobState.FAILED)
    assert "disagree" in job.reason
    assert receipt(turns[0])["state"] == "counted"


def test_a_version_whose_files_are_gone_does_not_go_live(alice, engine):
    rated(alice, 1)
    job, adapter = registered(alice)
    shutil.rmtree(config().var / adapter.path)
    hand_over(job)
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    assert (live_adapter(alice), job.state) == (None, JobState.FAILED)


@pytest.mark.parametrize("harm", ["changed", "gone"])
def test_weights_that_are_not_those_of_the_gate_reach_no_server(alice, engine, harm):
    """Not when they go live, not after a restart of the server, not by hand."""
    rated(alice, 8)
    job, adapter = registered(alice)
    weights = config().var / adapter.path / serving.WEIGHTS
    hand_over(job)
    if harm == "changed":
        weights.write_bytes(weights.read_bytes() + b"\0")
    else:
        weights.unlink()
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert "its weights" in job.reason
    AdapterVersion.objects.filter(pk=adapter.pk).update(state=AdapterState.LIVE)
    serving.reconcile()
    assert async_to_sync(engine.loaded)() == {}
    with pytest.raises(CannotPromote, match="its weights"):
        serving.serve(adapter)


def test_what_its_user_chose_meanwhile_is_not_undone_by_a_job(alice, engine):
    make_adapter(alice, 1, AdapterState.LIVE)
    turns = rated(alice, 1)
    job, adapter = registered(alice)
    hand_over(job)
    versions.rollback(alice)
    deployment.deploy(job.public_id)
    adapter.refresh_from_db()
    job.refresh_from_db()
    assert live_adapter(alice) is None
    assert AdapterVersion.objects.get(version=1).rolled_back_at is not None
    assert (adapter.state, job.state) == (AdapterState.REFUSED, JobState.CANCELLED)
    assert "Another version was made the one that answers" in job.reason
    assert receipt(turns[0])["state"] == "counted"


def test_who_will_not_train_any_more_gets_no_version(alice, engine):
    turns = rated(alice, 1)
    job, adapter = registered(alice)
    hand_over(job)
    User.objects.filter(pk=alice.pk).update(consent=Consent.KEEP)
    deployment.deploy(job.public_id)
    adapter.refresh_from_db()
    job.refresh_from_db()
    assert live_adapter(alice) is None
    assert (adapter.state, job.state) == (AdapterState.REFUSED, JobState.CANCELLED)
    assert receipt(turns[0])["drop_reason"] == "consent"


@pytest.mark.parametrize("change", [{"base_hash": "another"}, {"rank": 16}])
def test_a_version_that_cannot_be_trained_on_is_followed_by_one_from_base(alice, engine, change):
    old = make_adapter(alice, 1, AdapterState.LIVE, **change)
    rated(alice, 1)
    job, adapter = registered(alice)
    assert job.parent is None
    hand_over(job)
    deployment.deploy(job.public_id)
    assert live_adapter(alice) == adapter
    assert live_adapter(alice).live_before == [old.pk]


@pytest.mark.parametrize("error", [InterfaceError, OperationalError])
def test_a_database_that_is_away_for_a_while_refuses_nothing(alice, engine, monkeypatch, error):
    def away(*_, **__):
        raise error("the server closed the connection")

    job, adapter = handed_over(alice)
    with monkeypatch.context() as patch:
        patch.setattr(versions, "go_live", away)
        deployment.deploy(job.public_id)
    adapter.refresh_from_db()
    assert adapter.state == AdapterState.CANDIDATE
    assert versions.jobs_to_deploy() == [job]
    deployment.deploy(job.public_id)
    assert live_adapter(alice) == adapter


def test_an_engine_that_is_down_leaves_the_job_waiting(alice, engine, monkeypatch):
    monkeypatch.setattr(engine, "load", no_answer)
    job, adapter = handed_over(alice)
    for _ in range(deployment.BAD_REPLIES + 1):  # however long: it is no fault of the version
        deployment.deploy(job.public_id)
    job.refresh_from_db()
    adapter.refresh_from_db()
    assert (job.state, adapter.state) == (JobState.DEPLOYING, AdapterState.CANDIDATE)
    assert versions.jobs_to_deploy() == [job]
    monkeypatch.undo()


def test_a_server_that_restarts_between_load_and_probe_refuses_nothing(alice, engine, monkeypatch):
    async def forget(*_, **__):
        raise UnknownAdapter("who?")

    monkeypatch.setattr(engine, "score", forget)
    job, adapter = handed_over(alice)
    deployment.deploy(job.public_id)
    adapter.refresh_from_db()
    assert adapter.state == AdapterState.CANDIDATE
    assert versions.jobs_to_deploy() == [job]


def test_a_server_that_answers_otherwise_than_it_must_is_given_up(alice, engine, monkeypatch):
    async def without_logprobs(*_, **__):
        raise BadReply("a scored token has no log-prob")

    monkeypatch.setattr(engine, "score", without_logprobs)
    turns = rated(alice, 1)
    job, adapter = registered(alice)
    hand_over(job)
    for _ in range(deployment.BAD_REPLIES - 1):
        deployment.deploy(job.public_id)
        assert versions.jobs_to_deploy() == [job]
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    adapter.refresh_from_db()
    assert (job.state, adapter.state) == (JobState.FAILED, AdapterState.REFUSED)
    assert "no log-prob" in job.reason
    assert receipt(turns[0])["state"] == "counted"


def test_a_job_that_waits_for_the_server_can_be_cancelled(alice, engine, monkeypatch):
    monkeypatch.setattr(engine, "load", no_answer)
    job, adapter = handed_over(alice)
    deployment.deploy(job.public_id)
    assert jobs.cancel_job(job)
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    adapter.refresh_from_db()
    assert (job.state, adapter.state) == (JobState.CANCELLED, AdapterState.REFUSED)
    assert jobs.queue_job(user=alice)


def test_what_passed_its_tests_and_was_not_wanted_is_no_failure_of_them(alice, engine):
    rated(alice, 1)
    refused, _ = registered(alice, accepted=False)
    jobs.end_job(refused, state=JobState.REFUSED, reason="it repeats itself")
    job, adapter = handed_over(alice)
    assert jobs.cancel_job(job)
    deployment.deploy(job.public_id)
    adapter.refresh_from_db()
    assert adapter.state == AdapterState.REFUSED
    assert refusals(alice) == 1


def test_a_version_that_is_overtaken_at_the_last_moment_says_so(alice, engine, monkeypatch):
    def moved(*_, **__):
        raise CannotPromote("Another version went live in the meantime. Look again.")

    monkeypatch.setattr(versions, "go_live", moved)
    job, _ = handed_over(alice)
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert "Another version was made the one that answers" in job.reason


def test_a_broken_probe_file_ends_the_job_instead_of_trying_for_ever(alice, engine):
    rated(alice, 1)
    job, adapter = registered(alice)
    Path(f"{config().var / adapter.path}.probe.json").write_text("{}")
    hand_over(job)
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    assert job.state == JobState.FAILED


@pytest.mark.parametrize(("consent", "count"), [(Consent.TRAIN, 3), (Consent.KEEP, 0)])
def test_votes_are_in_the_baseline_once_their_version_answers(alice, engine, consent, count):
    rated(alice, 3)
    job, _ = registered(alice)
    jobs.advance(job, timings={"baseline": {"mean": -0.5, "variance": 0.25, "count": 3}})
    hand_over(job)
    User.objects.filter(pk=alice.pk).update(consent=consent)
    deployment.deploy(job.public_id)
    alice.refresh_from_db()
    known = (alice.reward_mean, alice.reward_variance, alice.reward_count)
    assert known == ((-0.5, 0.25, 3) if count else (0.0, 1.0, 0))


def test_a_job_that_was_cancelled_after_its_last_look_does_not_go_live(alice, engine):
    rated(alice, 1)
    job, child = registered(alice)
    assert jobs.cancel_job(job)
    hand_over(job)
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    child.refresh_from_db()
    assert (job.state, child.state) == (JobState.CANCELLED, AdapterState.REFUSED)
    assert live_adapter(alice) is None


def test_a_deployed_job_says_how_long_it_took_beside_what_training_took(alice, engine):
    rated(alice, 1)
    job, _ = registered(alice)
    jobs.advance(job, timings={"train": 7.0})
    hand_over(job)
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    assert set(job.timings) == {"train", "deploy", "probe"}
    assert job.timings["train"] == 7.0


@pytest.mark.parametrize("wrong", [BadReply("no log-prob"), ValueError("no"), None])
def test_who_lost_a_job_to_another_worker_goes_home_quietly(
    alice, engine, monkeypatch, caplog, wrong
):
    """Whatever it found, the other one will see for itself."""

    def slowly(_):
        TrainingJob.objects.update(lease_token="another worker's")
        if wrong:
            raise wrong
        return {"disagreement": 0.0, "difference": 1.0}

    monkeypatch.setattr(serving, "load_and_probe", slowly)
    job, adapter = handed_over(alice)
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    adapter.refresh_from_db()
    assert (job.state, job.lease_token) == (JobState.DEPLOYING, "another worker's")
    assert adapter.state == AdapterState.CANDIDATE
    assert ("cannot be served" in caplog.text) == isinstance(wrong, ValueError)


def test_a_job_that_is_cancelled_while_its_version_is_loaded_does_not_go_live(
    alice, engine, monkeypatch
):
    job, _ = handed_over(alice)

    def slowly(_):
        assert f"lease-{job.pk}" in {thread.name for thread in threading.enumerate()}
        jobs.cancel_job(job)
        return {"disagreement": 0.0, "difference": 1.0}

    monkeypatch.setattr(serving, "load_and_probe", slowly)
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    assert (live_adapter(alice), job.state) == (None, JobState.CANCELLED)


def test_a_job_does_not_end_without_its_version(alice, engine, monkeypatch):
    """The database goes away between the two: both are tried again."""

    def away(*_):
        raise OperationalError("the server closed the connection")

    job, _ = handed_over(alice, differs=False)
    monkeypatch.setattr(versions, "refuse", away)
    with pytest.raises(OperationalError):
        deployment.deploy(job.public_id)
    job.refresh_from_db()
    assert job.state == JobState.DEPLOYING


# Several servers


class Server(ScriptedEngine):
    """One that may read adapters otherwise than the trainer."""

    misreads = False

    async def score(self, prompt_ids, response_ids, *, policy):
        found = await super().score(prompt_ids, response_ids, policy=policy)
        return [each - 1.0 for each in found] if self.misreads and policy.adapter else found


@pytest.fixture
def servers(engine, setting, monkeypatch):
    """Two servers of the model."""
    at = {"http://one": Server(), "http://two": Server()}
    setting(vllm_url=",".join(at))
    for cached in (rooms.get_replicas, rooms.get_engine):
        cached.cache_clear()
    monkeypatch.setattr(rooms, "build_engine", lambda settings: at[settings.url])
    return list(at.values())


def holding(servers):
    return [set(async_to_sync(server.loaded)()) for server in servers]


def test_a_version_is_on_every_server_and_proven_there_before_it_is_live(alice, servers):
    job, adapter = handed_over(alice)
    deployment.deploy(job.public_id)
    assert live_adapter(alice) == adapter
    assert holding(servers) == [{adapter.name}, {adapter.name}]


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_version_that_one_of_the_servers_misreads_does_not_go_live(alice, servers, wrong):
    servers[wrong].misreads = True
    job, adapter = handed_over(alice)
    deployment.deploy(job.public_id)
    job.refresh_from_db()
    assert (live_adapter(alice), job.state) == (None, JobState.FAILED)
    assert "disagree" in job.reason
    assert adapter.name not in holding(servers)[wrong]


def test_a_server_that_comes_back_keeps_only_what_is_proven_on_it(alice, bob, servers):
    hers, his = (make_adapter(user, 1, AdapterState.LIVE) for user in (alice, bob))
    async_to_sync(servers[0].load)(policy_of(hers))
    servers[1].misreads = True
    serving.reconcile()
    assert holding(servers) == [{hers.name, his.name}, set()]
    servers[1].misreads = False
    serving.reconcile()
    assert holding(servers) == [{hers.name, his.name}] * 2


@pytest.mark.parametrize("probe", ["", "{}", "[]", None])
def test_a_version_without_a_probe_keeps_nobody_elses_away(alice, bob, engine, probe):
    hers, his = (make_adapter(user, 1, AdapterState.LIVE) for user in (alice, bob))
    path = Path(f"{config().var / hers.path}.probe.json")
    path.unlink() if probe is None else path.write_text(probe)
    serving.reconcile()
    assert holding([engine]) == [{his.name}]
