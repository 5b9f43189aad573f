"""Which of several candidate hints teaches a reply: the one nearest to what the student can say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor

from training.adapters import wearing
from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.forward import over_logits, response_hidden


def overlap(student_ids_TK: Tensor, teacher_ids_TK: Tensor) -> int:
    """sum_t |S^q_t and S^p_t|: words that both find among their k most likely ones.

    OpenClaw-RL's second generation (arXiv 2603.10165 v2), sequence-optimal hint choice.
    """
    return int((student_ids_TK.unsqueeze(-1) == teacher_ids_TK.unsqueeze(-2)).sum())


@torch.no_grad()
def with_chosen_hint(
    base: Base,
    model: PeftModel,
    item: Item,
    config: TrainConfig,
    teacher: dict[str, Tensor] | None = None,
) -> Item:
    """The item under the hint of largest overlap on its own reply; the first among equals.
    `teacher`: its adapter; None is the frozen base."""
    if not item.other_prompts_ids:
        return item
    student_ids_TK = _topk(base, model, item.prompt_ids, item, config.topk)
    prompts: Sequence[tuple[int, ...]] = (item.teacher_prompt_ids, *item.other_prompts_ids)
    with wearing(model, teacher):
        shared = [
            overlap(student_ids_TK, _topk(base, model, prompt, item, config.topk))
            for prompt in prompts
        ]
    chosen = shared.index(max(shared))
    return replace(
        item,
        teacher_prompt_ids=prompts[chosen],
        other_prompts_ids=(),
        said_ids=(item.said_ids, *item.others_said_ids)[chosen],
        others_said_ids=(),
    )


def _topk(base: Base, model: PeftModel, prompt: tuple[int, ...], item: Item, k: int) -> Tensor:
    hidden_TH = response_hidden(base, model, [(prompt, item.response_ids)])

    def most_likely(logits_TV: Tensor, _chunk: slice) -> Tensor:
        return logits_TV.topk(min(k, logits_TV.shape[-1]), dim=-1).indices

    return over_logits(base, hidden_TH, most_likely)
