"""The way back: a version that drifts too far is moved toward its parent until it does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from tests.training.conftest import nothing
from training.adapters import (
    adapter_tensors,
    move_between,
    round_to_saved,
    save_version,
    snapshot,
    start_of,
)
from training.base import Base
from training.config import TrainConfig
from training.drift import STEPS_BACK, drift, drift_limit, step_back
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
    move_between(model, start_of(None, end), end, share=share)
    round_to_saved(model)
    margin = drift(base, model, PROMPTS, config, nothing)
    move_between(model, start_of(None, end), end, share=1.0)
    return dataclasses.replace(config, gate_drift_margin=margin)


def test_a_version_within_the_limit_stays_where_it_is(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 0.01)
    round_to_saved(model)
    before = snapshot(model)
    free = dataclasses.replace(config, gate_drift_margin=10.0)
    assert step_back(base, model, None, PROMPTS, (), free, nothing) == 1.0
    after = snapshot(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_version_beyond_the_limit_is_moved_back_until_it_passes(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 0.2)
    tight = allowing(base, model, config, share=0.7)
    end = snapshot(model)
    assert step_back(base, model, None, PROMPTS, (), tight, nothing) == 0.7
    limit = drift_limit(base, model, PROMPTS, (), tight, nothing)
    assert drift(base, model, PROMPTS, tight, nothing) <= limit
    for name, tensor in adapter_tensors(model).items():
        wanted = 0.7 * end[name] if ".lora_B." in name else end[name]
        torch.testing.assert_close(tensor.detach(), wanted, rtol=1e-2, atol=1e-3)  # bf16
    found = measure(base, model, None, (), PROMPTS, (), tight, nothing)
    assert next(m for m in found if m.measure == "drift").ok is True


def test_what_drifts_too_far_even_then_is_left_to_the_gate(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 1.0)
    none = dataclasses.replace(config, gate_drift_margin=0.0)
    assert step_back(base, model, None, PROMPTS, (), none, nothing) == STEPS_BACK[-1]
    assert not decide(measure(base, model, None, (), PROMPTS, (), none, nothing)).accepted


def test_the_way_back_leads_to_the_parent(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path
) -> None:
    shake(model, 0.1)
    parent = save_version(model, tmp_path / "v1").path
    start = snapshot(model)
    shake(model, 0.1)
    end = snapshot(model)
    move_between(model, start_of(parent, end), end, share=0.5)
    for name, tensor in adapter_tensors(model).items():
        wanted = (start[name] + end[name]) / 2
        torch.testing.assert_close(tensor.detach(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("share", "words"), [(1.0, "the whole way"), (0.7, "70% of the way")])
def test_the_way_is_told_and_tests_nothing(share: float, words: str) -> None:
    found = way_measure(share)
    assert words in found.text
    assert (found.value, found.limit) == (share, STEPS_BACK[-1])
    assert decide([found]).accepted
