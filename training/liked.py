"""Liked replies, held where they are: a hint about one kind of request is not to leak into others.

A hint is distilled where it was given, and an adapter carries it further: to where it was meant,
and to where it was not. What the user liked as it was says where not. So beside the distillation
the policy is held, on those replies, to what it was before the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from peft import PeftModel
from torch import Tensor

from training.base import Base
from training.batching import Item, by_item, micro_batches
from training.config import TrainConfig
from training.forward import backward_in_chunks, logits, response_hidden
from training.logprobs import reverse_kl
from training.step import StepSums


class Liked:
    """The liked replies of a job that no hint teaches, and the policy's states on them before it.

    Made before the first step. Without `liked_weight` there are none.
    """

    def __init__(
        self,
        base: Base,
        model: PeftModel,
        items: Sequence[Item],
        config: TrainConfig,
        check: Callable[[], None],
    ) -> None:
        self._base, self._model, self._config, self._check = base, model, config, check
        liked = [item for item in items if not item.is_hinted and (item.reward or 0) > 0]
        self._items = liked if config.liked_weight else []
        self._share = len(liked) / len(items) if liked else 0.0
        self._before: dict[int, Tensor] = {}  # (T, H) by sample id
        for group in micro_batches(self._items, config, base.device):
            check()
            with torch.no_grad():
                before_NH = response_hidden(base, model, [item.plain for item in group])
            states = by_item(group, before_NH)
            self._before |= {item.sample_id: s for item, s in zip(group, states, strict=True)}

    def backward(self, step: int) -> StepSums:
        """Add lambda u times the gradient of L = 1/n sum_t KL(pi_before || pi) to the adapter's.

        Over at most `batch_size` of the replies, the next ones at each step; n are their tokens in
        this step, lambda `liked_weight`, u the share of the job's replies that they are: a single
        like among complaints holds little. At step 0 the policy is what it was: nothing is added.
        """
        sums = StepSums()
        count = min(self._config.batch_size, len(self._items))
        if not step or not count:
            return sums
        chosen = [self._items[(step * count + i) % len(self._items)] for i in range(count)]
        weight = self._config.liked_weight * self._share
        share = weight / sum(len(item.response_ids) for item in chosen)
        for group in micro_batches(chosen, self._config, self._base.device):
            self._check()
            sums.loss += self._group_backward(group, share)
        return sums

    def _group_backward(self, group: Sequence[Item], share: float) -> float:
        before_NH = torch.cat([self._before[item.sample_id] for item in group])

        def loss_of(hidden_NH: Tensor, chunk: slice) -> Tensor:
            before_NV = logits(self._base, before_NH[chunk])
            return share * reverse_kl(before_NV, logits(self._base, hidden_NH)).sum()

        plain = [item.plain for item in group]
        return backward_in_chunks(response_hidden(self._base, self._model, plain), loss_of)
