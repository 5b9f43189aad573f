"""Every loss against sums done by hand."""

from __future__ import annotations

from math import exp, inf, log, nan

import pytest
import torch
from torch import Tensor

from training.logprobs import reverse_kl, token_logprobs
from training.losses import (
    anchor_loss,
    clipped_policy_loss,
    distillation_loss,
    kto_loss,
    masked_sum,
    topk_distillation_loss,
)

CLIPS = {"clip_low": 0.2, "clip_high": 0.28, "importance_cap": 2.0, "negative_importance_cap": 1.0}


def logs(*probs: float) -> Tensor:
    return torch.tensor([log(p) for p in probs])


def close(value: Tensor, expected: float) -> None:
    assert float(value.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_token_logprobs_picks_each_rows_own_token() -> None:
    logits = torch.tensor(
        [[0.0, log(3.0)], [log(4.0), 0.0]]
    )  # probabilities (1/4, 3/4), (4/5, 1/5)
    picked = token_logprobs(logits, torch.tensor([1, 1]))
    close(picked[0], log(0.75))
    close(picked[1], log(0.2))


def test_token_logprobs_divides_by_the_temperature_before_the_softmax() -> None:
    logits = torch.tensor([[0.0, log(3.0)]])
    # T = 1/2 squares the odds: 1 : 9
    close(token_logprobs(logits, torch.tensor([1]), temperature=0.5)[0], log(0.9))


def test_token_logprobs_takes_one_temperature_per_row() -> None:
    logits = torch.tensor([[0.0, log(3.0)], [0.0, log(3.0)]])
    picked = token_logprobs(logits, torch.tensor([1, 1]), temperature=torch.tensor([1.0, 0.5]))
    close(picked[0], log(0.75))
    close(picked[1], log(0.9))


def test_reverse_kl_weighs_with_the_policy() -> None:
    # pi = (1/2, 1/2), q = (1/4, 3/4):  1/2 ln 2 + 1/2 ln(2/3) = 1/2 ln(4/3)
    close(reverse_kl(logs(0.5, 0.5)[None], logs(0.25, 0.75)[None])[0], 0.5 * log(4 / 3))
    # the other way round: 1/4 ln(1/2) + 3/4 ln(3/2)
    close(
        reverse_kl(logs(0.25, 0.75)[None], logs(0.5, 0.5)[None])[0],
        0.25 * log(0.5) + 0.75 * log(1.5),
    )


def test_the_reverse_kls_slope_is_the_policys_times_what_is_left() -> None:
    """pi = (1/2, 1/2), q = (1/4, 3/4): KL = ln(4/3) / 2, and log pi/q = ln 2 and ln(2/3)."""
    policy = logs(0.5, 0.5)[None].requires_grad_()
    teacher = logs(0.25, 0.75)[None]
    (slope,) = torch.autograd.grad(reverse_kl(policy, teacher).sum(), policy)
    kl = 0.5 * log(4 / 3)
    close(slope[0, 0], 0.5 * (log(2) - kl))
    close(slope[0, 1], 0.5 * (log(2 / 3) - kl))
    torch.manual_seed(0)
    many, others = torch.randn(5, 40, requires_grad=True), torch.randn(5, 40)
    weights = torch.rand(5)
    (alone,) = torch.autograd.grad((weights * reverse_kl(many, others)).sum(), many)
    both = reverse_kl(many, others.requires_grad_())  # step by step, where both learn
    (wanted,) = torch.autograd.grad((weights * both).sum(), many)
    torch.testing.assert_close(alone, wanted, rtol=1e-5, atol=1e-7)


def test_reverse_kl_does_not_depend_on_the_logits_level() -> None:
    close(reverse_kl(logs(0.5, 0.5)[None] + 7, logs(0.25, 0.75)[None] - 3)[0], 0.5 * log(4 / 3))


def test_masked_sum_ignores_what_is_masked_even_infinities() -> None:
    values = torch.tensor([1.0, inf, 2.5, nan])
    close(masked_sum(values, torch.tensor([True, False, True, False])), 3.5)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        # ratios 2 and 1. A = +1: min(2, 1.28) + min(1, 1) = 2.28; minus the mean: -1.14
        (1.0, -1.14),
        # A = -1: min(-2, -1.28) + min(-1, -1) = -3; minus the mean: 1.5
        (-1.0, 1.5),
    ],
)
def test_the_clip_binds_gains_and_not_losses(advantage: float, expected: float) -> None:
    proximal = logs(0.25, 0.5)
    loss = clipped_policy_loss(
        logs(0.5, 0.5),
        proximal,
        proximal,
        torch.full((2,), advantage),
        torch.tensor([True, True]),
        tokens=2,
        **CLIPS,
    )
    close(loss, expected)


