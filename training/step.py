"""The loss of one micro-batch and its gradient. The only place where losses meet the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import Tensor

from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.forward import backward_in_chunks, logits, response_hidden
from training.logprobs import reverse_kl, token_logprobs
from training.losses import anchor_loss, clipped_policy_loss, distillation_loss, masked_sum


@dataclass(frozen=True, slots=True)
class StepSums:
    """What micro-batches add up to: the loss, the summed KL under hints, over how many tokens."""

    loss: float = 0.0
    kl: float = 0.0
    hinted_tokens: int = 0

    def __add__(self, other: StepSums) -> StepSums:
        return StepSums(
            self.loss + other.loss,
            self.kl + other.kl,
            self.hinted_tokens + other.hinted_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """A micro-batch's response tokens, row by row, (N,) each. NaN where there is no number."""

    targets_N: Tensor
    hinted_N: Tensor
    rewarded_N: Tensor
    temperature_N: Tensor
    advantages_N: Tensor
    rollout_logprobs_N: Tensor

    def part(self, chunk: slice) -> _Tokens:
        return _Tokens(
            targets_N=self.targets_N[chunk],
            hinted_N=self.hinted_N[chunk],
            rewarded_N=self.rewarded_N[chunk],
            temperature_N=self.temperature_N[chunk],
            advantages_N=self.advantages_N[chunk],
            rollout_logprobs_N=self.rollout_logprobs_N[chunk],
        )


def group_backward(
    base: Base,
    model: PeftModel,
    group: Sequence[Item],
    teacher_NH: Tensor,
    *,
    config: TrainConfig,
    tokens: int,
) -> StepSums:
    """Add a micro-batch's gradient to the adapter's. `tokens`: response tokens of the step."""
    rows = _tokens(group, base.device)
    kl = 0.0

    def loss_of(hidden_NH: Tensor, chunk: slice) -> Tensor:
        nonlocal kl
        part = rows.part(chunk)
        policy_logits_NV = logits(base, hidden_NH)
        with torch.no_grad():
            teacher_logits_NV = logits(base, teacher_NH[chunk])
        loss, distilled = _loss(policy_logits_NV, teacher_logits_NV, part, config, tokens)
        if config.forward_share == 0:
            kl += float(distilled.detach()) * tokens
        else:
            with torch.no_grad():
                kl_N = reverse_kl(policy_logits_NV, teacher_logits_NV)
            kl += float(masked_sum(kl_N, part.hinted_N))
        return loss

    hidden_NH = response_hidden(base, model, [(i.prompt_ids, i.response_ids) for i in group])
    loss = backward_in_chunks(hidden_NH, loss_of)
    return StepSums(loss=loss, kl=kl, hinted_tokens=int(rows.hinted_N.sum()))


def _loss(
    policy_logits_NV: Tensor,
    teacher_logits_NV: Tensor,
    part: _Tokens,
    config: TrainConfig,
    tokens: int,
) -> tuple[Tensor, Tensor]:
    """(L, L_distill): L = L_distill(hinted) + w_r L_clip(rewarded) + w_a L_anchor(not hinted)."""
    distilled = distillation_loss(
        policy_logits_NV,
        teacher_logits_NV,
        part.hinted_N,
        forward_share=config.forward_share,
        tokens=tokens,
    )
    if bool(part.hinted_N.all()):
        return distilled, distilled
    policy_logprobs_N = token_logprobs(
        policy_logits_NV, part.targets_N, temperature=part.temperature_N
    )
    # Each reply trains in one optimizer step, so the proximal policy is the policy before it.
    rewarded = config.reward_weight * clipped_policy_loss(
        policy_logprobs_N,
        policy_logprobs_N.detach(),
        part.rollout_logprobs_N,
        part.advantages_N,
        part.rewarded_N,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        importance_cap=config.importance_cap,
        tokens=tokens,
    )
    anchored = config.anchor_weight * anchor_loss(
        policy_logits_NV, teacher_logits_NV, ~part.hinted_N, tokens=tokens
    )
    return distilled + rewarded + anchored, distilled


def _tokens(group: Sequence[Item], device: str) -> _Tokens:
    def spread(values: Sequence[float]) -> Tensor:
        pairs = zip(values, group, strict=True)
        return torch.tensor([v for v, item in pairs for _ in item.response_ids], device=device)

    logprobs = [p for i in group for p in (i.rollout_logprobs or [math.nan] * len(i.response_ids))]
    advantages = [math.nan if item.advantage is None else item.advantage for item in group]
    return _Tokens(
        targets_N=torch.tensor([t for i in group for t in i.response_ids], device=device),
        hinted_N=spread([item.is_hinted for item in group]).bool(),
        rewarded_N=spread([item.advantage is not None for item in group]).bool(),
        temperature_N=spread([item.temperature if item.temperature > 0 else 1.0 for item in group]),
        advantages_N=spread(advantages),
        rollout_logprobs_N=torch.tensor(logprobs, device=device),
    )
