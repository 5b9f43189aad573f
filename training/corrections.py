"""Corrections as words to learn: what the user wrote instead of a reply, by cross-entropy.

Distillation ends where its teacher is, and a small model may fail at a wish whatever its prompt
says. Where the user wrote the reply that they wanted, it is learned as it stands, beside the
distillation and in the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor

from training.base import Base
from training.batching import Item, Pair, micro_batches
from training.config import TrainConfig
from training.forward import backward_in_chunks, logits, response_hidden
from training.logprobs import token_logprobs
from training.step import StepSums


def correction_backward(
    base: Base,
    model: PeftModel,
    items: Sequence[Item],
    config: TrainConfig,
    check: Callable[[], None],
) -> StepSums:
    """Add lambda times the gradient of L = -1/n sum_t log pi(c_t | x, c_<t) to the adapter's.

    c are the items' corrections, asked without hints, n their tokens in the whole step, lambda
    `correction_weight`. Nothing is added, and nothing measured, where no item has one.
    """
    said = [
        replace(item, response_ids=item.correction_ids, teacher_prompt_ids=item.prompt_ids)
        for item in items
        if item.correction_ids
    ]
    sums = StepSums(corrected_tokens=sum(len(item.response_ids) for item in said))
    for group in micro_batches(said, config, base.device):
        check()
        plain = [item.plain for item in group]
        share = config.correction_weight / sums.corrected_tokens
        loss = words_backward(base, model, plain, share=share)
        sums.loss += loss
        sums.correction_nll += loss / share
    return sums


def words_backward(base: Base, model: PeftModel, pairs: Sequence[Pair], *, share: float) -> float:
    """Add the gradient of L = -share sum_t log pi(y_t) over these replies to the adapter's; L."""
    targets_N = torch.tensor([token for _, reply in pairs for token in reply], device=base.device)

    def loss_of(hidden_NH: Tensor, chunk: slice) -> Tensor:
        return -share * token_logprobs(logits(base, hidden_NH), targets_N[chunk]).sum()

    return backward_in_chunks(response_hidden(base, model, pairs), loss_of)