def test_a_small_ratio_is_clipped_from_below_for_negative_advantages() -> None:
    proximal = logs(0.5)
    # ratio 1/2, A = -1: min(-0.5, -0.8) = -0.8
    loss = clipped_policy_loss(
        logs(0.25),
        proximal,
        proximal,
        torch.tensor([-1.0]),
        torch.tensor([True]),
        tokens=1,
        **CLIPS,
    )
    close(loss, 0.8)


def test_the_importance_weight_is_truncated_and_carries_no_gradient() -> None:
    policy = logs(0.8, 0.3).requires_grad_()
    loss = clipped_policy_loss(
        policy,
        policy.detach(),
        logs(0.1, 0.2),  # weights min(8, 2) = 2 and 1.5
        torch.tensor([1.0, 1.0]),
        torch.tensor([True, True]),
        tokens=2,
        **CLIPS,
    )
    close(loss, -(2 + 1.5) / 2)
    loss.backward()  # type: ignore[no-untyped-call]
    # d(-w r A / n) / d log pi = -w A r / n with r = 1
    assert policy.grad is not None
    close(policy.grad[0], -1.0)
    close(policy.grad[1], -0.75)


def test_a_push_away_has_a_tighter_cap() -> None:
    policy = logs(0.8, 0.3)
    loss = clipped_policy_loss(
        policy,
        policy,
        logs(0.1, 0.6),  # weights min(8, 1) = 1 and 1/2
        torch.tensor([-1.0, -1.0]),
        torch.tensor([True, True]),
        tokens=2,
        **CLIPS,
    )
    close(loss, (1 + 0.5) / 2)


