"""What was liked, answered anew beside the hinted: a wish about one kind of request stays there.

A hint is distilled where it was given, and an adapter carries it further: to where it was meant,
and to where it was not. Where several wishes were told, each may be meant for some requests only,
and what the user liked as it was says where not. So beside each set of re-answers the prompts of
liked replies are answered anew, too, and there the policy is held to what it was before the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor

from rollouts.types import Sample
from training.adapters import snapshot, wearing
from training.base import Base
from training.batching import Item, micro_batches, window
from training.config import KTO, TrainConfig
from training.forward import backward_in_chunks, logits, response_hidden
from training.kto import earlier_thumbs
from training.logprobs import reverse_kl
from training.prepare import liked_elsewhere, newest_wish, tells_several
from training.sampling import Reply


class Liked:
    """The prompts that are answered anew, newest first. None where one wish was told, which is
    meant wherever it is not kept; without `liked_weight`; or by another method than "combine".

    `samples`: what is known, oldest first. Made before the first step.
    """

    def __init__(
        self,
        base: Base,
        model: PeftModel,
        samples: Sequence[Sample],
        config: TrainConfig,
        check: Callable[[], None],
    ) -> None:
        self._base, self._model, self._config, self._check = base, model, config, check
        self._items: list[Item] = []
        self._answered: list[Item] = []
        if config.method == "combine" and config.liked_weight and tells_several(samples):
            by_thumbs = replace(config, method=KTO[0])  # who sampled them does not matter
            self._items = earlier_thumbs(base, _liked(samples), by_thumbs)[::-1]
        self._before = snapshot(model) if self._items else {}

    def asked(self, turn: int) -> list[Item]:
        """The next up to `batch_size`, going round: to be answered anew beside a set."""
        return window(self._items, turn, self._config.batch_size)

    def answered(self, items: Sequence[Item], replies: Sequence[Reply]) -> None:
        """What the policy has said to those that were asked."""
        pairs = zip(items, replies, strict=True)
        self._answered = [replace(item, response_ids=reply.ids) for item, reply in pairs]

    def backward(self) -> float:
        """Add the gradient of L = lambda/n sum_t KL(pi || pi_before) to the adapter's; returns L.

        On the n tokens of the last m answers; lambda is `liked_weight` m / `batch_size`, so that a
        single like holds little. 0 without any.
        """
        weight = self._config.liked_weight * len(self._answered) / self._config.batch_size
        share = weight / max(1, sum(len(item.response_ids) for item in self._answered))
        groups = micro_batches(self._answered, self._config, self._base.device)
        return sum(self._group_backward(group, share) for group in groups)

    def _group_backward(self, group: Sequence[Item], share: float) -> float:
        self._check()
        plain = [item.plain for item in group]
        with torch.no_grad(), wearing(self._model, self._before):
            before_NH = response_hidden(self._base, self._model, plain)

        def loss_of(hidden_NH: Tensor, chunk: slice) -> Tensor:
            before_NV = logits(self._base, before_NH[chunk])
            return share * reverse_kl(logits(self._base, hidden_NH), before_NV).sum()

        return backward_in_chunks(response_hidden(self._base, self._model, plain), loss_of)


def _liked(samples: Sequence[Sample]) -> list[Sample]:
    """Those that were liked without a hint, since the newest wish was first told: earlier ones say
    nothing of it. What was asked again until it was liked is taught, under its hint or, where that
    is not heard, by its thumbs."""
    since = samples[newest_wish(samples) + 1 :]
    return liked_elsewhere(since, [each for each in samples if each.is_hinted or each.hint])
