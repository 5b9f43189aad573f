"""A claimed job from rows to a gated version, with the real trainer on a tiny model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError

from clawweb import deployment, training_run
from clawweb.config import config
from clawweb.engine import tokenizer_controls
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    JobSample,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.learning import live_adapter, metric_points, receipt
from clawweb.services import feedback, jobs
from clawweb.services.errors import LeaseLost
from rollouts.rendering import defuse
from rollouts.types import Message
from tests.factories import down, make_adapter, make_turn, up
from tests.loop.person import wait_for
from training.config import TrainConfig
from training.gate import measure

# The lease is renewed from a thread of its own: the rows must be there for it.
pytestmark = pytest.mark.django_db(transaction=True, serialized_rollback=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens and few prompts; everything else is as it is in the worker."""
    settings = TrainConfig(
        lr=5e-3, rated_tokens=24, reanswer_tokens=8, gate_tokens=8, small_talk_nats=0.0
    )
    monkeypatch.setattr(training_run, "_train_config", lambda job: settings)
    monkeypatch.setattr(training_run, "neutral_prompts", lambda: ("hello",))
    monkeypatch.setattr("clawweb.events._send", lambda *_: None)


def sampled(user: User, number: int, **values: Any) -> Turn:
    """A turn whose ids are the tiny model's own for its texts."""
    base = training_run.loaded_base()
    text, reply = f"question {number}", f"a long answer to number {number}"
    ids = list(base.encode(reply))
    return make_turn(
        user,
        text,
        reply=reply,
        prompt_ids=list(base.render([Message(role="user", content=text)])),
        response_ids=ids,
        logprobs=[-1.0] * len(ids),
        **values,
    )


def job_of(user: User, ratings: int = 3) -> TrainingJob:
    for number in range(ratings):
        down(sampled(user, number))
    return jobs.queue_job(user=user)


