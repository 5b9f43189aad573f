"""Liked replies held where they are: the loss by hand, and a job that does not take them along."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from rollouts.types import Sample
from tests.training.conftest import ATOL, DEVICE, items_of, job, make_sample, nothing
from tests.training.test_methods import walk_away
from training.adapters import scale, snapshot
from training.base import Base
from training.config import TrainConfig
from training.liked import Liked

HINT = "Please answer in one word."


@pytest.fixture
def config(config: TrainConfig) -> TrainConfig:
    return replace(config, liked_weight=0.5, batch_size=2, rated_tokens=64)  # whole replies


def liked(base: Base, number: int, **more: object) -> Sample:
    return make_sample(base, number, reward=1.0, hint=None, **more)


@torch.no_grad()
def logprobs_TV(model: PeftModel, sample: Sample) -> Tensor:
    """log pi(. | x, y_<t) of the reply's positions, by one plain pass."""
    ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]], device=DEVICE)
    start = len(sample.prompt_ids) - 1
    logits_TV = model(input_ids=ids).logits[0, start : start + len(sample.response_ids)]
    return torch.log_softmax(logits_TV.float(), dim=-1)


def kl_by_hand(before_TV: Tensor, now_TV: Tensor) -> Tensor:
    return (before_TV.exp() * (before_TV - now_TV)).sum(dim=-1)


def test_the_loss_is_the_mean_kl_from_before_the_job_by_the_share_that_was_liked(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    replies = [liked(base, number) for number in (1, 22, 333)]
    before = [logprobs_TV(model, sample) for sample in replies]
    told = make_sample(base, 4444, hint=HINT)  # a fourth of the job's replies
    held = Liked(base, model, items_of(base, [*replies, told], config), config, nothing)
    walk_away(model)
    after = [logprobs_TV(model, sample) for sample in replies]
    kls = [kl_by_hand(*pair) for pair in zip(before, after, strict=True)]
    for step, pair in ((1, (2, 0)), (2, (1, 2))):  # two at a time, round and round
        wanted = 0.5 * 0.75 * torch.cat([kls[number] for number in pair]).mean()
        assert held.backward(step).loss == pytest.approx(float(wanted), rel=1e-5)


def test_its_gradient_does_not_depend_on_how_a_step_is_cut(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    def gradient(**changes: float) -> Tensor:
        model.zero_grad()
        scale(model, start, share=1.0)
        own = replace(config, **changes)  # type: ignore[arg-type]
        held = Liked(base, model, items_of(base, replies, own), own, nothing)
        walk_away(model)
        held.backward(1)
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    replies, start = [liked(base, 1), liked(base, 22)], snapshot(model)
    whole = gradient()
    assert float(whole.norm()) > 0
    torch.testing.assert_close(gradient(micro_batch_tokens=1), whole, rtol=1e-4, atol=ATOL)
    torch.testing.assert_close(gradient(liked_weight=1.0), 2 * whole, rtol=1e-4, atol=ATOL)


@pytest.mark.parametrize(
    ("changes", "weight"),
    [({"reward": -1.0}, 0.5), ({"reward": None}, 0.5), ({"hint": HINT}, 0.5), ({}, 0.0)],
    ids=["disliked", "no thumb", "hinted", "weight 0"],
)
def test_what_was_not_liked_as_it_was_is_not_held(
    base: Base, model: PeftModel, config: TrainConfig, changes: dict[str, object], weight: float
) -> None:
    sample = replace(liked(base, 1), **changes)  # type: ignore[arg-type]
    own = replace(config, liked_weight=weight)
    held = Liked(base, model, items_of(base, [sample], own), own, nothing)
    walk_away(model)
    assert held.backward(1).loss == 0.0


def test_a_hint_takes_liked_replies_along_less_far(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    replies = [liked(base, number) for number in (1, 2)]
    told = [make_sample(base, number, hint=HINT) for number in (3, 4)]
    before = [logprobs_TV(model, sample) for sample in replies]
    start, moved = snapshot(model), {}
    for weight in (0.0, 4.0):
        scale(model, start, share=1.0)
        own = replace(config, liked_weight=weight, max_steps=7, reward_step=1e-6)
        job(base, model, [*told, *replies], own)
        after = [logprobs_TV(model, sample) for sample in replies]
        kls = [kl_by_hand(*pair) for pair in zip(before, after, strict=True)]
        moved[weight] = float(torch.cat(kls).mean())
    assert moved[0.0] > 0
    assert moved[4.0] < 0.7 * moved[0.0]
