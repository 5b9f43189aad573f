"""Log-probs from logits. Tensors in, tensors out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def token_logprobs(
    logits_NV: Tensor, ids_N: Tensor, *, temperature: float | Tensor = 1.0
) -> Tensor:
    """log softmax(z / T)[y], in nats, fp32; z is the row that predicts y. Returns (N,).

    `temperature` is a number, or one per row (N,). Ratios to sampling log-probs need the
    temperature of sampling: raw log-probs at T = 0.7 are off by 0.22 nats on average.
    """
    logits_NV = logits_NV.float()
    if isinstance(temperature, Tensor):
        logits_NV = logits_NV / temperature.unsqueeze(-1)
    elif temperature != 1.0:  # else a walk over the vocabulary for nothing
        logits_NV = logits_NV / temperature
    return picked(torch.log_softmax(logits_NV, dim=-1), ids_N)


def picked(logprobs_NV: Tensor, ids_N: Tensor) -> Tensor:
    """Each row's log-prob of its word, (N,)."""
    return logprobs_NV.gather(-1, ids_N.unsqueeze(-1)).squeeze(-1)


def reverse_kl(policy_logits_NV: Tensor, teacher_logits_NV: Tensor) -> Tensor:
    """KL(pi || q) = sum_v pi(v) (log pi(v) - log q(v)) at T = 1, whole vocabulary; (N,) nats.

    Differentiable in both. OPD's token loss: SDPO, arXiv 2601.20802, eq. 1; MiniLLM, 2306.08543.
    """
    if policy_logits_NV.requires_grad and not teacher_logits_NV.requires_grad:
        kl_N: Tensor = _ReverseKL.apply(policy_logits_NV, teacher_logits_NV)  # type: ignore[no-untyped-call]
        return kl_N
    policy_NV = torch.log_softmax(policy_logits_NV.float(), dim=-1)
    teacher_NV = torch.log_softmax(teacher_logits_NV.float(), dim=-1)
    return (policy_NV.exp() * (policy_NV - teacher_NV)).sum(dim=-1)


class _ReverseKL(torch.autograd.Function):
    """The same in the policy alone, with one walk's memory: dKL/dz = pi (log pi - log q - KL)."""

    @staticmethod
    def forward(ctx: Any, policy_logits_NV: Tensor, teacher_logits_NV: Tensor) -> Tensor:
        policy_NV = torch.log_softmax(policy_logits_NV.float(), dim=-1)
        ratio_NV = policy_NV - torch.log_softmax(teacher_logits_NV.float(), dim=-1)
        policy_NV = policy_NV.exp_()
        kl_N = (policy_NV * ratio_NV).sum(dim=-1)
        ctx.save_for_backward(ratio_NV.sub_(kl_N.unsqueeze(-1)).mul_(policy_NV))
        ctx.dtype = policy_logits_NV.dtype
        return kl_N

    @staticmethod
    def backward(ctx: Any, *grads_N: Tensor) -> tuple[Tensor, None]:
        (grad_N,), (slope_NV,) = grads_N, ctx.saved_tensors
        return (slope_NV * grad_N.unsqueeze(-1)).to(ctx.dtype), None


def entropy(logprobs_NV: Tensor) -> Tensor:
    """H = -sum_v pi(v) log pi(v), (N,) nats."""
    return -(logprobs_NV.exp() * logprobs_NV).sum(dim=-1)
