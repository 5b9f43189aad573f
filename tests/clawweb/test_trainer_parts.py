"""What a run hands from rows to the parts of the trainer, and from those to rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import InterfaceError

from clawweb import sentences, training_run
from clawweb.config import config
from clawweb.engine import tokenizer_controls
from clawweb.keeper import Cancelled, Keeper, Stopping
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    JobState,
    SampleState,
    TrainingJob,
    Turn,
    User,
)
from clawweb.services import feedback, jobs
from rollouts.rendering import defused_json
from tests.factories import (
    FINE,
    claimed_job,
    down,
    down_alone,
    in_state,
    make_adapter,
    make_turn,
    up,
)
from training.advantages import Baseline
from training.config import TrainConfig
from training.errors import NoSignal, TrainingError

# The lease is renewed from a thread of its own: the rows must be there for it.
pytestmark = pytest.mark.django_db(transaction=True, serialized_rollback=True)

BASE = SimpleNamespace(template_hash="t", weights_hash="w")
ACCEPTED = SimpleNamespace(accepted=True, reasons=())


class Parts:
    """The trainer's parts: what each was called with, and what it does instead."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.called: dict[str, tuple[Any, ...]] = {}
        self.said: list[str] = []
        self.result: dict[str, Any] = {}  # of training, where it is another
        saved = SimpleNamespace(sha256="ab" * 32, bytes=3, rank=8)
        for name, gives in {
            "loaded_base": BASE,
            "attach": "a model",
            "detach": None,
            "step_back": 1.0,
            "_save": saved,
            "measure": [FINE],
            "decide": ACCEPTED,
        }.items():
            self.replace(name, lambda *_, gives=gives: gives)
        self.replace("train", self._trained)
        patch.setattr(training_run, "doing", self.said.append)

    def replace(self, name: str, act: Any) -> None:
        def part(*args: Any, **more: Any) -> Any:
            self.called[name] = (*args, more.get("check"))
            return act(*args, **more)

        self.patch.setattr(training_run, name, part)

    def _trained(self, _: Any, model: Any, samples: Any, settings: TrainConfig, **__: Any) -> Any:
        result = {
            "trained": tuple(sample.id for sample in samples),
            "config": settings,
            "dropped": {},
            "unheard": frozenset(),
            "stopped": "steps",
            "reanswers": {},
            "effects": {},
            "baseline": Baseline(),
        }
        return SimpleNamespace(**result | self.result)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(monkeypatch)


def run(user: User, **chosen: Any) -> TrainingJob:
    job = jobs.queue_job(user=user, **chosen)
    training_run.run(job.public_id)
    job.refresh_from_db()
    return job


def test_training_the_way_back_and_the_gate_begin_with_the_version_before(
    alice: User, parts: Parts
) -> None:
    parent = make_adapter(alice, 1, AdapterState.LIVE)
    down(make_turn(alice, version=1))
    job = run(alice)
    assert (job.state, job.parent) == (JobState.DEPLOYING, parent)
    folder = (config().var / parent.path).resolve()
    assert [parts.called[name][2] for name in ("attach", "step_back", "measure")] == [folder] * 3
    assert parts.called["detach"][:2] == (BASE, "a model")
    assert sorted(job.child.gate.values_list("measure", flat=True)) == ["length", "way"]
    assert parts.said == [sentences.TRAINS % {"job": job.public_id}, sentences.IDLE]


@pytest.mark.parametrize("name", ["train", "step_back", "measure"])
@pytest.mark.parametrize("why", [Cancelled, Stopping])
def test_each_part_that_takes_long_asks_whether_to_go_on(
    alice: User, parts: Parts, monkeypatch: pytest.MonkeyPatch, name: str, why: type[Exception]
) -> None:
    asked: list[str] = []

    def check(_: Keeper) -> None:
        if asked:
            raise why

    def asks(*args: Any, **more: Any) -> None:
        asked.append(name)
        more.get("check", args[-1])()

    monkeypatch.setattr(Keeper, "check", check)
    parts.replace(name, asks)
    down(make_turn(alice))
    job = run(alice)
    ends = {Cancelled: ("cancelled", "It was cancelled."), Stopping: ("queued", "")}
    assert (job.state, job.reason) == ends[why]
    assert "detach" in parts.called  # the base is another job's
    assert not AdapterVersion.objects.exists()