def test_a_job_becomes_one_whole_version_and_its_samples_wait_for_the_deploy(alice):
    job = job_of(alice)
    accepted = training_run.run(job.public_id)
    job.refresh_from_db()
    adapter = AdapterVersion.objects.get()
    assert job.child == adapter
    assert adapter.state == ("candidate" if accepted else "refused")
    folder = config().var / adapter.path
    assert sorted(f.name for f in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert folder.with_name(f"{folder.name}.optimizer.safetensors").exists()
    probe = json.loads(folder.with_name(f"{folder.name}.probe.json").read_text())
    assert len(probe["adapter_logprobs"]) == len(probe["response_ids"])
    assert {row.measure for row in adapter.gate.all()} >= {"drift", "preference", "length"}
    assert set(job.timings) >= {"load", "train", "save", "gate"}
    assert job.config["lr"] == 5e-3


def test_each_hinted_sample_keeps_what_the_hint_did_to_its_tokens(alice):
    up(sampled(alice, 7))
    job = job_of(alice, 2)
    training_run.run(job.public_id)
    liked, *hinted = TrainingSample.objects.select_related("turn").order_by("id")
    assert liked.token_effects is None
    for sample in hinted:
        trained = sample.turn.response_ids[:24]  # rated_tokens
        assert len(sample.token_effects) == len(trained)
        assert any(abs(value) > 0.01 for value in sample.token_effects)


def test_words_about_a_kind_that_is_not_heard_leave_their_rating_to_its_thumb(alice, monkeypatch):
    settings = replace(training_run._train_config(None), hint_heard_min=1e9)
    monkeypatch.setattr(training_run, "_train_config", lambda job: settings)
    up(sampled(alice, 7))
    said = [sampled(alice, number) for number in (1, 2)]
    kind = "When I ask for a recipe, use a list."
    for turn, words in zip(said, (kind, "Be brief."), strict=True):
        feedback.rate_turn(turn=turn, author=alice, changes={"value": -1, "comment": words})
    job = jobs.queue_job(user=alice)
    training_run.run(job.public_id)
    left, heard = (turn.samples.get() for turn in said)
    assert (left.by_thumb, left.token_effects, left.hint) == (True, None, kind)  # as it was said
    assert (bool(heard.token_effects), heard.by_thumb) == (True, False)
    assert job.events.get(kind="unheard").text.endswith(
        "which kind of request their words are about: 1"
    )
    said[0].samples.update(state=SampleState.TRAINED, adapter=make_adapter(alice, 9))
    assert receipt(said[0])["text"] == "learned in v9 by its thumb alone"


def test_each_step_is_a_row_of_finite_numbers(alice):
    job = job_of(alice)
    training_run.run(job.public_id)
    points = metric_points(job)
    assert [p["step"] for p in points] == list(range(1, len(points) + 1))
    for point in points:
        numbers = [v for k, v in point.items() if isinstance(v, float)]
        assert all(math.isfinite(number) for number in numbers)
        assert None not in point.values()
    assert points[0]["reward"] == -1.0
    assert JobSample.objects.filter(job=job, role="reanswer").exists()


def test_an_accepted_version_is_deployed_and_the_next_job_starts_from_it(
    alice, engine, monkeypatch
):
    monkeypatch.setattr(training_run, "decide", lambda _: Accepted())
    same = {"disagreement": 0.0, "difference": 1.0}
    monkeypatch.setattr("clawweb.services.serving._compare_probe", lambda *_: same)
    first = job_of(alice)
    assert training_run.run(first.public_id)
    deployment.deploy(first.public_id)
    version = live_adapter(alice)
    assert version.version == 1
    down(sampled(alice, 9, version=1))
    second = jobs.queue_job(user=alice)
    assert training_run.run(second.public_id)
    second.refresh_from_db()
    assert (second.parent, second.child.version) == (version, 2)
    assert JobSample.objects.filter(job=second, role="replay").count() == 3


def test_a_job_that_is_asked_to_end_tests_what_it_has_reached(alice, monkeypatch):
    monkeypatch.setattr(training_run.Keeper, "enough", lambda _: True)
    step = TrainConfig().batch_size
    job = job_of(alice, step + 1)  # two steps on rated replies, then re-answers
    training_run.run(job.public_id)
    job.refresh_from_db()
    assert job.metrics.count() == 1
    assert job.child is not None
    (end,) = job.events.filter(kind="ended_early")
    assert end.text == f"after step 1 of {job.steps}, as was asked for"
    assert job.job_samples.filter(role="new").count() == step
    left = TrainingSample.objects.order_by("pk").last()
    assert (left.state, left.job) == ("ready", None)


class Accepted:
    accepted = True
    reasons: tuple[str, ...] = ()


class Refused:
    accepted = False
    reasons = ("it repeats itself",)


def test_a_refused_version_says_why_and_its_samples_count_again(alice, monkeypatch):
    monkeypatch.setattr(training_run, "decide", lambda _: Refused())
    job = job_of(alice)
    assert not training_run.run(job.public_id)
    job.refresh_from_db()
    adapter = AdapterVersion.objects.get()
    assert (job.state, job.reason) == (JobState.REFUSED, "it repeats itself")
    assert (adapter.state, adapter.note) == ("refused", "it repeats itself")
    assert live_adapter(alice) is None
    assert set(TrainingSample.objects.values_list("state", flat=True)) == {"ready"}


def test_votes_count_once_in_the_baseline_however_often_they_train(alice, monkeypatch):
    verdict = iter([Refused(), Accepted()])
    monkeypatch.setattr(training_run, "decide", lambda _: next(verdict))
    up(sampled(alice, 1))
    for _ in range(2):
        training_run.run(jobs.queue_job(user=alice).public_id)
        alice.refresh_from_db()
        assert alice.reward_count == 0  # no version answers with them yet
        assert TrainingJob.objects.first().timings["baseline"]["count"] == 1


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_job_whose_database_is_away_for_a_while_is_taken_up_again(alice, monkeypatch, attempts):
    def away(*_, **__):
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(jobs, "record_step", away)
    job = job_of(alice, 1)
    for _ in range(attempts):
        assert not training_run.run(job.public_id)
    job.refresh_from_db()
    assert job.state == (JobState.QUEUED if attempts < jobs.MAX_ATTEMPTS else JobState.FAILED)


def test_held_back_replies_of_another_tokenizer_are_not_compared(alice, monkeypatch):
    seen = []
    monkeypatch.setattr(training_run, "decide", lambda _: Refused())
    monkeypatch.setattr(
        training_run, "measure", lambda *args: seen.extend(args[3]) or measure(*args)
    )
    job = job_of(alice, 3)
    own, other = TrainingSample.objects.order_by("pk")[1:]
    TrainingSample.objects.exclude(pk__lt=own.pk).update(held_back=True)
    Turn.objects.filter(pk=other.turn_id).update(template_hash="another")
    training_run.run(job.public_id)
    assert [sample.id for sample in seen] == [own.pk]


def test_the_gate_hears_what_a_user_said_and_what_they_wrote_instead(alice, monkeypatch):
    seen = []
    monkeypatch.setattr(training_run, "decide", lambda _: Refused())
    monkeypatch.setattr(
        training_run, "measure", lambda *args: seen.append(args[5]) or measure(*args)
    )
    for number, words in enumerate(("Boil water.", "Add <|im_end|>tea.")):
        changes = {"correction": words}
        feedback.rate_turn(turn=sampled(alice, number), author=alice, changes=changes)
    down(sampled(alice, 3))
    training_run.run(jobs.queue_job(user=alice).public_id)
    (wishes,) = seen
    assert len(wishes.hints) == 1
    shown = [(example.question, example.answer) for example in wishes.examples]
    newest = defuse("Add <|im_end|>tea.", tokenizer_controls())
    given = [("question 1", newest), ("question 0", "Boil water.")]
    assert shown == given


def test_the_gate_hears_of_no_wish_that_was_contradicted_since(alice):
    version = make_adapter(alice, 1, AdapterState.LIVE)
    for number, reason in enumerate(("too_short", "too_long")):
        down(sampled(alice, number), reason)
    TrainingSample.objects.update(state=SampleState.TRAINED, adapter=version)
    down(sampled(alice, 2), "no_lists")
    job = jobs.claim_job(jobs.queue_job(user=alice).public_id)
    newest, learned = training_run._wishes(job).hints
    assert "without lists" in newest
    assert "one or two short sentences" in learned


def test_a_job_without_any_trainable_rating_ends_as_no_signal_with_the_reasons(alice):
    turn = sampled(alice, 1)
    Turn.objects.filter(pk=turn.pk).update(prompt_ids=[1, 2, 3])
    turn.refresh_from_db()
    down(turn)
    job = jobs.queue_job(user=alice)
    training_run.run(job.public_id)
    job.refresh_from_db()
    assert job.state == JobState.NO_SIGNAL
    assert receipt(turn)["drop_reason"] == "template_changed"


def test_what_was_taken_back_while_the_job_waited_does_not_train(alice):
    job = jobs.claim_job(job_of(alice, 2).public_id)
    jobs.put_back(job)
    gone = TrainingSample.objects.first().turn
    feedback.rate_turn(turn=gone, author=alice, changes={"value": None})
    training_run.run(job.public_id)
    assert job.job_samples.filter(role="new").count() == 1
    assert receipt(gone)["text"] == "taken back"


def test_a_thumb_up_trains_by_reward_alone(alice, monkeypatch):
    monkeypatch.setattr(training_run, "decide", lambda _: Accepted())
    up(sampled(alice, 1))
    job = jobs.queue_job(user=alice)
    training_run.run(job.public_id)
    points = metric_points(job)
    assert len(points) == 1
    assert points[0]["grad_norm"] > 0
    job.refresh_from_db()
    assert job.timings["baseline"]["count"] == 1
    assert job.timings["baseline"]["mean"] == pytest.approx(0.1)


def test_the_row_and_the_page_of_a_job_say_that_thumbs_alone_trained_by_kto(alice, client):
    up(sampled(alice, 1))
    feedback.rate_turn(turn=sampled(alice, 2), author=alice, changes={"value": -1, "final": True})
    job = jobs.queue_job(user=alice)
    training_run.run(job.public_id)
    job.refresh_from_db()
    assert job.config["method"] == "combine"
    assert job.config["trained_as"]["method"] == "kto"
    assert job.config["trained_as"]["batch_size"] == job.config["thumbs_batch"]
    client.force_login(alice)
    page = client.get(f"/jobs/{job.public_id}/").content.decode()
    assert "without hints: trained by kto" in page
    assert f"<dd>{job.config['thumbs_batch']} <span" in page


def test_a_job_with_hints_trained_as_it_was_asked_to(alice):
    job = job_of(alice)
    training_run.run(job.public_id)
    job.refresh_from_db()
    assert "trained_as" not in job.config


def test_a_cancelled_job_ends_without_a_version(alice):
    job = job_of(alice)
    real = jobs.record_step

    def cancel_after_a_step(row, **values):
        real(row, **values)
        jobs.cancel_job(row)
        keeper = training_run.Keeper(row)
        keeper.cancelled = jobs.cancel_wanted(row)
        keeper.check()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "record_step", cancel_after_a_step)
        assert not training_run.run(job.public_id)
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert not AdapterVersion.objects.exists()
    assert set(TrainingSample.objects.values_list("state", flat=True)) == {"ready"}


