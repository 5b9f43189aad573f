"""What a run gives each of its steps, and when it begins no further one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import PeftModel

from rollouts.types import Sample
from tests.training.conftest import items_of, job, make_sample, samples
from training import trainer
from training.adapters import snapshot
from training.advantages import Baseline
from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.errors import Diverged
from training.forward import response_logprobs
from training.sampling import Reply, sample_replies
from training.step import StepSums, group_backward
from training.types import StepMetrics


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[list[Item]]:
    """The items of each micro-batch."""
    found: list[list[Item]] = []

    def seen(
        base: Base, model: PeftModel, group: Sequence[Item], *rest: Any, **more: Any
    ) -> StepSums:
        found.append(list(group))
        return group_backward(base, model, group, *rest, **more)

    monkeypatch.setattr(trainer, "group_backward", seen)
    return found


def test_each_set_of_reanswers_is_sampled_from_a_seed_of_its_own(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, float, int]] = []

    def sample(*what: Any, **how: Any) -> list[Reply]:
        drawn.append((how["seed"], how["temperature"], how["max_new_tokens"]))
        return sample_replies(*what, **how)

    monkeypatch.setattr(trainer, "sample_replies", sample)
    settings = replace(config, seed=5, reanswer_temperature=0.9, reanswer_tokens=7)
    job(base, model, [make_sample(base)], settings)
    assert drawn == [(5, 0.9, 7), (6, 0.9, 7), (7, 0.9, 7)]


def test_nobody_has_voted_on_a_reanswer(
    base: Base, model: PeftModel, config: TrainConfig, given: list[list[Item]]
) -> None:
    settings = replace(config, max_steps=2, method="combine")
    job(base, model, [make_sample(base)], settings)
    (rated,), (again,) = given
    assert (rated.reward, rated.advantage, rated.is_fresh) == (-1.0, -0.5, False)
    assert (again.reward, again.advantage, again.is_fresh) == (None, None, True)
    assert rated.rollout_logprobs is not None
    assert again.rollout_logprobs is None


def test_passes_over_thumbs_are_clipped_around_the_policy_before_the_first(
    base: Base, model: PeftModel, config: TrainConfig, given: list[list[Item]]
) -> None:
    settings = replace(config, method="binary", reward_epochs=2)
    sample = make_sample(base)
    (item,) = items_of(base, [sample], settings)
    before_T = response_logprobs(base, model, item.plain, temperature=item.temperature)
    job(base, model, [sample], settings)
    assert len(given) == 2
    for (trained,) in given:
        assert trained.proximal_logprobs == pytest.approx(before_T.tolist(), abs=1e-5)
    given.clear()
    job(base, model, [sample], replace(settings, reward_epochs=1))
    assert [item.proximal_logprobs for (item,) in given] == [None]  # those it has as it trains


def test_all_that_was_rated_trains_however_late_it_is(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    now = iter(range(0, 1_000_000, 500))  # each look at the clock takes longer than a job has
    settings = replace(config, batch_size=1)
    result, steps = job(base, model, samples(base, 3), settings, clock=lambda: float(next(now)))
    assert [step.phase for step in steps] == ["rated"] * 3
    assert (result.trained, result.stopped) == ((1, 2, 3), "time")


@pytest.mark.parametrize(("seconds", "sets"), [(199.0, 1), (200.0, 2)])
def test_a_set_of_reanswers_takes_as_long_as_sampling_and_all_its_steps(
    base: Base,
    model: PeftModel,
    config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    sets: int,
) -> None:
    """20 s each step and 50 s for sampling: a set ends at 110 s, and the next would at 200 s."""
    now = [0.0]

    def slowly(takes: float, call: Any) -> Any:
        def slow(*what: Any, **how: Any) -> Any:
            now[0] += takes
            return call(*what, **how)

        return slow

    monkeypatch.setattr(trainer, "group_backward", slowly(20.0, group_backward))
    monkeypatch.setattr(trainer, "sample_replies", slowly(50.0, sample_replies))
    settings = replace(config, max_steps=3, reanswer_steps=2, kl_stop=0.0, train_seconds=seconds)
    result, _ = job(base, model, [make_sample(base)], settings, clock=lambda: now[0])
    assert (result.reanswers[1], result.stopped) == (sets, "steps" if sets == 2 else "time")


def test_a_job_of_thumbs_goes_by_the_effect_of_the_hints_it_is_reminded_of(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects: list[float | None] = []
    share = trainer.step_share

    def seen(kl: float | None, *, effect: float | None, **more: Any) -> float:
        effects.append(effect)
        return share(kl, effect=effect, **more)

    monkeypatch.setattr(trainer, "step_share", seen)
    hinted = [make_sample(base, 2), make_sample(base, 3, hint="Hm?")]
    settings = replace(config, max_steps=2, kto_beside=0)

    def effect_of(own: Sequence[Sample], older: Sequence[Sample]) -> float:
        effects.clear()
        job(base, model, own, settings, replay=older)
        (effect,) = set(effects)
        return effect or 0.0

    thumb = make_sample(base, 1, hint=None)
    both = effect_of(hinted, [])
    assert effect_of([thumb], hinted) == pytest.approx(both, rel=1e-5)
    one = effect_of(hinted[:1], [])
    assert one != pytest.approx(both, rel=1e-2)
    assert effect_of(hinted[:1], hinted[1:]) == pytest.approx(one, rel=1e-5)  # its own hints'


def test_the_baseline_counts_no_vote_on_what_was_dropped(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    stale = make_sample(base, 2, reward=-1.0, version_age=config.max_version_age + 1)
    liked = make_sample(base, 1, reward=1.0)
    result, _ = job(base, model, [liked, stale], config, baseline=Baseline(count=3))
    assert result.dropped == {2: "stale"}
    assert (result.baseline.count, result.baseline.mean) == (4, pytest.approx(0.1))


def test_a_loss_that_is_not_finite_ends_the_run_though_its_gradient_is(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*what: Any, **how: Any) -> StepSums:
        return group_backward(*what, **how) + StepSums(loss=float("inf"))

    monkeypatch.setattr(trainer, "group_backward", endless)
    before, steps = snapshot(model), list[StepMetrics]()
    with pytest.raises(Diverged):
        job(base, model, [make_sample(base)], config, on_step=steps.append)
    assert [step.lr for step in steps] == [None]
    assert all(torch.equal(tensor, before[name]) for name, tensor in snapshot(model).items())
