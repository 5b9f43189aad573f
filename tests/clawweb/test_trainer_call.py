"""What the trainer is called with, of the rows of a job, its user and the version before it."""

from __future__ import annotations

from typing import Any

import pytest

from clawweb import training_run
from clawweb.config import config
from clawweb.models import AdapterState, JobState, SampleState, User
from clawweb.services import jobs
from tests.factories import comment, down, in_state, make_adapter, make_turn, up
from training.advantages import Baseline
from training.errors import TrainingError

# The lease is renewed from a thread of its own: the rows must be there for it.
pytestmark = pytest.mark.django_db(transaction=True, serialized_rollback=True)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `train` was given, by name; it gives nothing back."""
    seen: dict[str, Any] = {}

    def train(base: Any, model: Any, samples: Any, settings: Any, **more: Any) -> None:
        seen.update(more, samples=samples, settings=settings)
        raise TrainingError("it was only looked at")

    monkeypatch.setattr(training_run, "train", train)
    monkeypatch.setattr(training_run, "attach", lambda *_: None)  # the parent's file is no weights
    monkeypatch.setattr(training_run, "detach", lambda *_: None)
    return seen


def test_the_trainer_is_told_what_the_rows_say(alice: User, call: dict[str, Any]) -> None:
    parent = make_adapter(alice, 1, AdapterState.LIVE)
    adam = config().var / f"{parent.path}.optimizer.safetensors"
    adam.write_text("as the parent left it")
    User.objects.filter(pk=alice.pk).update(reward_mean=0.25, reward_variance=0.5, reward_count=9)
    learned = comment(alice, "Be brief."), make_turn(alice)
    up(learned[1])
    for turn in learned:
        in_state(turn, SampleState.TRAINED, adapter=parent)
    new = make_turn(alice, version=1)
    down(new)

    job = jobs.queue_job(user=alice, method="opd", chosen={"kto_beta": 0.2})
    training_run.run(job.public_id)

    job.refresh_from_db()
    assert (job.state, job.parent) == (JobState.FAILED, parent)
    assert job.reason.endswith("it was only looked at")
    assert (call["settings"].method, call["settings"].kto_beta) == ("opd", 0.2)
    assert call["baseline"] == Baseline(mean=0.25, variance=0.5, count=9)
    assert call["parent_optimizer"] == adam.resolve()
    assert [sample.id for sample in call["samples"]] == [new.samples.get().pk]
    assert [sample.id for sample in call["replay"]] == [turn.samples.get().pk for turn in learned]


def test_where_the_version_before_left_no_state_adam_begins_anew(
    alice: User, call: dict[str, Any]
) -> None:
    make_adapter(alice, 1, AdapterState.LIVE)
    down(make_turn(alice, version=1))
    training_run.run(jobs.queue_job(user=alice).public_id)
    assert (call["parent_optimizer"], call["replay"]) == (None, [])