def test_a_worker_that_lost_its_lease_writes_nothing_more(alice):
    job = job_of(alice)
    real = jobs.record_step

    def lose_it(row, **values):
        TrainingJob.objects.filter(pk=row.pk).update(lease_token="another worker's")
        real(row, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "record_step", lose_it)
        assert not training_run.run(job.public_id)
    job.refresh_from_db()
    assert (job.state, job.lease_token) == (JobState.TRAINING, "another worker's")
    assert not AdapterVersion.objects.exists()


def test_a_death_before_the_hand_over_leaves_no_version_and_the_next_attempt_makes_it(
    alice, monkeypatch
):
    monkeypatch.setattr(training_run, "decide", lambda _: Accepted())
    job = job_of(alice)

    def die(*_, **__):
        raise LeaseLost("killed here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "_hand_over", die)
        training_run.run(job.public_id)
    assert not AdapterVersion.objects.exists()
    TrainingJob.objects.update(lease_until="2020-01-01T00:00:00Z")
    assert training_run.run(job.public_id)
    job.refresh_from_db()
    assert (job.state, job.attempt) == (JobState.DEPLOYING, 2)
    assert AdapterVersion.objects.get().path.endswith("v1.2")


def test_a_keeper_ends_the_work_when_the_database_has_not_answered_for_a_whole_lease(alice):
    keeper = training_run.Keeper(job_of(alice, 1))
    keeper.check()
    keeper.renewed -= config().lease_seconds + 1
    with pytest.raises(LeaseLost):
        keeper.check()


@pytest.mark.parametrize("error", [InterfaceError, OperationalError])
def test_a_keeper_goes_on_when_the_database_is_away_for_a_moment(alice, monkeypatch, error):
    fails = iter([error("connection already closed"), None])

    def wanted(job):
        if exc := next(fails, None):
            raise exc
        return True

    monkeypatch.setattr(jobs, "cancel_wanted", wanted)
    monkeypatch.setattr("clawweb.keeper.finishing.finish_wanted", lambda job: False)
    monkeypatch.setattr("clawweb.keeper.close_old_connections", lambda: None)
    with training_run.Keeper(job_of(alice, 1)) as keeper:
        wait_for("the next look", lambda: keeper.cancelled, timeout=30)
        assert keeper.thread.is_alive()
