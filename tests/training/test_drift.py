"""The way back: a version that drifts too far is moved toward the base until it does not."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer

from tests.training.conftest import nothing
from training.adapters import (
    adapter_tensors,
    round_to_saved,
    scale,
    snapshot,
)
from training.base import Base
from training.config import TrainConfig
from training.drift import LEAST_SHARE, drift, drift_limit, step_back
from training.gate import decide, measure, way_measure

PROMPTS = ("one?", "two?", "three?")


@torch.no_grad()
def shake(model: PeftModel, size: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for tensor in adapter_tensors(model).values():
        tensor.add_(torch.randn(tensor.shape, generator=generator) * size)


def allowing(base: Base, model: PeftModel, config: TrainConfig, share: float) -> TrainConfig:
    """A margin that the model keeps to at this share of its way from the base, and not beyond."""
    end = snapshot(model)
    scale(model, end, share=share)
    round_to_saved(model)
    margin = drift(base, model, PROMPTS, config, nothing)
    scale(model, end, share=1.0)
    return dataclasses.replace(config, gate_drift_margin=margin)


def test_a_version_within_the_limit_stays_where_it_is(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 0.01)
    round_to_saved(model)
    before = snapshot(model)
    free = dataclasses.replace(config, gate_drift_margin=10.0)
    assert step_back(base, model, PROMPTS, (), free, nothing) == 1.0
    after = snapshot(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_version_beyond_the_limit_is_moved_back_until_it_passes(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 0.2)
    tight = allowing(base, model, config, share=0.7)
    end = snapshot(model)
    share = step_back(base, model, PROMPTS, (), tight, nothing)
    assert 0.6 < share < 0.72  # and not much farther than it must
    limit = drift_limit(base, model, PROMPTS, (), tight, nothing)
    assert drift(base, model, PROMPTS, tight, nothing) <= limit
    for name, tensor in adapter_tensors(model).items():
        wanted = share * end[name] if ".lora_B." in name else end[name]
        torch.testing.assert_close(tensor.detach(), wanted, rtol=1e-2, atol=1e-3)  # bf16
    found = measure(base, model, None, (), PROMPTS, (), tight, nothing)
    assert next(m for m in found if m.measure == "drift").ok is True


def test_what_drifts_too_far_even_then_is_left_to_the_gate(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 1.0)
    none = dataclasses.replace(config, gate_drift_margin=0.0)
    assert step_back(base, model, PROMPTS, (), none, nothing) == LEAST_SHARE
    assert not decide(measure(base, model, None, (), PROMPTS, (), none, nothing)).accepted


def test_a_share_of_the_way_is_that_share_of_what_the_adapter_adds(
    base: Base, model: PeftModel
) -> None:
    shake(model, 0.1)
    layer = next(module for module in model.modules() if isinstance(module, LoraLayer))
    whole = layer.get_delta_weight("default").detach().clone()
    scale(model, snapshot(model), share=0.25)
    torch.testing.assert_close(layer.get_delta_weight("default").detach(), 0.25 * whole)


@pytest.mark.parametrize(("share", "words"), [(1.0, "the whole way"), (0.7, "70% of the way")])
def test_the_way_is_told_and_tests_nothing(share: float, words: str) -> None:
    found = way_measure(share)
    assert words in found.text
    assert (found.value, found.limit) == (share, LEAST_SHARE)
    assert decide([found]).accepted
