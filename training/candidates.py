"""Which of several candidate hints teaches a reply: the one nearest to what the student can say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor

from training.adapters import wearing
from training.base import Base
from training.batching import Item, Pair
from training.config import TrainConfig
from training.forward import over_logits, response_hidden


def overlap(student_ids_TK: Tensor, teacher_ids_TK: Tensor) -> int:
    """sum_t |S^q_t and S^p_t|: words that both find among their k most likely ones.

    OpenClaw-RL's second generation (arXiv 2603.10165 v2), sequence-optimal hint choice.
    """
    return int((student_ids_TK.unsqueeze(-1) == teacher_ids_TK.unsqueeze(-2)).sum())


def each_hint(item: Item) -> list[Item]:
    """The item under each of its candidate hints, its own first."""
    prompts = (item.teacher_prompt_ids, *item.other_prompts_ids)
    said = (item.said_ids, *item.others_said_ids)
    return [
        replace(
            item,
            teacher_prompt_ids=prompt_ids,
            other_prompts_ids=(),
            said_ids=ids,
            others_said_ids=(),
        )
        for prompt_ids, ids in zip(prompts, said, strict=True)
    ]


@torch.no_grad()
def nearest(
    base: Base,
    model: PeftModel,
    ways: Sequence[Item],
    config: TrainConfig,
    teacher: dict[str, Tensor] | None = None,
) -> Item:
    """Of the ways to teach one reply that of largest overlap on it; the first among equals.
    `teacher`: its adapter; None is the frozen base."""
    student_ids_TK = _topk(base, model, ways[0].plain, config.topk)
    with wearing(model, teacher):
        shared = [
            overlap(student_ids_TK, _topk(base, model, way.taught, config.topk)) for way in ways
        ]
    return ways[shared.index(max(shared))]


def _topk(base: Base, model: PeftModel, pair: Pair, k: int) -> Tensor:
    hidden_TH = response_hidden(base, model, [pair])

    def most_likely(logits_TV: Tensor, _chunk: slice) -> Tensor:
        return logits_TV.topk(min(k, logits_TV.shape[-1]), dim=-1).indices

    return over_logits(base, hidden_TH, most_likely)
