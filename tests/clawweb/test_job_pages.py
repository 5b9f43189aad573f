"""What the pages of jobs say: how long one will take, and what to do about one that led nowhere."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clawweb import load, sentences
from clawweb.models import (
    Consent,
    Event,
    Heartbeat,
    JobState,
    SampleState,
    StepMetric,
    TrainingJob,
    TrainingSample,
    User,
)
from clawweb.selectors.console import uses_of_samples
from clawweb.selectors.learning import adapter_json, adapters_of, job_json, jobs_of, seconds_left
from clawweb.services import finishing, health, jobs
from clawweb.services.errors import NothingToKeep
from clawweb.training_run import _train_config
from tests.factories import claimed_job, make_adapter, rated

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


def page_of(client: Client, user: User, path: str) -> str:
    client.force_login(user)
    return client.get(path).content.decode()


def test_a_running_job_says_how_long_it_will_take(client: Client, alice: User) -> None:
    for seconds in (60, 100, 900):
        TrainingJob.objects.create(
            user=alice, state=JobState.DEPLOYED, timings={"train": seconds - 10, "gate": 10}
        )
    job = TrainingJob.objects.create(
        user=alice,
        state=JobState.TRAINING,
        started_at=timezone.now() - timedelta(seconds=40),
    )
    assert seconds_left(job) == pytest.approx(60, abs=2)
    assert "about a minute left" in page_of(client, alice, f"/jobs/{job.public_id}/")
    for elapsed, words in ((85, "almost done"), (130, "takes longer than others did")):
        job.started_at = timezone.now() - timedelta(seconds=elapsed)
        job.save()
        assert words in page_of(client, alice, f"/jobs/{job.public_id}/")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (48, "48 s"), (650, "10 min 50 s"), (3900, "1 h 5 min")]
)
def test_a_job_says_how_long_it_took(
    client: Client, alice: User, seconds: float, words: str
) -> None:
    now = timezone.now()
    job = TrainingJob.objects.create(
        user=alice,
        state="failed",
        started_at=now - timedelta(seconds=seconds),
        finished_at=now,
    )
    for path in ("/jobs/", f"/jobs/{job.public_id}/"):
        assert f">{words}</" in page_of(client, alice, path)


def test_nobody_says_how_long_the_first_job_will_take(alice: User) -> None:
    job = TrainingJob(user=alice, state=JobState.TRAINING, started_at=timezone.now())
    assert seconds_left(job) is None


@pytest.mark.parametrize("state", ["refused", "no_signal", "cancelled", "failed"])
def test_a_job_that_led_nowhere_says_what_to_do(client: Client, alice: User, state: str) -> None:
    job = TrainingJob.objects.create(user=alice, state=state, method="kto")
    html = page_of(client, alice, f"/jobs/{job.public_id}/")
    assert "Your agent is unchanged" in html
    assert 'id="retry" name="method" value="kto"' in html
    assert "base → –" in html  # nothing is still to come


@pytest.mark.parametrize("state", ["refused", "cancelled", "failed"])
def test_a_job_promises_no_rating_that_is_not_used_any_more(
    client: Client, alice: User, state: str
) -> None:
    promise = "the ratings count again"
    rated(alice, 2)
    for times in (1, 2):
        job = claimed_job(alice)
        jobs.end_job(job, state=JobState(state))
        html = page_of(client, alice, f"/jobs/{job.public_id}/")
        is_used = state != "refused" or times == 1  # two versions that learned it were refused
        assert (promise in html, "not used any more" in html) == (is_used, not is_used)


def test_a_job_that_ended_as_consent_was_withdrawn_promises_nothing(
    client: Client, alice: User
) -> None:
    rated(alice, 1)
    queued = jobs.queue_job(user=alice)
    alice.consent = Consent.KEEP
    alice.save()
    jobs.withdraw_consent(alice)
    html = page_of(client, alice, f"/jobs/{queued.public_id}/")
    assert "cancelled before it started" in html
    assert "not used any more" in html
    assert "the ratings count again" not in html


@pytest.mark.parametrize("language", ["en", "de"])
def test_training_again_asks_for_what_the_job_was_given(
    client: Client, alice: User, language: str
) -> None:
    rated(alice, 1)
    chosen = {"estimator": "token", "reward_weight": 0.5, "topk": 8, "kto_beta": 0.1}
    job = claimed_job(alice, chosen=chosen)
    jobs.advance(job, config=asdict(_train_config(job)))  # as training leaves it: every setting
    jobs.end_job(job, state=JobState.FAILED, reason="because")
    client.cookies["django_language"] = language
    html = page_of(client, alice, f"/jobs/{job.public_id}/")
    assert f'<html lang="{language}"' in html
    fields = re.findall(
        r'<input type="(\w+)" hidden id="([\w-]+)" name="(\S+)" value="(\S+)">', html
    )
    assert fields == [  # what is as usual is not asked for
        ("hidden", "retry-estimator", "settings.estimator", "token"),
        ("number", "retry-topk", "settings.topk", "8"),
        ("number", "retry-reward_weight", "settings.reward_weight", "0.5"),
    ]
    assert 'data-with="retry retry-estimator retry-topk retry-reward_weight"' in html


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("It was started 3 times and its worker died each time.", "ran out of memory"),
        ("Training failed: step 2: loss nan, gradient norm nan", "another method may do"),
        ("Training broke: KeyError: 'x'", "log of worker-gpu"),
    ],
)
def test_what_failed_decides_what_to_do(
    client: Client, alice: User, reason: str, words: str
) -> None:
    job = TrainingJob.objects.create(user=alice, state=JobState.FAILED, reason=reason)
    assert words in page_of(client, alice, f"/jobs/{job.public_id}/")


def test_after_a_rollback_no_job_claims_that_its_version_answers(
    client: Client, alice: User
) -> None:
    back = make_adapter(alice, 1, "standby", rolled_back_at=timezone.now())
    job = TrainingJob.objects.create(
        user=alice, state=JobState.DEPLOYED, child=back, reason="Version 1 answers now."
    )
    for path in ("/jobs/", f"/jobs/{job.public_id}/"):
        html = page_of(client, alice, path)
        assert "Version 1 went live." in html
        assert "Version 1 answers now." not in html
        assert '<span class="quiet undone">rolled back</span>' in html


# The console


def jobs_shown(client: Client, user: User, query: str = "") -> list[str]:
    return re.findall(r'<tr data-job="([^"]+)"', page_of(client, user, f"/jobs/?{query}"))


def test_jobs_are_chosen_by_state_and_method(client: Client, alice: User, bob: User) -> None:
    live = TrainingJob.objects.create(user=alice, state=JobState.DEPLOYED, method="kto")
    failed = TrainingJob.objects.create(user=alice, state=JobState.FAILED)
    training = TrainingJob.objects.create(user=alice, state=JobState.TRAINING)
    TrainingJob.objects.create(user=bob, state=JobState.FAILED)
    assert jobs_shown(client, alice, "state=failed") == [failed.public_id]
    assert jobs_shown(client, alice, "state=running") == [training.public_id]
    assert jobs_shown(client, alice, "method=kto") == [live.public_id]
    assert jobs_shown(client, alice, "method=kto&state=failed") == []
    assert len(jobs_shown(client, alice, "state=nonsense&method=x")) == 3
    assert "No such job" in page_of(client, alice, "/jobs/?state=refused")


def test_the_next_page_keeps_the_choice(client: Client, alice: User) -> None:
    for _ in range(26):
        TrainingJob.objects.create(user=alice, state=JobState.FAILED)
    page = page_of(client, alice, "/jobs/?state=failed")
    assert 'href="?state=failed&amp;page=2"' in page
    assert "/parts/jobs/?state=failed" in page


def test_a_job_shows_its_loss_as_a_small_line(client: Client, alice: User) -> None:
    job = TrainingJob.objects.create(user=alice, state=JobState.DEPLOYED)
    assert "<polyline" not in page_of(client, alice, "/jobs/")
    for step, loss in enumerate([3.0, 1.0, 2.0]):
        StepMetric.objects.create(job=job, attempt=1, step=step, values={"loss": loss})
    assert '<polyline points="1.0,1.0 40.0,19.0 79.0,10.0"/>' in page_of(client, alice, "/jobs/")


def test_a_job_without_a_heartbeat_stands_out(client: Client, alice: User) -> None:
    rated(alice, 1)
    claimed_job(alice)
    assert "stale" not in page_of(client, alice, "/jobs/")
    TrainingJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    page = page_of(client, alice, "/jobs/")
    assert 'class="stale"' in page
    assert "which has not been heard of" in page


def test_the_machinery_tells_who_waits_and_what_each_worker_takes(
    client: Client, alice: User, bob: User
) -> None:
    rated(bob, 1)
    jobs.queue_job(user=bob)
    TrainingJob.objects.update(created_at=timezone.now() - timedelta(seconds=75))
    gpus = [{"use": 0.5, "used": 2**30, "total": 2**31}]
    health.beat("worker-gpu@a", "worker-gpu", "idle", {"cpu": 1.25, "rss": 3 * 2**20, "gpus": gpus})
    health.beat("generator@a", "generator", sentences.WRITES % {"n": 2})
    page = page_of(client, alice, "/parts/system/")
    assert re.search(r"Waiting jobs: <strong>1</strong>.*the oldest for 7\d s", page, re.DOTALL)
    for words in (
        "1.25 processor cores",
        "3.0\xa0MB of memory",
        'value="0.5"',
        "2.0\xa0GB",
        "written: 2",
    ):
        assert words in page
    assert page.count("processor cores") == 1  # the generator measured nothing
    assert "of at most 32 versions loaded" in page
    assert Heartbeat.objects.get(kind="generator").load == {}


def test_a_process_reads_its_own_load() -> None:
    meter = load.Meter()
    first = meter.read()
    assert "cpu" not in first  # there is nothing yet to compare with
    assert first["rss"] > 20 * load.MIB
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert 0.05 < meter.read()["cpu"] <= 1.5


def test_a_card_says_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load.read_gpu("40, 1024, 2048") == {"use": 0.4, "used": 2.0**30, "total": 2.0**31}
    assert load.read_gpu("[N/A], 1024, [N/A]") == {"used": 2.0**30}
    monkeypatch.setattr(load.shutil, "which", lambda _: None)
    assert load.gpus() == []

    def hangs(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 3)

    monkeypatch.setattr(load.shutil, "which", lambda _: "/bin/nvidia-smi")
    monkeypatch.setattr(load.subprocess, "run", hangs)
    assert load.gpus() == []


# Stopping


def test_a_job_is_stopped_and_kept_only_while_it_trains(
    client: Client, alice: User, bob: User
) -> None:
    rated(alice, 1)
    queued = jobs.queue_job(user=alice)
    with pytest.raises(NothingToKeep):
        finishing.finish_job(queued)
    job = jobs.claim_job(queued.public_id)
    assert job is not None
    jobs.advance(job, state=JobState.TRAINING)
    client.force_login(bob)
    assert client.post(f"/api/jobs/{job.public_id}/finish").status_code == 404
    assert not finishing.finish_wanted(job)
    client.force_login(alice)
    assert "data-keeps" in client.get("/jobs/").content.decode()
    assert client.post(f"/api/jobs/{job.public_id}/finish").status_code == 202
    assert finishing.finish_wanted(job)
    page = client.get("/jobs/").content.decode()
    assert "stops after this step" in page
    assert "data-keeps" not in page
    assert "data-stop" in page  # it can still be thrown away
    jobs.advance(job, state=JobState.GATING)
    assert client.post(f"/api/jobs/{job.public_id}/finish").status_code == 409


def test_what_an_early_end_left_out_counts_again(alice: User) -> None:
    rated(alice, 3)
    job = claimed_job(alice)
    first, second, third = TrainingSample.objects.order_by("pk")
    finishing.give_back_untrained(job, [first.pk, second.pk])
    states = TrainingSample.objects.order_by("pk").values_list("state", "job")
    assert list(states) == [
        (SampleState.CLAIMED, job.pk),
        (SampleState.CLAIMED, job.pk),
        (SampleState.READY, None),
    ]
    assert not job.job_samples.filter(sample=third).exists()
    assert Event.objects.filter(job=job, kind="finishing").count() == 1
    finishing.give_back_untrained(job, [first.pk, second.pk])  # nothing is left out twice
    assert Event.objects.filter(job=job, kind="finishing").count() == 1


def test_no_other_training_is_started_beside_one(client: Client, alice: User) -> None:
    button = re.compile(r'<button[^>]*data-with="method [^>]*>')
    (free,) = button.findall(page_of(client, alice, "/jobs/"))
    TrainingJob.objects.create(user=alice, state=JobState.QUEUED)
    (busy,) = button.findall(page_of(client, alice, "/jobs/"))
    assert (" disabled " in free, " disabled " in busy) == (False, True)


def test_each_phase_tells_its_own_progress(client: Client, alice: User) -> None:
    rated(alice, 1)
    job = claimed_job(alice)
    jobs.advance(job, state=JobState.TRAINING, step=2, steps=8)
    for path in ("/jobs/", f"/jobs/{job.public_id}/"):
        assert "step 2 of 8" in page_of(client, alice, path).split('id="other-method"')[0]
    finishing.note_early_end(job, "steps")
    assert not Event.objects.filter(kind="ended_early").exists()
    finishing.note_early_end(job, "learned")
    jobs.advance(job, state=JobState.GATING)
    why = "Training ended early: after step 2 of 8: it answers by now as if it had been told"
    for path in ("/jobs/", f"/jobs/{job.public_id}/"):
        page = page_of(client, alice, path)
        assert why in page
        assert "<progress max" not in page
    jobs.end_job(job, state=JobState.DEPLOYED, reason="Version 1 went live.")
    assert why in page_of(client, alice, f"/jobs/{job.public_id}/")


def test_a_job_that_made_all_its_steps_did_not_end_early(client: Client, alice: User) -> None:
    rated(alice, 1)
    job = claimed_job(alice)
    jobs.advance(job, state=JobState.GATING, step=8, steps=8)
    finishing.note_early_end(job, "learned")
    page = page_of(client, alice, "/jobs/")
    assert "trained in 8 steps" in page
    assert "ended early" not in page


def test_an_admin_sees_how_many_ratings_a_job_used_and_why_not(
    client: Client, admin: User, alice: User
) -> None:
    rated(alice, 3)
    job = claimed_job(alice)
    dropped = TrainingSample.objects.first()
    assert dropped is not None
    finishing.drop_samples(job, {dropped.pk: "hint_no_effect"})
    jobs.note_reanswers(job, [dropped.pk])
    uses = [(row["count"], row["is_left"]) for row in uses_of_samples(job)]
    assert uses == [(2, False), (1, False), (1, True)]
    page = page_of(client, admin, f"/jobs/{job.public_id}/")
    assert "not used: What was said asks for nothing" in page
    assert "question" not in page.split('id="samples-h"')[1].split("</section>")[0]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (JobState.TRAINING, "being learned from"),
        (JobState.DEPLOYED, "learned from"),
        (JobState.CANCELLED, "was to be learned from"),
        (JobState.FAILED, "was to be learned from"),
    ],
)
def test_a_job_says_of_what_it_learned_only_when_it_did(
    alice: User, state: JobState, words: str
) -> None:
    rated(alice, 1)
    job = claimed_job(alice)
    TrainingJob.objects.filter(pk=job.pk).update(state=state)
    job.refresh_from_db()
    assert [row["words"] for row in uses_of_samples(job)] == [words]


def test_the_list_of_versions_asks_the_database_no_more_often_for_more_of_them(
    alice: User, django_assert_max_num_queries: Any
) -> None:
    for version in range(1, 9):
        make_adapter(alice, version, "standby")
    with django_assert_max_num_queries(2):
        assert len([adapter_json(row) for row in adapters_of(alice)]) == 8


def test_the_list_of_jobs_asks_the_database_no_more_often_for_more_of_them(
    alice: User, django_assert_max_num_queries: Any
) -> None:
    TrainingJob.objects.bulk_create(TrainingJob(user=alice, state="failed") for _ in range(8))
    with django_assert_max_num_queries(1):
        rows = [job_json(row) for row in jobs_of(alice).order_by("pk")]
    assert [(row["number"], row["samples"]) for row in rows] == [(n, 0) for n in range(1, 9)]
