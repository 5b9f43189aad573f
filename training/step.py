"""The loss of one micro-batch and its gradient. The only place where losses meet the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch
from peft import PeftModel
from torch import Tensor

from training.advantages import distillation_advantages
from training.base import Base
from training.batching import Item, by_item
from training.config import TrainConfig
from training.forward import Read, backward_in_chunks, logits, response_hidden
from training.logprobs import entropy, picked, reverse_kl, token_logprobs
from training.losses import (
    anchor_loss,
    clipped,
    clipped_policy_loss,
    distillation_loss,
    masked_sum,
    topk_distillation_loss,
)


@dataclass(slots=True)
class StepSums:
    """What micro-batches add up to: the loss as a mean over the step, the rest as sums over tokens,
    each with how many tokens it was measured on.

    `effects`: of each hinted reply that was rated, log q(y_t) - log pi(y_t) of its own tokens.
    """

    loss: float = 0.0
    kl: float = 0.0
    hinted_tokens: int = 0
    effects: Mapping[int, tuple[float, ...]] = field(default_factory=dict)  # by sample id
    policy_loss: float = 0.0  # part of `loss`
    rewarded_tokens: int = 0
    clipped_tokens: int = 0
    kl_base: float = 0.0
    anchored_tokens: int = 0
    correction_nll: float = 0.0
    corrected_tokens: float = 0.0  # each by its weight
    entropy: float = 0.0
    tokens: int = 0

    def __add__(self, other: StepSums) -> StepSums:
        names = [f.name for f in fields(self) if f.name != "effects"]
        return StepSums(
            **{name: getattr(self, name) + getattr(other, name) for name in names},
            effects={**self.effects, **other.effects},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What each part of a whole optimizer step's loss is the mean over: tokens, or replies."""

    distilled: int
    rewarded: int
    anchored: int


def counts_of(items: Sequence[Item], config: TrainConfig) -> Counts:
    """All of the step for each part; with two combined losses each part's own."""
    counted = sum(_counted(item, config) for item in items)
    if config.method != "combine" or config.sums_advantages:
        return Counts(distilled=counted, rewarded=counted, anchored=counted)
    distilled = sum(_counted(item, config) for item in items if item.is_hinted)
    rewarded = sum(_counted(item, config) for item in items if item.advantage is not None)
    anchored = counted - distilled
    return Counts(distilled=max(distilled, 1), rewarded=max(rewarded, 1), anchored=max(anchored, 1))


def _counted(item: Item, config: TrainConfig) -> int:
    """What an item adds to a count."""
    return len(item.response_ids) if config.loss_mean == "tokens" else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A micro-batch's response tokens, row by row, (N,) each. NaN where there is no number."""

    targets_N: Tensor
    share_of_N: Tensor  # its reply's length in a mean over replies, else 1
    hinted_N: Tensor
    rewarded_N: Tensor
    fresh_N: Tensor
    temperature_N: Tensor
    advantages_N: Tensor
    rollout_logprobs_N: Tensor
    proximal_logprobs_N: Tensor

    def part(self, chunk: slice) -> Tokens:
        return Tokens(**{f.name: getattr(self, f.name)[chunk] for f in fields(self)})


def group_backward(
    base: Base,
    model: PeftModel,
    group: Sequence[Item],
    teacher_NH: Tensor,
    *,
    config: TrainConfig,
    counts: Counts,
    read: Read | None = None,
) -> StepSums:
    """Add a micro-batch's gradient to the adapter's, but for what lies before `read`: that gathers
    there."""
    rows = tokens_of(group, base.device, config)
    sums = StepSums(hinted_tokens=int(rows.hinted_N.sum()), tokens=len(rows.targets_N))
    shows_effects = any(item.is_hinted and not item.is_fresh for item in group)
    gaps: list[Tensor] = []

    def loss_of(hidden_NH: Tensor, chunk: slice) -> Tensor:
        part = rows.part(chunk)
        policy_logits_NV = logits(base, hidden_NH)
        with torch.no_grad():
            teacher_logits_NV = logits(base, teacher_NH[chunk])
            policy_NV = torch.log_softmax(policy_logits_NV, dim=-1)
            if shows_effects:
                teacher_N = token_logprobs(teacher_logits_NV, part.targets_N)
                gaps.append(teacher_N - picked(policy_NV, part.targets_N))
            sums.entropy += float(entropy(policy_NV).sum())
        return loss_on(policy_logits_NV, teacher_logits_NV, part, config, counts, sums)

    hidden_NH = response_hidden(base, model, [item.plain for item in group], read)
    sums.loss = backward_in_chunks(hidden_NH, loss_of)
    sums.effects = _by_reply(group, torch.cat(gaps)) if shows_effects else {}
    return sums