def test_nan_in_padding_reaches_neither_the_policy_loss_nor_its_gradient() -> None:
    policy = torch.tensor([log(0.5), nan], requires_grad=True)
    loss = clipped_policy_loss(
        policy,
        torch.tensor([log(0.5), nan]),
        torch.tensor([log(0.5), nan]),
        torch.tensor([1.0, nan]),
        torch.tensor([True, False]),
        tokens=1,
        **CLIPS,
    )
    close(loss, -1.0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert policy.grad is not None
    assert policy.grad.tolist() == [-1.0, 0.0]


def test_nan_in_padding_reaches_neither_the_distillation_nor_its_gradient() -> None:
    rows = torch.stack([logs(0.5, 0.5), torch.tensor([nan, inf])]).requires_grad_()
    teacher = torch.stack([logs(0.25, 0.75), torch.tensor([nan, nan])])
    mask = torch.tensor([True, False])
    loss = distillation_loss(rows, teacher, mask, forward_share=0.5, tokens=1)
    # 0.5 (1/2 ln(4/3)) + 0.5 (1/4 ln(1/2) + 3/4 ln(3/2))
    close(loss, 0.25 * log(4 / 3) + 0.125 * log(0.5) + 0.375 * log(1.5))
    loss.backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    assert bool(torch.isfinite(rows.grad).all())
    assert rows.grad[1].tolist() == [0.0, 0.0]


def test_the_distillation_gradient_is_that_of_the_reverse_kl() -> None:
    rows = logs(0.5, 0.5)[None].requires_grad_()
    distillation_loss(
        rows, logs(0.25, 0.75)[None], torch.tensor([True]), forward_share=0.0, tokens=4
    ).backward()  # type: ignore[no-untyped-call]
    # dKL/dz_v = pi_v (ln pi_v/q_v - KL); KL = 1/2 ln(4/3); divided by 4 tokens
    kl = 0.5 * log(4 / 3)
    assert rows.grad is not None
    close(rows.grad[0, 0], 0.5 * (log(2) - kl) / 4)
    close(rows.grad[0, 1], 0.5 * (log(2 / 3) - kl) / 4)


def test_the_share_is_that_of_the_forward_kl() -> None:
    rows, teacher = logs(0.5, 0.5)[None], logs(0.25, 0.75)[None]
    loss = distillation_loss(rows, teacher, torch.tensor([True]), forward_share=0.25, tokens=1)
    # 3/4 KL(pi || q) + 1/4 KL(q || pi); KL(pi || q) = 1/2 ln 2 + 1/2 ln(2/3)
    reverse, forward = 0.5 * log(4 / 3), 0.25 * log(0.5) + 0.75 * log(1.5)
    close(loss, 0.75 * reverse + 0.25 * forward)


def test_a_step_is_the_mean_over_its_tokens_however_it_is_cut() -> None:
    rows, teacher = torch.stack([logs(0.5, 0.5)] * 2), torch.stack([logs(0.25, 0.75)] * 2)
    both, one = torch.tensor([True, True]), torch.tensor([True])
    whole = distillation_loss(rows, teacher, both, forward_share=0.0, tokens=2)
    halves = [
        distillation_loss(rows[i : i + 1], teacher[i : i + 1], one, forward_share=0.0, tokens=2)
        for i in range(2)
    ]
    close(whole, float(halves[0] + halves[1]))
    close(whole, 0.5 * log(4 / 3))


def test_a_token_may_have_a_divisor_of_its_own_as_in_a_mean_over_replies() -> None:
    # Two replies, of three tokens with A = 1 and of one with A = -1; every ratio is 1:
    # over tokens -(1 + 1 + 1 - 1) / 4 = -1/2, over replies -((1 + 1 + 1) / 3 - 1 / 1) / 2 = 0
    sampled, mask = logs(0.5, 0.4, 0.3, 0.2), torch.tensor([True] * 4)
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0])
    given = (sampled, sampled, sampled, advantages, mask)
    of_replies = 2 * torch.tensor([3, 3, 3, 1])  # B T_i
    close(clipped_policy_loss(*given, tokens=4, **CLIPS), -0.5)
    close(clipped_policy_loss(*given, tokens=of_replies, **CLIPS), 0.0)
    # pi = (1/2, 1/2) against q = (1/4, 3/4) at the first three, the same as it at the last:
    # over tokens 3/4 KL, over replies (KL + 0) / 2
    policy, kl = logs(0.5, 0.5).repeat(4, 1), 0.5 * log(4 / 3)
    teacher = torch.stack([*[logs(0.25, 0.75)] * 3, logs(0.5, 0.5)])
    for tokens, expected in ((4, 0.75 * kl), (of_replies, 0.5 * kl)):
        close(distillation_loss(policy, teacher, mask, forward_share=0.0, tokens=tokens), expected)


def test_the_anchor_is_k3_of_the_sampled_words() -> None:
    policy, base = logs(0.5, 0.2).requires_grad_(), logs(0.25, 0.4)
    mask = torch.tensor([True, True])
    # k3 = r - ln r - 1 with r = pi_0/pi: 1/2 + ln 2 - 1 and 2 - ln 2 - 1, which sum to 1/2
    loss = anchor_loss(policy, base, mask, tokens=2)
    close(loss, 0.25)
    loss.backward()  # type: ignore[no-untyped-call]
    # d k3 / d log pi = 1 - r
    assert policy.grad is not None
    close(policy.grad[0], 0.25)
    close(policy.grad[1], -0.5)
    close(anchor_loss(policy, base, torch.tensor([True, False]), tokens=1), log(2) - 0.5)
    close(anchor_loss(base, base, mask, tokens=2), 0.0)


def test_nan_in_padding_stays_out_of_the_anchor_and_its_gradient() -> None:
    policy = torch.tensor([log(0.5), nan], requires_grad=True)
    mask = torch.tensor([True, False])
    loss = anchor_loss(policy, torch.tensor([log(0.25), nan]), mask, tokens=1)
    loss.backward()  # type: ignore[no-untyped-call]
    assert policy.grad is not None
    close(policy.grad[0], 0.5)
    assert float(policy.grad[1]) == 0.0


def topk(policy: Tensor, teacher: Tensor, **more: object) -> Tensor:
    settings = {"k": 2, "support": "student", "clip": 1.0, "tokens": 1, **more}
    mask = torch.tensor([True])
    return topk_distillation_loss(policy[None], teacher[None], mask, **settings)  # type: ignore[arg-type]


