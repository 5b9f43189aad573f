"""Corrections as words to learn: what the user wrote instead of a reply, by cross-entropy.

Distillation ends where its teacher is, and a small model may fail at a wish whatever its prompt
says. Where the user wrote the reply that they wanted, it is learned as it stands, beside the
distillation and in the same steps.

Who corrects a reply mostly edits it. What they left as it was says little, as the model wrote that
itself, and would drown what they changed: the changed words teach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import torch
from peft import PeftModel
from torch import Tensor

from training.base import Base
from training.batching import Item, Pair, micro_batches
from training.config import TrainConfig
from training.forward import backward_in_chunks, logits, response_hidden
from training.logprobs import token_logprobs
from training.step import StepSums

KEPT_RUN = 4  # tokens: fewer may be the same by chance
LAST_SENTENCE = 40  # tokens: what a limit cut off in the middle, and who edits the reply takes out


def correction_backward(
    base: Base,
    model: PeftModel,
    items: Sequence[Item],
    config: TrainConfig,
    check: Callable[[], None],
) -> StepSums:
    """Add lambda times the gradient of L = -1/n sum_t w_t log pi(c_t | x, c_<t) to the adapter's.

    c are the items' corrections, asked without hints, w the weights of their tokens, n = sum_t w_t
    over the whole step, lambda `correction_weight`. Nothing is added, and nothing measured, where
    no item has one.
    """
    said = [
        replace(item, response_ids=item.correction_ids, teacher_prompt_ids=item.prompt_ids)
        for item in items
        if item.correction_ids
    ]
    sums = StepSums(corrected_tokens=sum(sum(item.correction_weights) for item in said))
    for group in micro_batches(said, config, base.device):
        check()
        plain = [item.plain for item in group]
        share = config.correction_weight / sums.corrected_tokens
        weights = [weight for item in group for weight in item.correction_weights]
        loss = words_backward(base, model, plain, share=share, weights=weights)
        sums.loss += loss
        sums.correction_nll += loss / share
    return sums


@dataclass
class WordsLeft:
    """How much of a job's corrections is left to learn."""

    first: float | None = None  # their nll before the job's first step on any, nats per token

    def after(self, sums: StepSums) -> float | None:
        """nll / nll before the first step, by what the step measured; None where it had none."""
        if not sums.corrected_tokens:
            return None
        nll = sums.correction_nll / sums.corrected_tokens
        self.first = self.first or nll
        return nll / self.first if self.first else None


def word_weights(
    reply: Sequence[int], written: Sequence[int], config: TrainConfig, *, has_ended: bool = True
) -> tuple[float, ...]:
    """What each token of a correction weighs, up to the last of the first `correction_tokens` that
    train: `correction_kept_weight` in a run that the reply has, too, else 1. So has the first token
    of a run that comes after a change: it ends that (a reply that was cut short ends here, say).

    Where a limit ended the reply (not `has_ended`) and the correction ends with its words, for but
    the sentence that was cut, its end token is nothing that the user asked for.
    """
    kept = config.correction_kept_weight
    weights = [1.0] * len(written)
    blocks = SequenceMatcher(a=reply, b=written, autojunk=False).get_matching_blocks()
    for block in blocks:
        if block.size >= KEPT_RUN:
            first = block.b + (block.a + block.b > 0)
            end = block.b + block.size
            is_last = end == len(written) - 1 and len(reply) - block.a - block.size <= LAST_SENTENCE
            if is_last and not has_ended:
                end = len(written)
            weights[first:end] = [kept] * (end - first)
    if not any(weights):  # the same words, in other spaces perhaps
        weights = [1.0] * len(written)
    train = [place for place, weight in enumerate(weights) if weight]
    last = train[: config.correction_tokens][-1] if train else -1
    return tuple(weights[: last + 1])


def words_backward(
    base: Base,
    model: PeftModel,
    pairs: Sequence[Pair],
    *,
    share: float,
    weights: Sequence[float] | None = None,
) -> float:
    """Add the gradient of L = -share sum_t w_t log pi(y_t) over these replies to the adapter's; L.
    Without weights each w_t is 1."""
    targets_N = torch.tensor([token for _, reply in pairs for token in reply], device=base.device)
    weights_N = torch.tensor(weights or [1.0] * len(targets_N), device=base.device)

    def loss_of(hidden_NH: Tensor, chunk: slice) -> Tensor:
        logprobs_N = token_logprobs(logits(base, hidden_NH), targets_N[chunk])
        return -share * (weights_N[chunk] * logprobs_N).sum()

    return backward_in_chunks(response_hidden(base, model, pairs), loss_of)
