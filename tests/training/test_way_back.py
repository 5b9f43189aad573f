"""The way back: a version that would be refused is moved toward the base until it would not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer

from tests.training.conftest import DEVICE, nothing
from training.adapters import adapter_tensors, round_to_saved, save_version, scale, snapshot
from training.base import Base
from training.config import HINT_TOKENS, TrainConfig
from training.drift import Wishes, asked, drift, drift_limit
from training.forward import logits, response_hidden
from training.gate import Measure, decide, measure
from training.way_back import LEAST_SHARE, step_back, way_measure

PROMPTS = ("one?", "two?", "three?")


@torch.no_grad()
def shake(model: PeftModel, size: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for tensor in adapter_tensors(model).values():
        tensor.add_(torch.randn(tensor.shape, generator=generator).to(tensor.device) * size)


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
    assert step_back(base, model, None, PROMPTS, Wishes(), free, nothing) == 1.0
    after = snapshot(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_version_beyond_the_limit_is_moved_back_until_it_passes(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 0.2)
    tight = allowing(base, model, config, share=0.7)
    end = snapshot(model)
    share = step_back(base, model, None, PROMPTS, Wishes(), tight, nothing)
    assert 0.6 < share < 0.72  # and not much farther than it must
    limit = drift_limit(base, model, PROMPTS, Wishes(), tight, nothing)
    assert drift(base, model, PROMPTS, tight, nothing) <= limit
    for name, tensor in adapter_tensors(model).items():
        wanted = share * end[name] if ".lora_B." in name else end[name]
        torch.testing.assert_close(tensor.detach(), wanted, rtol=1e-2, atol=1e-3)  # bf16
    found = measure(base, model, None, (), PROMPTS, Wishes(), tight, nothing)
    assert next(m for m in found if m.measure == "drift").ok is True


@pytest.fixture
def free(config: TrainConfig) -> TrainConfig:
    """Whatever the drift: what is judged is the replies."""
    return dataclasses.replace(config, gate_drift_margin=1e6, gate_tokens=24)


def teach_to_repeat(base: Base, model: PeftModel, *, steps: int) -> None:
    teach(base, model, base.encode("la" * 12), steps=steps)


def teach(base: Base, model: PeftModel, reply: Sequence[int], *, steps: int) -> None:
    pairs = [(base.render(asked(prompt)), reply) for prompt in PROMPTS]
    targets_N = torch.tensor([*reply] * len(PROMPTS), device=DEVICE)
    optimizer = torch.optim.Adam(list(adapter_tensors(model).values()), lr=0.02)
    for _ in range(steps):
        logits_NV = logits(base, response_hidden(base, model, pairs))
        torch.nn.functional.cross_entropy(logits_NV, targets_N).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def test_a_hint_that_leaves_no_room_explains_the_drift_of_its_beginning(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    def limit(*hints: str) -> float:
        return drift_limit(base, model, PROMPTS, Wishes(hints=hints), config, nothing)

    endless, brief = "word " * config.max_tokens, "Be brief."
    begun = base.beginning(endless, HINT_TOKENS)
    assert limit(endless) == limit(begun) > config.gate_drift_margin
    assert limit(endless, brief) == limit(begun, brief)
    assert limit(brief, endless) == limit(brief, begun)
    config = dataclasses.replace(config, max_tokens=100)  # nor for that
    assert limit(endless, brief) == limit(brief) > limit(endless) == config.gate_drift_margin


def test_the_newest_four_hints_explain_drift(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    five = ("Be brief.", "Use metres.", "Say please.", "Name sources.", "Rhyme.")  # newest first
    limits = [
        drift_limit(base, model, PROMPTS, Wishes(hints=five[:count]), config, nothing)
        for count in (3, 4, 5)
    ]
    assert limits[0] != limits[1] == limits[2]


def test_the_same_drift_is_not_measured_again(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured() -> list[float]:
        wishes = Wishes(hints=("Be brief.",))
        own = drift(base, model, PROMPTS, config, nothing)
        return [own, drift_limit(base, model, PROMPTS, wishes, config, nothing)]

    shake(model, 0.1)
    first = measured()
    monkeypatch.setattr("training.drift.hidden_of", None)  # no model is run
    assert measured() == first


def test_a_version_that_repeats_itself_is_moved_back_until_it_does_not(
    base: Base, model: PeftModel, free: TrainConfig
) -> None:
    teach_to_repeat(base, model, steps=4)
    end = snapshot(model)
    before = decide(measure(base, model, None, (), PROMPTS, Wishes(), free, nothing))
    assert not before.accepted
    assert "is repetition" in before.reasons[0]
    scale(model, end, share=1.0)
    assert LEAST_SHARE < step_back(base, model, None, PROMPTS, Wishes(), free, nothing) < 0.7
    assert decide(measure(base, model, None, (), PROMPTS, Wishes(), free, nothing)).accepted


def test_a_parent_that_repeats_itself_allows_no_more(
    base: Base, model: PeftModel, free: TrainConfig, tmp_path: Path
) -> None:
    teach_to_repeat(base, model, steps=4)
    parent = save_version(model, tmp_path / "v1").path
    assert not decide(measure(base, model, parent, (), PROMPTS, Wishes(), free, nothing)).accepted
    assert step_back(base, model, parent, PROMPTS, Wishes(), free, nothing) < 0.7


def test_how_many_replies_may_be_cut_off_goes_by_the_parents(
    base: Base,
    model: PeftModel,
    config: TrainConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (end,) = base.encode("x")  # the tiny model's own end token cannot be taught
    monkeypatch.setattr(base.model.generation_config, "eos_token_id", end)
    free = dataclasses.replace(config, gate_drift_margin=1e6, gate_chance=0.0)
    endless = snapshot(model)  # as the base
    teach(base, model, [end], steps=10)
    parent = save_version(model, tmp_path / "v1").path

    def cut_off(known: Path | None) -> Measure:
        found = measure(base, model, known, (), PROMPTS, Wishes(), free, nothing)
        return next(each for each in found if each.measure == "cut_off")

    assert cut_off(None).value == 0.0  # each ends at once
    for known, limit, ok, share in ((None, 1.0, None, 1.0), (parent, 0.1, False, LEAST_SHARE)):
        scale(model, endless, share=1.0)
        found = cut_off(known)
        assert (found.value, found.limit, found.ok) == (1.0, pytest.approx(limit), ok)
        assert step_back(base, model, known, PROMPTS, Wishes(), free, nothing) == share


def test_each_try_goes_a_fiftieth_closer_at_least_and_a_fifth_where_replies_fail(
    base: Base, model: PeftModel, config: TrainConfig, free: TrainConfig
) -> None:
    teach_to_repeat(base, model, steps=4)
    end = snapshot(model)
    share = step_back(base, model, None, PROMPTS, Wishes(), free, nothing)
    assert share in [pytest.approx(0.8**tries) for tries in range(1, 6)]
    scale(model, end, share=0.2)
    near = allowing(base, model, config, share=0.999)
    assert step_back(base, model, None, PROMPTS, Wishes(), near, nothing) == pytest.approx(0.98)


@pytest.mark.parametrize("margin", [10.0, 0.01])
def test_what_is_left_of_a_version_is_as_it_will_be_saved(
    base: Base, model: PeftModel, config: TrainConfig, margin: float
) -> None:
    shake(model, 0.1)
    settings = dataclasses.replace(config, gate_drift_margin=margin)
    share = step_back(base, model, None, PROMPTS, Wishes(), settings, nothing)
    assert (share < 1.0) == (margin == 0.01)
    for tensor in adapter_tensors(model).values():
        assert torch.equal(tensor, tensor.bfloat16().float())


def test_what_drifts_too_far_even_then_is_left_to_the_gate(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 1.0)
    none = dataclasses.replace(config, gate_drift_margin=0.0)
    assert step_back(base, model, None, PROMPTS, Wishes(), none, nothing) == LEAST_SHARE
    assert not decide(measure(base, model, None, (), PROMPTS, Wishes(), none, nothing)).accepted


def test_a_share_of_the_way_is_that_share_of_what_the_adapter_adds(
    base: Base, model: PeftModel
) -> None:
    shake(model, 0.1)
    layer = next(module for module in model.modules() if isinstance(module, LoraLayer))
    whole = layer.get_delta_weight("default").detach().clone()
    scale(model, snapshot(model), share=0.25)
    torch.testing.assert_close(layer.get_delta_weight("default").detach(), 0.25 * whole)


@pytest.mark.parametrize(
    ("share", "words"), [(1.0, "nothing of what"), (0.7, "70% of what was learned is kept")]
)
def test_the_way_is_told_and_tests_nothing(share: float, words: str) -> None:
    found = way_measure(share)
    assert words in found.text
    assert (found.value, found.limit) == (share, LEAST_SHARE)
    assert decide([found]).accepted