def loss_on(
    policy_logits_NV: Tensor,
    teacher_logits_NV: Tensor,
    part: Tokens,
    config: TrainConfig,
    counts: Counts,
    sums: StepSums,
) -> Tensor:
    """L = w_d L_distil(hinted) + w_r L_clip(rewarded) + w_a L_anchor(rewarded and not hinted), each
    part's mean over its own count. Where hints teach through the sampled words L_distil is a
    surrogate, too, and with summed advantages the same. What it comes to is added to `sums`."""
    distilled = _distilled(policy_logits_NV, teacher_logits_NV, part, config, counts)
    if config.loss_is_kl:
        sums.kl += float(distilled.detach()) * counts.distilled
    elif bool(part.hinted_N.any()):
        with torch.no_grad():
            kl_N = reverse_kl(policy_logits_NV, teacher_logits_NV)
        sums.kl += float(masked_sum(kl_N, part.hinted_N))
    loss = config.distill_weight * distilled
    if config.distils_tokens or bool(part.rewarded_N.any()):
        policy = _by_tokens(policy_logits_NV, teacher_logits_NV, part, config, counts, sums)
        sums.policy_loss += float(policy.detach())
        loss = loss + policy
    return loss


def _by_reply(group: Sequence[Item], gap_N: Tensor) -> dict[int, tuple[float, ...]]:
    """The micro-batch's gaps to the teacher, under the samples that a hint teaches."""
    gaps_T = by_item(group, gap_N)
    pairs = zip(group, gaps_T, strict=True)
    return {item.sample_id: tuple(gap_T.tolist()) for item, gap_T in pairs if item.is_hinted}


def _distilled(
    policy_logits_NV: Tensor,
    teacher_logits_NV: Tensor,
    part: Tokens,
    config: TrainConfig,
    counts: Counts,
) -> Tensor:
    """The distillation that looks at the vocabulary; 0 without hints, or through the tokens."""
    if config.distils_tokens or not bool(part.hinted_N.any()):
        return policy_logits_NV.new_zeros(())
    if config.estimator == "topk":
        return topk_distillation_loss(
            policy_logits_NV,
            teacher_logits_NV,
            part.hinted_N,
            k=config.topk,
            support=config.topk_support,
            clip=config.topk_clip,
            tokens=counts.distilled * part.share_of_N,
        )
    return distillation_loss(
        policy_logits_NV,
        teacher_logits_NV,
        part.hinted_N,
        forward_share=config.forward_share,
        tokens=counts.distilled * part.share_of_N,
    )