def test_topk_weighs_clipped_log_ratios_by_the_students_share_of_the_support() -> None:
    policy, teacher = logs(0.6, 0.2, 0.2 - 1e-6, 1e-6), logs(0.3, 0.6, 0.1 - 1e-6, 1e-6)
    # S = {0, 1}, w = (3/4, 1/4), ln(0.3/0.6) = -ln 2, ln(0.6/0.2) = ln 3 -> 1; rho = 1:
    # L = -(3/4 (-ln 2) + 1/4)
    close(topk(policy, teacher), 0.75 * log(2) - 0.25)
    # with C = 2 the second is ln 3
    close(topk(policy, teacher, clip=2.0), 0.75 * log(2) - 0.25 * log(3))


def test_topk_on_the_teachers_support() -> None:
    policy, teacher = logs(0.6, 0.2, 0.2 - 1e-6, 1e-6), logs(0.1 - 1e-6, 0.6, 0.3, 1e-6)
    # S = {1, 2}, w = (1/2, 1/2) within 3e-6, ln 3 -> 1 and ln(3/2)
    loss = topk(policy, teacher, support="teacher")
    assert float(loss) == pytest.approx(-(0.5 + 0.5 * log(1.5)), rel=1e-5)


def test_topks_gradient_is_the_weighted_advantage_of_each_word() -> None:
    policy = logs(0.5, 0.25, 0.25).requires_grad_()
    topk(policy, logs(0.25, 0.5, 0.25), k=3).backward()  # type: ignore[no-untyped-call]
    # w = pi: A = (1/2 (-ln 2), 1/4 ln 2, 0). dL/d log pi_v = -A_v; through the softmax
    # dL/dz_v = -A_v + pi_v sum A, sum A = -1/4 ln 2
    assert policy.grad is not None
    close(policy.grad[0], 0.5 * log(2) - 0.125 * log(2))
    close(policy.grad[1], -0.25 * log(2) - 0.0625 * log(2))
    close(policy.grad[2], -0.0625 * log(2))


def test_nan_in_padding_stays_out_of_topk_and_its_gradient() -> None:
    rows = torch.stack([logs(0.6, 0.3, 0.1), torch.tensor([nan, inf, nan])]).requires_grad_()
    teacher = torch.stack([logs(0.3, 0.6, 0.1), torch.tensor([nan, nan, nan])])
    settings = {"k": 2, "support": "student", "clip": 1.0, "tokens": 1}
    mask = torch.tensor([True, False])
    topk_distillation_loss(rows, teacher, mask, **settings).backward()  # type: ignore
    assert rows.grad is not None
    assert bool(torch.isfinite(rows.grad).all())
    assert rows.grad[1].tolist() == [0.0, 0.0, 0.0]


def sigma(x: float) -> float:
    return 1 / (1 + exp(-x))


def test_kto_wants_liked_replies_above_the_reference_and_disliked_below() -> None:
    ratios = torch.tensor([2.0, -1.0], requires_grad=True)
    loss = kto_loss(
        ratios,
        torch.tensor([True, False]),
        reference=0.5,
        beta=0.4,
        liked_weight=1.0,
        disliked_weight=0.5,
    )
    # liked: 1 - sigma(0.4 (2 - 0.5)); disliked: 1 - sigma(0.4 (0.5 + 1)), both sigma(0.6)
    s = sigma(0.6)
    close(loss, ((1 - s) + 0.5 * (1 - s)) / 2)
    loss.backward()  # type: ignore[no-untyped-call]
    assert ratios.grad is not None
    close(ratios.grad[0], -0.4 * s * (1 - s) / 2)
    close(ratios.grad[1], 0.5 * 0.4 * s * (1 - s) / 2)


def test_apo_zero_unpaired_is_kto_without_a_reference() -> None:
    ratios = torch.tensor([3.0, 1.0], requires_grad=True)
    loss = kto_loss(
        ratios,
        torch.tensor([True, False]),
        reference=0.0,
        beta=0.1,
        liked_weight=1.0,
        disliked_weight=1.0,
    )
    # 1 - sigma(0.1 * 3) where liked, 1 - sigma(-0.1 * 1) = sigma(0.1) where not
    liked, disliked = sigma(0.3), sigma(0.1)
    close(loss, ((1 - liked) + disliked) / 2)
    loss.backward()  # type: ignore[no-untyped-call]
    assert ratios.grad is not None
    close(ratios.grad[0], -0.1 * liked * (1 - liked) / 2)
    close(ratios.grad[1], 0.1 * disliked * (1 - disliked) / 2)
