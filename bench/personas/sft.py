"""Plain supervised fine-tuning in the seat of our trainer: cross-entropy on corrected replies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel

from rollouts.types import Sample
from training.adapters import attach, detach, save_version
from training.base import Base
from training.config import TrainConfig
from training.corrections import words_backward
from training.optimizer import make_optimizer


def sft_update(
    base: Base, samples: Sequence[Sample], config: TrainConfig, *, parent: Path | None, out: Path
) -> list[float]:
    """Train `parent`'s adapter, or a fresh one, to say the samples' replies; the loss at each step.

    `reward_epochs` steps on all of them, Adam beginning anew, as a run of its own would. The
    adapter is written to `out`.
    """
    model = attach(base, config, parent)
    try:
        optimizer = make_optimizer(model, config)
        losses = [
            _step(base, model, optimizer, samples, config.grad_clip)
            for _ in range(config.reward_epochs)
        ]
        save_version(model, out)
    finally:
        detach(base, model)
    return losses


def _step(
    base: Base,
    model: PeftModel,
    optimizer: torch.optim.Optimizer,
    samples: Sequence[Sample],
    grad_clip: float,
) -> float:
    """One step down L = -1/n sum_t log pi(y_t), n the tokens of all replies; L before it."""
    tokens = sum(len(sample.response_ids) for sample in samples)
    pairs = [(sample.prompt_ids, sample.response_ids) for sample in samples]
    loss = sum(words_backward(base, model, [pair], share=1 / tokens) for pair in pairs)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, grad_clip)
    optimizer.step()
    optimizer.zero_grad()
    return loss
