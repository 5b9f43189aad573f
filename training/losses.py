"""Losses. Tensors in, tensors out; no model, no config, no I/O.

Shapes: (N,) one entry per response token of a micro-batch, (N, V) with the vocabulary. Losses are
sums over tokens divided by `tokens`, the number of response tokens in the whole optimizer step:
so micro-batches add up to the mean over the step, however they are cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.logprobs import reverse_kl


def masked_sum(values_N: Tensor, mask_N: Tensor) -> Tensor:
    """sum_t m_t x_t, with what is masked out replaced before the sum: NaN there does no harm."""
    return torch.where(mask_N, values_N, torch.zeros_like(values_N)).sum()


def clipped_policy_loss(
    policy_logprobs_N: Tensor,
    proximal_logprobs_N: Tensor,
    rollout_logprobs_N: Tensor,
    advantages_N: Tensor,
    mask_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    importance_cap: float,
    tokens: int,
) -> Tensor:
    """L = -1/n sum_t w_t min(r_t A_t, clip(r_t, 1 - e_low, 1 + e_high) A_t), a scalar.

    r_t = pi(y_t) / pi_prox(y_t) and w_t = min(pi_prox(y_t) / mu(y_t), C), no gradient through w:
    the clip bounds the step, the truncated weight corrects for an older version having sampled.
    PPO, arXiv 1707.06347, eq. 7; decoupled behaviour policy, arXiv 2110.00641, eq. 2; truncation
    as in IMPALA, arXiv 1802.01561.
    """
    zero_N = torch.zeros_like(policy_logprobs_N)
    log_ratio_N = torch.where(mask_N, policy_logprobs_N - proximal_logprobs_N.detach(), zero_N)
    log_weight_N = torch.where(mask_N, (proximal_logprobs_N - rollout_logprobs_N).detach(), zero_N)
    advantages_N = torch.where(mask_N, advantages_N, zero_N)
    ratio_N = log_ratio_N.exp()
    weight_N = log_weight_N.exp().clamp(max=importance_cap)
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    surrogate_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    return -masked_sum(weight_N * surrogate_N, mask_N) / tokens


def distillation_loss(
    policy_logits_NV: Tensor,
    teacher_logits_NV: Tensor,
    mask_N: Tensor,
    *,
    forward_share: float,
    tokens: int,
) -> Tensor:
    """L = 1/n sum_t (1 - f) KL(pi || q) + f KL(q || pi), a scalar; q is the teacher, no gradient.

    Masked rows are replaced before the softmax, so that NaN there reaches no gradient.
    Reverse KL: SDPO, arXiv 2601.20802; the mixture: GKD, arXiv 2306.13649, eq. 4 with a plain sum.
    """
    row_mask_N1 = mask_N.unsqueeze(-1)
    zero_NV = torch.zeros_like(policy_logits_NV)
    policy_NV = torch.where(row_mask_N1, policy_logits_NV, zero_NV)
    teacher_NV = torch.where(row_mask_N1, teacher_logits_NV.detach(), zero_NV)
    loss_N = reverse_kl(policy_NV, teacher_NV)
    if forward_share:
        forward_N = reverse_kl(teacher_NV, policy_NV)
        loss_N = (1 - forward_share) * loss_N + forward_share * forward_N
    return masked_sum(loss_N, mask_N) / tokens


def anchor_loss(
    policy_logits_NV: Tensor, base_logits_NV: Tensor, mask_N: Tensor, *, tokens: int
) -> Tensor:
    """L = 1/n sum_t KL(pi || base) on replies that train by reward, a scalar.

    The KL penalty of RLHF (arXiv 1909.08593, eq. 2), computed exactly instead of sampled.
    """
    return distillation_loss(
        policy_logits_NV, base_logits_NV, mask_N, forward_share=0.0, tokens=tokens
    )
