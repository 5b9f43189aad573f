"""Losses. Tensors in, tensors out; no model, no config, no I/O.

Shapes: (N,) one entry per response token of a micro-batch, (N, V) with the vocabulary. Losses are
sums over tokens, each divided by its `tokens`: n, the number of response tokens in the whole
optimizer step, or (N,) of each token's own divisor. With B T_i for the tokens of a reply that is
T_i long among B, the sum is the mean over replies of each one's mean. Either way micro-batches add
up to the mean over the step, however they are cut. KTO alone weighs whole replies: (B,), one entry
per reply.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.logprobs import reverse_kl


def masked_sum(values_N: Tensor, mask_N: Tensor) -> Tensor:
    """sum_t m_t x_t, with what is masked out replaced before the sum: NaN there does no harm."""
    return torch.where(mask_N, values_N, torch.zeros_like(values_N)).sum()


def _masked_rows(values_NV: Tensor, mask_N: Tensor) -> Tensor:
    """What is masked out replaced by 0, as above; where nothing is, no walk over the vocabulary."""
    if bool(mask_N.all()):
        return values_NV
    return torch.where(mask_N.unsqueeze(-1), values_NV, torch.zeros_like(values_NV))


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
    negative_importance_cap: float,
    tokens: int | Tensor,
) -> Tensor:
    """L = -1/n sum_t w_t min(r_t A_t, clip(r_t, 1 - e_low, 1 + e_high) A_t), a scalar.

    r_t = pi(y_t) / pi_prox(y_t) and w_t = min(pi_prox(y_t) / mu(y_t), C), no gradient through w:
    the clip bounds the step, the truncated weight corrects for an older version having sampled.
    C is `importance_cap`, and `negative_importance_cap` where A_t < 0.
    PPO, arXiv 1707.06347, eq. 7; decoupled behaviour policy, arXiv 2110.00641, eq. 2; truncation
    as in IMPALA, arXiv 1802.01561.
    """
    zero_N = torch.zeros_like(policy_logprobs_N)
    log_ratio_N = torch.where(mask_N, policy_logprobs_N - proximal_logprobs_N.detach(), zero_N)
    log_weight_N = torch.where(mask_N, (proximal_logprobs_N - rollout_logprobs_N).detach(), zero_N)
    advantages_N = torch.where(mask_N, advantages_N, zero_N)
    ratio_N = log_ratio_N.exp()
    cap_N = torch.where(advantages_N < 0, negative_importance_cap, importance_cap)
    weight_N = torch.minimum(log_weight_N.exp(), cap_N)
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    surrogate_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    return -masked_sum(weight_N * surrogate_N / tokens, mask_N)


def clipped(
    policy_logprobs_N: Tensor,
    proximal_logprobs_N: Tensor,
    advantages_N: Tensor,
    mask_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """How many tokens `clipped_policy_loss` takes no gradient from, a scalar: r_t beyond
    1 + e_high where A_t > 0, or below 1 - e_low where A_t < 0."""
    ratio_N = torch.where(mask_N, policy_logprobs_N - proximal_logprobs_N, 0.0).exp()
    beyond_N = (ratio_N > 1 + clip_high) & (advantages_N > 0)
    below_N = (ratio_N < 1 - clip_low) & (advantages_N < 0)
    return (mask_N & (beyond_N | below_N)).sum()


def distillation_loss(
    policy_logits_NV: Tensor,
    teacher_logits_NV: Tensor,
    mask_N: Tensor,
    *,
    forward_share: float,
    tokens: int | Tensor,
) -> Tensor:
    """L = 1/n sum_t (1 - f) KL(pi || q) + f KL(q || pi), a scalar; q is the teacher, no gradient.

    Masked rows are replaced before the softmax, so that NaN there reaches no gradient.
    Reverse KL: SDPO, arXiv 2601.20802; the mixture: GKD, arXiv 2306.13649, eq. 4 with a plain sum.
    """
    policy_NV = _masked_rows(policy_logits_NV, mask_N)
    teacher_NV = _masked_rows(teacher_logits_NV.detach(), mask_N)
    loss_N = reverse_kl(policy_NV, teacher_NV)
    if forward_share:
        forward_N = reverse_kl(teacher_NV, policy_NV)
        loss_N = (1 - forward_share) * loss_N + forward_share * forward_N
    return masked_sum(loss_N / tokens, mask_N)


def topk_distillation_loss(
    policy_logits_NV: Tensor,
    teacher_logits_NV: Tensor,
    mask_N: Tensor,
    *,
    k: int,
    support: str,
    clip: float,
    tokens: int | Tensor,
) -> Tensor:
    """L = -1/n sum_t sum_{v in S_t} A_v rho_v.

    A_v = w_v clip(log q(v) - log pi(v), -C, C) with w = softmax over S of log pi, both without
    gradient; rho_v = pi(v) / pi_prox(v), not renormalised on S. S: the k words that the policy
    ("student") or the teacher finds most likely. OpenClaw-RL's second generation, 2603.10165 v2.
    The policy before the step is the proximal one: rho = 1 in value, and its gradient counts; the
    clip of rho that is beside it there never acts, and is left out.
    """
    policy_NV = torch.log_softmax(_masked_rows(policy_logits_NV, mask_N).float(), dim=-1)
    teacher_NV = _masked_rows(teacher_logits_NV.detach(), mask_N)
    teacher_NV = torch.log_softmax(teacher_NV.float(), dim=-1)
    chosen_NV = policy_NV.detach() if support == "student" else teacher_NV
    ids_NK = chosen_NV.topk(min(k, chosen_NV.shape[-1]), dim=-1).indices
    policy_NK, teacher_NK = policy_NV.gather(-1, ids_NK), teacher_NV.gather(-1, ids_NK)
    proximal_NK = policy_NK.detach()
    weight_NK = torch.softmax(proximal_NK, dim=-1)
    advantages_NK = weight_NK * (teacher_NK - proximal_NK).clamp(-clip, clip)
    loss_NK = -advantages_NK * (policy_NK - proximal_NK).exp()
    return masked_sum(loss_NK.sum(dim=-1) / tokens, mask_N)


def anchor_loss(
    policy_logprobs_N: Tensor, base_logprobs_N: Tensor, mask_N: Tensor, *, tokens: int | Tensor
) -> Tensor:
    """L = 1/n sum_t k3_t, k3 = exp(d) - d - 1 with d = log pi_0(y_t) - log pi(y_t), a scalar.

    The KL penalty of RLHF (arXiv 1909.08593, eq. 2) to the base, by the estimator that is never
    negative (Schulman 2020, "Approximating KL divergence", k3; GRPO, arXiv 2402.03300, eq. 4).
    Its value is KL(pi || pi_0) on the policy's own words; its gradient, (1 - pi_0/pi) times that of
    log pi, is there KL(pi_0 || pi)'s. Near the base, where it is to hold the policy, both agree.
    """
    zero_N = torch.zeros_like(policy_logprobs_N)
    difference_N = torch.where(mask_N, base_logprobs_N.detach() - policy_logprobs_N, zero_N)
    return masked_sum((difference_N.exp() - difference_N - 1) / tokens, mask_N)


def kto_loss(
    log_ratio_B: Tensor,
    is_liked_B: Tensor,
    *,
    reference: float,
    beta: float,
    liked_weight: float,
    disliked_weight: float,
) -> Tensor:
    """L = mean_i w_i (1 - sigma(+-beta (r_i - z))), + where the reply was liked; a scalar.

    r_i = sum_t log pi(y_t) - log pi_0(y_t) of a whole reply (as much of it as trains), z
    (`reference`) the KL that the step is at. KTO, arXiv 2402.01306, eq. 8; with z = 0 it is
    APO-zero-unpaired (arXiv 2408.06266).
    """
    gain_B = beta * (log_ratio_B - reference)
    liked_B = liked_weight * (1 - torch.sigmoid(gain_B))
    disliked_B = disliked_weight * (1 - torch.sigmoid(-gain_B))
    return torch.where(is_liked_B, liked_B, disliked_B).mean()
