"""KTO: whole replies against the base, as one advantage per reply.

A reply's loss depends on its summed log-ratio r alone, so its gradient is dL/dr times that of its
log-probs: a policy gradient whose advantage is -dL/dr. Micro-batches stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor

from training.advantages import kto_weights
from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.forward import response_logprobs
from training.losses import kto_loss


def with_kto_advantages(
    base: Base,
    model: PeftModel,
    items: Sequence[Item],
    config: TrainConfig,
    check: Callable[[], None],
) -> tuple[list[Item], float]:
    """The step's items with the advantages that make its gradient KTO's, and KTO's loss."""
    ratios_B = _log_ratios(base, model, items, check).requires_grad_()
    reference = 0.0
    if config.method == "kto" and len(items) > 1:
        reference = max(0.0, float(_log_ratios(base, model, mismatched(items), check).mean()))
    is_liked_B = torch.tensor([(item.reward or 0.0) > 0 for item in items], device=base.device)
    liked = int(is_liked_B.sum())
    liked_weight, disliked_weight = kto_weights(liked, len(items) - liked)
    loss = kto_loss(
        ratios_B,
        is_liked_B,
        reference=reference,
        beta=config.kto_beta,
        liked_weight=liked_weight,
        disliked_weight=disliked_weight,
    )
    (slope_B,) = torch.autograd.grad(loss, ratios_B)
    tokens = sum(len(item.response_ids) for item in items)  # what the surrogate divides by
    advantages = (-slope_B * tokens).tolist()
    pairs = zip(items, advantages, strict=True)
    # Log-probs as they are: at T = 1, and no ratio to those of sampling.
    weighed = [replace(item, advantage=a, is_fresh=True, temperature=1.0) for item, a in pairs]
    return weighed, float(loss.detach())


def mismatched(items: Sequence[Item]) -> list[Item]:
    """Each prompt with the next item's reply: what KTO's reference KL is estimated on."""
    replies = [*items[1:], items[0]]
    return [
        replace(item, response_ids=other.response_ids)
        for item, other in zip(items, replies, strict=True)
    ]


@torch.no_grad()
def _log_ratios(
    base: Base, model: PeftModel, items: Sequence[Item], check: Callable[[], None]
) -> Tensor:
    """sum_t log pi(y_t) - log pi_0(y_t) of each item's reply, (B,) nats."""
    ratios: list[Tensor] = []
    for item in items:
        check()
        pair = (item.prompt_ids, item.response_ids)
        policy_T = response_logprobs(base, model, pair)
        with model.disable_adapter():
            ratios.append((policy_T - response_logprobs(base, model, pair)).sum())
    return torch.stack(ratios)
