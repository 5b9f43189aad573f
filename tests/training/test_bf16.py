"""Arithmetic in bf16, where the processor or the GPU has it: near to fp32's, and it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import PeftModel

from tests.training.conftest import job, samples
from training.base import Base
from training.config import TrainConfig
from training.forward import response_logprobs


@pytest.fixture
def half(base: Base) -> Base:
    return replace(base, autocast_dtype=torch.bfloat16)


def test_log_probs_are_near_those_of_fp32(base: Base, half: Base) -> None:
    pair = (base.encode("a question"), base.encode("an answer, at some length"))
    exact, rounded = (response_logprobs(one, one.model, pair) for one in (base, half))
    assert not torch.equal(exact, rounded)
    assert (rounded.float() - exact).abs().mean() < 0.05  # nats per token


def test_a_step_moves_the_adapter(half: Base, model: PeftModel, config: TrainConfig) -> None:
    one_step = replace(config, max_steps=1, train_seconds=1e6)
    result, steps = job(half, model, samples(half, 4), one_step)
    assert result.steps == len(steps) == 1
    moved = [
        value.abs().max().item() for name, value in model.named_parameters() if "lora_B" in name
    ]
    assert max(moved) > 0
