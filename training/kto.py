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

from training.adapters import adapter_tensors
from training.advantages import kto_weights
from training.base import Base
from training.batching import Item, micro_batches
from training.config import TrainConfig
from training.forward import CHUNK, logits, response_hidden
from training.logprobs import token_logprobs
from training.losses import kto_loss


def with_kto_advantages(
    base: Base,
    model: PeftModel,
    items: Sequence[Item],
    config: TrainConfig,
    check: Callable[[], None],
) -> tuple[list[Item], float]:
    """The step's items with the advantages that make its gradient KTO's, and KTO's loss."""
    others = mismatched(items) if config.method == "kto" and len(items) > 1 else []
    tokens_at_once = config.micro_batch_tokens
    all_B = _log_ratios(base, model, [*items, *others], check, max_tokens=tokens_at_once)
    ratios_B = all_B[: len(items)].requires_grad_()
    reference = max(0.0, float(all_B[len(items) :].mean())) if others else 0.0
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
    base: Base,
    model: PeftModel,
    items: Sequence[Item],
    check: Callable[[], None],
    *,
    max_tokens: int,
) -> Tensor:
    """sum_t log pi(y_t) - log pi_0(y_t) of each item's reply, (B,) nats."""
    if _answers_as_base(model):
        return torch.zeros(len(items), device=base.device)
    ratios: dict[Item, Tensor] = {}
    for group in micro_batches(items, max_tokens=max_tokens):
        check()
        policy_N = _reply_logprobs(base, model, group)
        with model.disable_adapter():
            ratio_N = policy_N - _reply_logprobs(base, model, group)
        lengths = [len(item.response_ids) for item in group]
        sums = [ratio_T.sum() for ratio_T in torch.split(ratio_N, lengths)]
        ratios.update(zip(group, sums, strict=True))
    return torch.stack([ratios[item] for item in items])


def _answers_as_base(model: PeftModel) -> bool:
    """Whether the adapter adds exactly nothing: every B is 0, as in a user's first job."""
    tensors = adapter_tensors(model).items()
    return not any(bool(tensor.any()) for name, tensor in tensors if ".lora_B." in name)


def _reply_logprobs(base: Base, model: PeftModel, group: Sequence[Item]) -> Tensor:
    """log pi(y_t | x, y_<t) of the group's replies, row by row, (N,) nats."""
    hidden_NH = response_hidden(base, model, [(i.prompt_ids, i.response_ids) for i in group])
    targets_N = torch.tensor([t for i in group for t in i.response_ids], device=base.device)
    parts = [
        token_logprobs(logits(base, hidden_NH[at : at + CHUNK]), targets_N[at : at + CHUNK])
        for at in range(0, len(hidden_NH), CHUNK)
    ]
    return torch.cat(parts)
