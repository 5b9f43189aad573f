"""How far a hint moves each token of a reply: the run's numbers against plain forward passes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from tests.training.conftest import DEVICE, job, make_sample
from training.adapters import adapter_tensors
from training.advantages import Baseline
from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.prepare import prepare


@pytest.mark.parametrize("boost", [0.0, 0.7])
def test_a_hints_effect_on_each_token_is_that_of_plain_forward_passes(
    base: Base, model: PeftModel, config: TrainConfig, boost: float
) -> None:
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():  # a student that is not the base, as every version but the first has it
        for tensor in adapter_tensors(model).values():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=chance).to(tensor.device))
    liked = make_sample(base, 3, hint=None, reward=1.0)
    given = [make_sample(base, 1), make_sample(base, 2, hint="Say a good deal more."), liked]
    expected = {
        item.sample_id: plain_effects(base, model, item, boost)
        for item in prepare(base, given[:2], config, baseline=Baseline())[0]
    }
    result, _ = job(base, model, given, dataclasses.replace(config, hint_boost=boost))
    assert set(result.effects) == {1, 2}  # no hint: no number, and re-answers overwrite none
    for number, effects in result.effects.items():
        assert len(effects) == len(expected[number])
        assert effects == pytest.approx(expected[number], abs=2e-4)
    assert max(abs(value) for value in result.effects[1]) > 0.05


@torch.no_grad()
def plain_effects(base: Base, model: PeftModel, item: Item, boost: float) -> list[float]:
    """log q - log pi of the reply's own tokens, each from the model's logits for one sequence."""

    def own_logits(prompt: tuple[int, ...]) -> Tensor:
        ids = torch.tensor([[*prompt, *item.response_ids]], device=DEVICE)
        return model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()

    student = own_logits(item.prompt_ids)
    with model.disable_adapter():
        hinted, plain = own_logits(item.teacher_prompt_ids), own_logits(item.prompt_ids)
    teacher = hinted + boost * (hinted - plain)
    rows = range(len(item.response_ids)), list(item.response_ids)
    gap = teacher.log_softmax(-1)[rows] - student.log_softmax(-1)[rows]
    return [float(value) for value in gap]
