"""A step's loss: by hand on a vocabulary of two words, and what it is the mean over."""

from __future__ import annotations

import dataclasses
from math import log
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from tests.training.conftest import job, make_sample
from tests.training.test_methods import same, walk_away
from tests.training.test_trainer import gradients, items_of
from training import forward
from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.step import StepSums, counts_of, loss_on, tokens_of

WAYS = [
    {"method": "opd"},
    {"method": "opd", "estimator": "token"},
    {"method": "opd", "estimator": "topk"},
    {"method": "binary"},
    {"method": "combine"},
    {"method": "combine", "combine": "advantages"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_gradient_does_not_depend_on_how_positions_are_cut(
    base: Base,
    model: PeftModel,
    config: TrainConfig,
    way: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walk_away(model)
    settings = dataclasses.replace(config, **way)
    items = items_of(base, [make_sample(base, 1), make_sample(base, 22, hint=None)], settings)
    found = []
    for chunk in (7, 1000):  # of the 49 positions
        monkeypatch.setattr(forward, "CHUNK", chunk)
        found.append(gradients(base, model, items, settings))
    same(*found)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_in_a_mean_over_replies_a_long_one_weighs_as_much_as_a_short_one(
    base: Base, model: PeftModel, config: TrainConfig, way: dict[str, Any]
) -> None:
    walk_away(model)
    settings = dataclasses.replace(config, loss_mean="replies", **way)
    short = make_sample(base, 2, response_ids=base.encode("no"), rollout_logprobs=[-1.0] * 2)
    items = items_of(base, [make_sample(base, 1), short], settings)
    assert [len(item.response_ids) for item in items] == [24, 2]
    assert counts_of(items, settings).rewarded == 2
    alone = [gradients(base, model, [item], settings) for item in items]
    halves = [(a + b) / 2 for a, b in zip(*alone, strict=True)]
    same(gradients(base, model, items, settings), halves, rtol=1e-3)


def test_what_the_charts_show_is_a_mean_over_tokens_either_way(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    walk_away(model)
    short = {"response_ids": base.encode("no"), "rollout_logprobs": [-1.0] * 2}
    given = [
        make_sample(base, 1),
        make_sample(base, 2, **short),
        make_sample(base, 3, hint=None, **short),
    ]
    shown = []
    for mean in ("tokens", "replies"):
        settings = dataclasses.replace(config, loss_mean=mean, lr=1e-12, max_steps=1)
        _, (step,) = job(base, model, given, settings)
        shown.append((step.kl, step.kl_base))
    assert shown[1] == pytest.approx(shown[0], rel=1e-4)


# By hand. The policy gives both words 1/2, the teacher (of the second reply the base, without a
# hint) gives the first 1/4 and the second 3/4. The hinted reply said the second word and was
# sampled with 1/8, so its weight (1/2) / (1/8) = 4 is cut to 2; the liked one said the first.
def by_hand(advantage: float | None, config: TrainConfig) -> tuple[float, Tensor]:
    """The loss of the two replies, and its slope by the logits of the policy, (2, 2)."""
    words = {"prompt_ids": (0,), "teacher_prompt_ids": (0,)}
    hinted = Item(sample_id=1, response_ids=(1,), is_hinted=True, advantage=advantage,
                  rollout_logprobs=(log(1 / 8),), **words)  # fmt: skip
    liked = Item(sample_id=2, response_ids=(0,), is_hinted=False, advantage=0.8,
                 rollout_logprobs=(log(1 / 2),), **words)  # fmt: skip
    policy_NV = torch.zeros(2, 2, requires_grad=True)
    teacher_NV = torch.tensor([[log(1 / 4), log(3 / 4)]] * 2)
    rows, counts = tokens_of([hinted, liked], "cpu", config), counts_of([hinted, liked], config)
    loss = loss_on(policy_NV, teacher_NV, rows, config, counts, StepSums())
    (slope_NV,) = torch.autograd.grad(loss, policy_NV)
    return float(loss.detach()), slope_NV


GAIN = log(3 / 2)  # log 3/4 - log 1/2 of the hinted word
K3 = log(2) - 1 / 2  # e^d - d - 1 at d = log 1/4 - log 1/2
TOWARD_SECOND = torch.tensor([-0.5, 0.5])  # d log pi(second) / d logits; of the first its negative
HELD = (1 - (1 / 4) / (1 / 2)) * -TOWARD_SECOND  # d k3 / d logits of the liked reply


def close(found: tuple[float, Tensor], loss: float, hinted: Tensor, liked: Tensor) -> None:
    assert found[0] == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(found[1], torch.stack([hinted, liked]), rtol=1e-5, atol=1e-7)


def test_a_token_is_pushed_by_the_teachers_log_ratio() -> None:
    config = TrainConfig(method="opd", estimator="token", anchor_weight=0.2)
    close(
        by_hand(None, config),
        -(2 * GAIN + 0.8) / 2 + 0.2 * K3 / 2,  # both parts: mean over the step's two words
        -2 * GAIN / 2 * TOWARD_SECOND,
        0.8 / 2 * TOWARD_SECOND + 0.2 / 2 * HELD,
    )


def test_combined_advantages_are_summed_before_the_surrogate() -> None:
    config = TrainConfig(method="combine", combine="advantages", reward_weight=0.5,
                         distill_weight=2.0, anchor_weight=0.2)  # fmt: skip
    summed = 0.5 * -0.5 + 2 * GAIN
    close(
        by_hand(-0.5, config),
        -(2 * summed + 0.5 * 0.8) / 2 + 0.2 * K3 / 2,
        -2 * summed / 2 * TOWARD_SECOND,
        0.5 * 0.8 / 2 * TOWARD_SECOND + 0.2 / 2 * HELD,
    )


def test_combined_losses_are_divided_by_their_own_counts() -> None:
    config = TrainConfig(method="combine", reward_weight=0.5, distill_weight=2.0, anchor_weight=0.2)
    kl = log(4 / 3) / 2  # 1/2 log 2 + 1/2 log 2/3, over one hinted word
    falls = torch.tensor([log(2) - kl, log(2 / 3) - kl]) / 2  # pi (log pi/q - KL)
    close(
        by_hand(-0.5, config),
        # two rewarded words, one anchored; the first is pushed away: its weight is min(2, 1)
        2 * kl - 0.5 * (1 * -0.5 + 0.8) / 2 + 0.2 * K3,
        2 * falls + 0.5 * 1 * 0.5 / 2 * TOWARD_SECOND,
        0.5 * 0.8 / 2 * TOWARD_SECOND + 0.2 * HELD,
    )


def test_the_surrogate_and_its_weight_are_of_the_temperature_of_sampling() -> None:
    """At T = 1/2 logits (log 3, 0) say the first word in 9/10, at T = 1 in 3/4."""
    liked = Item(sample_id=1, prompt_ids=(0,), teacher_prompt_ids=(0,), response_ids=(0,),
                 is_hinted=False, advantage=0.8, temperature=0.5,
                 rollout_logprobs=(log(9 / 10),))  # fmt: skip
    config = TrainConfig(method="binary", anchor_weight=0.0)
    policy_NV = torch.tensor([[log(3), 0.0]], requires_grad=True)
    rows, counts = tokens_of([liked], "cpu", config), counts_of([liked], config)
    loss = loss_on(policy_NV, policy_NV.detach(), rows, config, counts, StepSums())
    assert float(loss.detach()) == pytest.approx(-0.8, rel=1e-5)  # ratio and weight are 1
    (slope_NV,) = torch.autograd.grad(loss, policy_NV)
    # d log pi(first) / d logits = (1 - 9/10, -1/10) / T
    torch.testing.assert_close(slope_NV, -0.8 * torch.tensor([[0.2, -0.2]]), rtol=1e-5, atol=1e-7)


WORDS = {"sample_id": 1, "prompt_ids": (0,), "teacher_prompt_ids": (0,), "response_ids": (0,)}
HINTED = Item(is_hinted=True, **WORDS)  # type: ignore[arg-type]


def test_a_reply_that_was_sampled_greedily_leaves_the_thumbs_of_others_as_they_are() -> None:
    config = TrainConfig(method="combine")
    liked = Item(is_hinted=False, advantage=0.8, rollout_logprobs=(log(1 / 2),), **WORDS)  # type: ignore[arg-type]
    teacher_NV = torch.tensor([[log(1 / 4), log(3 / 4)]] * 2)
    slopes = []
    for temperature in (0.0, 1.0):
        items = [dataclasses.replace(HINTED, temperature=temperature), liked]
        policy_NV = torch.zeros(2, 2, requires_grad=True)
        rows, counts = tokens_of(items, "cpu", config), counts_of(items, config)
        loss = loss_on(policy_NV, teacher_NV, rows, config, counts, StepSums())
        slopes.append(torch.autograd.grad(loss, policy_NV)[0])
    assert torch.equal(*slopes)
    assert bool(slopes[0].any(dim=-1).all())


def test_micro_batches_add_up_with_the_effects_of_all_their_replies() -> None:
    one = StepSums(loss=0.5, kl=1.0, tokens=3, effects={1: (0.1, 0.2)})
    other = StepSums(loss=0.25, kl=2.0, tokens=4, effects={2: (0.3,)})
    wanted = StepSums(loss=0.75, kl=3.0, tokens=7, effects={1: (0.1, 0.2), 2: (0.3,)})
    assert one + other == wanted


def on_one(item: Item, policy: list[float], config: TrainConfig) -> tuple[float, Tensor]:
    """The loss of a one-word reply and its slope by the logits; the teacher says 1/4 and 3/4."""
    policy_NV = torch.tensor([policy], requires_grad=True)
    teacher_NV = torch.tensor([[log(1 / 4), log(3 / 4)]])
    rows, counts = tokens_of([item], "cpu", config), counts_of([item], config)
    loss = loss_on(policy_NV, teacher_NV, rows, config, counts, StepSums())
    (slope_NV,) = torch.autograd.grad(loss, policy_NV)
    return float(loss.detach()), slope_NV


# The policy says 3/4 and 1/4: to the student's likeliest word the teacher gives a third of it, to
# its own three times as much; log 3 is cut to C = 1.
@pytest.mark.parametrize(
    ("support", "loss", "slope"),
    [("student", 1.0, [1 / 4, -1 / 4]), ("teacher", -1.0, [3 / 4, -3 / 4])],
)
def test_the_likeliest_words_are_those_of_whom_a_job_names(
    support: str, loss: float, slope: list[float]
) -> None:
    config = TrainConfig(
        method="opd", estimator="topk", topk=1, topk_support=support, topk_clip=1.0
    )
    found = on_one(HINTED, [log(3), 0.0], config)
    assert found[0] == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(found[1], torch.tensor([slope]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_job_mixes_both_directions_of_the_kl_as_it_says(share: float) -> None:
    config = TrainConfig(method="opd", forward_share=share)
    loss, slope_NV = on_one(HINTED, [log(3), 0.0], config)
    assert loss == pytest.approx(log(3) / 2, rel=1e-5)  # either way
    reverse = 3 / 8 * log(3)  # pi (log pi/q - KL)
    forward_kl = 3 / 4 - 1 / 4  # pi - q
    pull = (1 - share) * reverse + share * forward_kl
    wanted = torch.tensor([[pull, -pull]])
    torch.testing.assert_close(slope_NV, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("ratio", "advantage", "trains"),
    [(1.27, 0.8, True), (1.29, 0.8, False), (0.81, -0.4, True), (0.79, -0.4, False)],
)
def test_a_job_clips_at_0_2_and_0_28(ratio: float, advantage: float, trains: bool) -> None:
    before = log(1 / 2 / ratio)
    rated = Item(is_hinted=False, advantage=advantage, rollout_logprobs=(before,),
                 proximal_logprobs=(before,), **WORDS)  # type: ignore[arg-type]  # fmt: skip
    _, slope_NV = on_one(rated, [0.0, 0.0], TrainConfig(method="binary", anchor_weight=0.0))
    wanted = -advantage * ratio * -TOWARD_SECOND if trains else torch.zeros(2)
    torch.testing.assert_close(slope_NV[0], wanted, rtol=1e-5, atol=1e-7)
