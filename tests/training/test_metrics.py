"""What a step reports beside its loss: measured where it is, absent where it is not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from peft import PeftModel

from tests.training.conftest import job, make_sample, samples
from training.adapters import adapter_tensors
from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.errors import Diverged
from training.logprobs import entropy
from training.losses import clipped, clipped_policy_loss
from training.metrics import step_metrics
from training.step import StepSums
from training.types import RATED, StepMetrics


def test_the_entropy_of_no_preference_is_the_logarithm_of_the_choices() -> None:
    certain = torch.tensor([0.0, -1e4, -1e4, -1e4])
    found = entropy(torch.log_softmax(torch.stack([torch.zeros(4), certain]), dim=-1))
    assert found.tolist() == pytest.approx([math.log(4), 0.0])


def test_a_token_is_clipped_where_its_gradient_is_gone() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1, 1.5])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, math.nan])
    mask = torch.tensor([True, True, True, True, True, False])
    policy = ratio.log().requires_grad_()
    bounds = {"clip_low": 0.2, "clip_high": 0.28}
    zeros = torch.zeros(6)
    loss = clipped_policy_loss(
        policy,
        zeros,
        zeros,
        advantages,
        mask,
        importance_cap=2.0,
        negative_importance_cap=2.0,
        tokens=6,
        **bounds,
    )
    (gradient,) = torch.autograd.grad(loss, policy)
    gone = int(((gradient == 0) & mask).sum())
    assert gone == int(clipped(policy.detach(), zeros, advantages, mask, **bounds)) == 2


def test_a_steps_numbers_by_hand() -> None:
    def item(tokens: int, **of: Any) -> Item:
        prompts = {"prompt_ids": (1,), "teacher_prompt_ids": (1,)}
        return Item(sample_id=1, response_ids=(2,) * tokens, is_hinted=False, **prompts, **of)

    items = [
        item(1, reward=1.0, advantage=0.5, version_age=3),
        item(2, reward=-1.0, advantage=0.0),
        item(3, reward=-1.0, advantage=-0.5),
        item(5, is_fresh=True, is_finished=True, version_age=2),  # nobody has voted on these
        item(9, is_fresh=True, is_finished=False, version_age=2),
    ]
    sums = StepSums(
        loss=0.5, kl=3.0, hinted_tokens=12, policy_loss=0.25, rewarded_tokens=6, clipped_tokens=3,
        kl_base=1.0, anchored_tokens=4, correction_nll=6.0, corrected_tokens=3, entropy=5.0,
        tokens=20,
    )  # fmt: skip
    about = {"step": 2, "steps": 7, "phase": RATED, "grad_norm": 0.1, "lr": 1e-3, "device": "cpu"}
    found = step_metrics(items, sums, seconds=4.0, **about)  # type: ignore[arg-type]
    assert (found.loss, found.policy_loss, found.kl) == (0.5, 0.25, 3 / 12)
    assert (found.replies, found.tokens_per_second) == (5, 20 / 4)
    assert (found.reward, found.zero_advantage) == (pytest.approx(-1 / 3), pytest.approx(1 / 3))
    assert found.reward_std == pytest.approx(math.sqrt(1 - 1 / 9))
    assert (found.clip_share, found.kl_base, found.correction_nll) == (3 / 6, 1 / 4, 6 / 3)
    assert (found.entropy, found.policy_lag) == (5 / 20, 3 / 5)  # what is fresh lags behind nothing
    assert (found.response_length, found.cut_share) == ((5 + 9) / 2, 1 / 2)
    at_once = step_metrics(items, sums, seconds=0.0, **about)  # type: ignore[arg-type]
    assert at_once.tokens_per_second == pytest.approx(20e9)  # by a clock that stood still
    one = step_metrics(items[:1], sums, seconds=4.0, **about)  # type: ignore[arg-type]
    assert (one.reward_std, one.cut_share) == (None, None)


def test_a_job_that_distils_alone_reports_its_replies_and_no_reward_terms(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    config = dataclasses.replace(config, method="opd")
    given = [make_sample(base, 1, version_age=2), *samples(base, 3)[1:]]
    _, (rated, *again) = job(base, model, given, config)
    assert (rated.replies, rated.policy_lag) == (3, pytest.approx(2 / 3))
    assert rated.reward_std == 0.0
    assert (rated.policy_loss, rated.kl_base, rated.clip_share) == (None, None, None)
    assert (rated.zero_advantage, rated.response_length, rated.cut_share) == (None, None, None)
    assert rated.memory_mib is not None
    assert rated.memory_mib > 50
    for step in again:
        assert step.policy_lag == 0.0
        assert step.reward_std is None
        assert 0 < (step.response_length or 0) <= config.reanswer_tokens
        assert 0 <= (step.cut_share or 0) <= 1
    assert all(0 < (step.lr or 0) <= config.lr for step in (rated, *again))


def test_the_entropy_reported_is_the_policys_own(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    _, steps = job(base, model, samples(base, 2), config)
    words = base.model.get_output_embeddings().weight.shape[0]
    assert all(0 < (step.entropy or 0) < math.log(words) for step in steps)


def test_thumbs_alone_report_their_loss_and_their_distance_to_the_base(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = dataclasses.replace(config, reward_epochs=3, thumbs="binary")
    given = [make_sample(base, 1, hint=None, reward=1.0), make_sample(base, 2, hint=None)]
    _, steps = job(base, model, given, settings)
    first, *_, last = steps
    assert first.reward_std == 1.0
    assert first.zero_advantage == 0.0
    assert first.clip_share == 0.0  # the ratio begins at 1
    assert first.kl_base == pytest.approx(0.0, abs=1e-6)  # the adapter begins as the base
    assert (last.kl_base or 0) > 0
    assert first.policy_loss == pytest.approx(first.loss)


def test_ktos_steps_report_nothing_of_expectations_that_they_do_not_use(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = dataclasses.replace(config, method="kto")
    given = [make_sample(base, 1, hint=None, reward=1.0), make_sample(base, 2, hint=None)]
    _, steps = job(base, model, given, settings)
    assert {step.reward for step in steps} == {0.0}
    assert {(step.zero_advantage, step.policy_loss) for step in steps} == {(None, None)}


def test_a_step_that_diverges_is_told_before_the_run_ends(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    with torch.no_grad():
        next(iter(adapter_tensors(model).values())).fill_(float("nan"))
    steps: list[StepMetrics] = []
    with pytest.raises(Diverged):
        job(base, model, samples(base, 1), config, on_step=steps.append)
    (step,) = steps
    assert math.isnan(step.loss)
    assert step.lr is None  # it was not made


def test_a_run_that_is_asked_to_end_stops_after_its_step(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    result, steps = job(base, model, samples(base, 9), config, enough=lambda: True)
    assert (len(steps), result.steps, result.stopped) == (1, 1, "asked")
    assert result.trained == tuple(range(1, config.batch_size + 1))  # the first batch alone
    assert result.reanswers == {}


def test_a_run_without_reanswers_says_that_it_was_asked_to_end(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = dataclasses.replace(config, max_steps=1)
    for enough, stopped in ((True, "asked"), (False, "steps")):
        result, _ = job(base, model, samples(base, 2), settings, enough=lambda ends=enough: ends)
        assert result.stopped == stopped


def test_a_run_may_be_asked_among_its_reanswers(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    asked = iter([False, False, False, True])
    result, steps = job(base, model, samples(base, 2), config, enough=lambda: next(asked, True))
    assert (result.stopped, [s.phase for s in steps]) == ("asked", ["rated", "reanswer"])
    assert result.trained == (1, 2)