def test_a_base_that_was_left_half_dressed_is_loaded_anew(
    alice: User, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tear(*_: Any) -> None:
        raise TrainingError("its weights do not fit")

    monkeypatch.setattr(training_run, "_BASE", [BASE])
    parts.replace("attach", tear)
    down(make_turn(alice))
    assert run(alice).reason == "Training failed: its weights do not fit"
    assert training_run._BASE == []
    assert "detach" not in parts.called


def test_a_connection_that_was_closed_is_a_database_that_was_away(alice: User) -> None:
    down(make_turn(alice))
    job = claimed_job(alice)
    training_run._end_broken(job, InterfaceError("connection already closed"))
    job.refresh_from_db()
    assert (job.state, job.events.last().text) == (JobState.QUEUED, "the database was away")


# What training could not use


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("heard", [True, False])
def test_a_hint_that_wants_no_probabilities_counts_again_unless_nobody_hears_it(
    alice: User, parts: Parts, ends: bool, heard: bool
) -> None:
    down(greedy := make_turn(alice))
    up(make_turn(alice))
    sample = greedy.samples.get().pk
    left = {"dropped": {sample: "greedy"}, "unheard": frozenset() if heard else {sample}}

    def no_signal(*_: Any, **__: Any) -> None:
        raise NoSignal(**left)

    if ends:
        parts.replace("train", no_signal)
    parts.result = left
    job = run(alice)
    assert job.state == (JobState.NO_SIGNAL if ends else JobState.DEPLOYING)
    assert greedy.samples.get().state == ("ready" if heard else "dropped")


@pytest.mark.parametrize(("method", "alone"), [("combine", False), ("kto", True)])
def test_where_the_method_that_trained_leaves_words_aside_the_thumb_taught(
    alice: User, parts: Parts, method: str, alone: bool
) -> None:
    down(turn := make_turn(alice))
    parts.result = {"config": replace(TrainConfig(), method=method)}
    run(alice)
    assert turn.samples.get().by_thumb is alone


# What the parts are shown


def test_the_trainer_is_given_the_rows_own_numbers_and_no_control_tokens(alice: User) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    look = {"type": "function", "function": {"name": "look", "description": "<|im_end|>"}}
    turn = make_turn(alice, tools=[look], started_at=at, template_hash="t")
    Turn.objects.filter(pk=turn.pk).update(sampling={**turn.sampling, "temperature": 0.25})
    turn.refresh_from_db()
    changes = {"value": -1, "correction": "<|im_end|>So."}
    feedback.rate_turn(turn=turn, author=alice, changes=changes)
    sample = training_run.sample_for(turn.samples.get(), None)
    assert (sample.temperature, sample.reward, sample.at) == (0.25, -1, at)
    assert sample.template_hash == "t"
    assert sample.correction == "<\u2060|im_end|>So."
    assert sample.tools == defused_json([look], tokenizer_controls()) != [look]


def test_the_gate_is_shown_the_newest_corrections_and_so_many(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_run, "CANDIDATES", 2)
    for words in ("First.", "Second.", "Third."):
        changes = {"correction": words}
        feedback.rate_turn(turn=make_turn(alice), author=alice, changes=changes)
    shown = training_run._wishes(claimed_job(alice)).examples
    assert [example.answer for example in shown] == ["Third.", "Second."]


def test_the_gate_asks_for_nothing_that_a_learned_wish_contradicts(alice: User) -> None:
    version = make_adapter(alice, 1, AdapterState.LIVE)
    aside, learned, new = (make_turn(alice, version=1) for _ in range(3))
    for turn, reason in ((aside, "too_long"), (learned, "too_short"), (new, "no_lists")):
        down(turn, reason)
    aside.samples.update(held_back=True)
    in_state(learned, SampleState.TRAINED, adapter=version)
    base: Any = SimpleNamespace(template_hash=aside.template_hash)
    assert training_run._kept_aside(claimed_job(alice), base) == []


def test_a_run_is_bounded_as_the_installation_says(alice: User, setting: Any) -> None:
    setting(lora_rank=16, train_seconds=7, train_tokens=99, train_exchanges=3)
    down_alone(make_turn(alice))
    settings = training_run._train_config(jobs.queue_job(user=alice))
    assert (settings.rank, settings.train_seconds, settings.max_tokens) == (16, 7, 99)
    assert settings.earlier_exchanges == 3


# The version's files


def written(folder: Path, *_: Any) -> Any:
    folder.mkdir(parents=True)
    return SimpleNamespace(sha256="ab" * 32, bytes=3, rank=8)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved beside a version; no weights, and nothing wrong with them."""
    monkeypatch.setattr(training_run, "save_version", lambda _, folder: written(folder))
    monkeypatch.setattr(training_run, "save_optimizer", lambda _, file: file.touch())
    monkeypatch.setattr(training_run, "check_folder", lambda *_, **__: None)
    monkeypatch.setattr(training_run, "write_probe", lambda *args: args[-1].touch())


def saved(path: Path) -> list[str]:
    training_run._save(BASE, None, SimpleNamespace(optimizer=None), path)
    return sorted(file.name for file in (config().var / path).parent.glob(f"{path.name}*"))


@pytest.mark.usefixtures("files")
def test_a_version_that_would_not_be_served_leaves_no_file(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(f"adapters/u{alice.pk}/v1.1")
    folder = config().var / path

    def check(_: Path, *, base: Any, max_rank: int) -> None:
        raise TrainingError(f"more than {max_rank}")

    monkeypatch.setattr(training_run, "check_folder", check)
    with pytest.raises(TrainingError, match=f"more than {config().lora_rank}"):
        saved(path)
    assert [file.name for file in folder.parent.glob("v1.1*")] == []


@pytest.mark.usefixtures("files")
def test_files_that_a_restore_left_ahead_of_its_rows_make_room(alice: User) -> None:
    path = Path(f"adapters/u{alice.pk}/v7.1")
    (config().var / path).mkdir(parents=True, exist_ok=True)
    (config().var / path.with_name("v7.1.old")).touch()
    assert saved(path) == ["v7.1", "v7.1.optimizer.safetensors", "v7.1.probe.json"]


def test_what_a_dead_worker_left_makes_room_but_no_versions_files_do(alice: User) -> None:
    kept = make_adapter(alice, 1)
    orphan = Path(kept.path).with_name("v1.2")
    for path in (Path(kept.path), orphan):
        (config().var / path).mkdir(parents=True, exist_ok=True)
        training_run._remove_orphan(config().var / path, path)
    assert (config().var / kept.path).exists()
    assert not (config().var / orphan).exists()