def _by_tokens(
    policy_logits_NV: Tensor,
    teacher_logits_NV: Tensor,
    part: Tokens,
    config: TrainConfig,
    counts: Counts,
    sums: StepSums,
) -> Tensor:
    """w_r L_clip(rewarded) + w_a L_anchor(rewarded and not hinted), on the sampled words.

    Where hints teach through the sampled words, A_t = w_d (log q - log pi) on the hinted ones: in a
    surrogate of its own, or added to w_r A where advantages are summed.
    """
    advantages_N = config.reward_weight * part.advantages_N
    policy_N = token_logprobs(policy_logits_NV, part.targets_N)
    with torch.no_grad():
        teacher_N = token_logprobs(teacher_logits_NV, part.targets_N)
    parts = [(advantages_N, part.rewarded_N, counts.rewarded)]
    if config.distils_tokens:
        gap_N = config.distill_weight * distillation_advantages(teacher_N, policy_N)
        parts.append((gap_N, part.hinted_N, counts.distilled))
    if config.sums_advantages:
        terms = [torch.where(mask_N, term_N, 0.0) for term_N, mask_N, _ in parts]  # no vote, none
        either_N = part.rewarded_N | part.hinted_N
        parts = [(torch.stack(terms).sum(dim=0), either_N, counts.rewarded)]
    surrogate = policy_logits_NV.new_zeros(())
    for term_N, mask_N, tokens in parts:
        if bool(mask_N.any()):
            surrogate = surrogate + _surrogate(
                policy_logits_NV, term_N, mask_N, tokens, part, config, sums
            )
    anchored_N = part.rewarded_N & ~part.hinted_N
    share_of_N = counts.anchored * part.share_of_N
    anchored = anchor_loss(policy_N, teacher_N, anchored_N, tokens=share_of_N)
    sums.anchored_tokens += int(anchored_N.sum())
    sums.kl_base += float(anchor_loss(policy_N.detach(), teacher_N, anchored_N, tokens=1))
    return surrogate + config.anchor_weight * anchored


def _surrogate(
    policy_logits_NV: Tensor,
    advantages_N: Tensor,
    mask_N: Tensor,
    tokens: int,
    part: Tokens,
    config: TrainConfig,
    sums: StepSums,
) -> Tensor:
    """L_clip at the temperature of sampling.

    Each reply trains in one optimizer step, unless it says what the proximal policy gave it.
    """
    policy_N = token_logprobs(policy_logits_NV, part.targets_N, temperature=part.temperature_N)
    own_N = policy_N.detach()
    proximal_N = torch.where(part.proximal_logprobs_N.isnan(), own_N, part.proximal_logprobs_N)
    bounds = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    sums.rewarded_tokens += int(mask_N.sum())
    sums.clipped_tokens += int(clipped(own_N, proximal_N, advantages_N, mask_N, **bounds))
    return clipped_policy_loss(
        policy_N,
        proximal_N,
        torch.where(part.fresh_N, proximal_N, part.rollout_logprobs_N),
        advantages_N,
        mask_N,
        **bounds,
        importance_cap=config.importance_cap,
        negative_importance_cap=config.negative_importance_cap,
        tokens=tokens * part.share_of_N,
    )


def tokens_of(group: Sequence[Item], device: str, config: TrainConfig) -> Tokens:
    """The response tokens of the items, one after the other."""

    def spread(values: Sequence[float]) -> Tensor:
        pairs = zip(values, group, strict=True)
        return torch.tensor([v for v, item in pairs for _ in item.response_ids], device=device)

    def joined(name: str) -> Tensor:
        """Log-probs of all tokens; NaN for replies that have none."""
        missing = [[math.nan] * len(item.response_ids) for item in group]
        rows = [getattr(item, name) or row for item, row in zip(group, missing, strict=True)]
        return torch.tensor([value for row in rows for value in row], device=device)

    advantages = [math.nan if item.advantage is None else item.advantage for item in group]
    by_replies = config.loss_mean == "replies"
    return Tokens(
        targets_N=torch.tensor([t for i in group for t in i.response_ids], device=device),
        share_of_N=spread([len(i.response_ids) if by_replies else 1 for i in group]),
        hinted_N=spread([item.is_hinted for item in group]).bool(),
        rewarded_N=spread([item.advantage is not None for item in group]).bool(),
        fresh_N=spread([item.is_fresh for item in group]).bool(),
        temperature_N=spread([item.temperature if item.temperature > 0 else 1.0 for item in group]),
        advantages_N=spread(advantages),
        rollout_logprobs_N=joined("rollout_logprobs"),
        proximal_logprobs_N=joined("proximal_logprobs"),
    )
