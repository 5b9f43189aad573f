"""How long Adam's steps are; its state goes from a version to its child, from nowhere else."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from tests.training.conftest import job, make_sample, samples
from training.adapters import adapter_tensors, attach, detach
from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.errors import OptimizerInvalid
from training.optimizer import load_optimizer, make_optimizer, save_optimizer, step_share


@pytest.mark.parametrize(
    ("kl", "replies", "share"),
    [
        (0.3, 8, 1.0),  # above half of the effect, 0.1
        (0.1, 8, 1.0),
        (0.025, 8, 0.25),  # 0.025 / (0.5 * 0.2)
        (0.3, 2, 0.5),  # sqrt(2 / 8)
        (0.025, 2, 0.125),
        (None, 8, 0.4),  # no hints and no advantages: reward_step
        (None, 2, 0.2),
        (0.3, 19, 1.0),
    ],
)
def test_steps_shrink_with_what_is_left_to_learn_and_with_few_replies(
    kl: float | None, replies: int, share: float
) -> None:
    config = TrainConfig(kl_full_share=0.5, batch_size=8, reward_step=0.4)
    found = step_share(kl, effect=0.2, config=config, items=[item_with(None)] * replies)
    assert found == pytest.approx(share)


@pytest.mark.parametrize(
    ("kl", "words_left", "share"),
    [
        (0.025, 1.0, 1.0),  # the hint is nearly learned, what was written is not
        (0.025, 0.5, 1.0),
        (0.025, 0.2, 0.4),  # 0.2 / 0.5
        (0.05, 0.2, 0.5),  # the hint has farther to go: 0.05 / (0.5 * 0.2)
        (None, 0.3, 0.6),
        (None, 0.1, 0.4),  # the thumb's step is longer
    ],
)
def test_steps_are_as_long_as_what_was_written_is_far(
    kl: float | None, words_left: float, share: float
) -> None:
    config = TrainConfig(kl_full_share=0.5, batch_size=8, reward_step=0.4)
    items = [item_with(None)] * 8
    found = step_share(kl, effect=0.2, words_left=words_left, config=config, items=items)
    assert found == pytest.approx(share)


@pytest.mark.parametrize(("kl", "share"), [(None, 0.4), (0.01, 1.0)])
def test_steps_that_do_not_shrink_are_as_long_whatever_was_written(
    kl: float | None, share: float
) -> None:
    config = TrainConfig(kl_full_share=0.0, batch_size=8, reward_step=0.4)
    items = [item_with(None)] * 8
    found = step_share(kl, effect=0.2, words_left=0.7, config=config, items=items)
    assert found == pytest.approx(share)


def test_a_jobs_adam_has_its_settings(model: PeftModel, config: TrainConfig) -> None:
    """Gradients of 1, then 3: m = 1/2, 7/4 and v = 1/4, 39/16; without their bias 1 and 1, then
    (7/4) / (3/4) = 7/3 and (39/16) / (7/16) = 39/7. Each weight shrinks by 0.1 * 0.2 first."""
    settings = dataclasses.replace(config, lr=0.1, beta1=0.5, beta2=0.75, weight_decay=0.2)
    adam = make_optimizer(model, settings)
    tensor = next(iter(adapter_tensors(model).values()))
    with torch.no_grad():
        tensor.fill_(1.0)
    for gradient in (1.0, 3.0):
        tensor.grad = torch.full_like(tensor, gradient)
        adam.step()
    wanted = 0.98 * (0.98 - 0.1) - 0.1 * (7 / 3) / math.sqrt(39 / 7)
    torch.testing.assert_close(tensor.detach(), torch.full_like(tensor, wanted))


@pytest.mark.parametrize(
    ("advantages", "share"),
    [
        ([1.0, -1.0], 0.2),  # 0.4 * sqrt(2 / 8)
        ([0.25, 0.25], 0.05),
        ([0.5, -1.0, None, None], 0.4 * 0.75 * math.sqrt(0.5)),
        ([-2.0, -2.0], 0.2),  # never more than a whole reward_step
    ],
)
def test_thumbs_that_were_expected_move_little(
    advantages: list[float | None], share: float
) -> None:
    config = TrainConfig(batch_size=8, reward_step=0.4)
    items = [item_with(advantage) for advantage in advantages]
    assert step_share(None, effect=None, config=config, items=items) == pytest.approx(share)
    kto = dataclasses.replace(config, method="kto")
    whole = 0.4 * math.sqrt(len(items) / 8)
    assert step_share(None, effect=None, config=kto, items=items) == pytest.approx(whole)


def item_with(advantage: float | None) -> Item:
    return Item(
        sample_id=1, prompt_ids=(1,), response_ids=(2,), teacher_prompt_ids=(1,), is_hinted=False,
        rollout_logprobs=None, temperature=1.0, advantage=advantage, reward=None,
    )  # fmt: skip


def test_a_hint_of_small_effect_still_takes_whole_steps() -> None:
    items = [item_with(None)] * 8
    assert step_share(0.01, effect=0.01, config=TrainConfig(), items=items) == 1.0


def test_hints_without_any_effect_are_no_division_by_it() -> None:
    config = TrainConfig(batch_size=8, reward_step=0.4)
    items = [item_with(None)] * 8
    assert step_share(0.0, effect=0.0, config=config, items=items) == pytest.approx(0.4)


def test_adams_state_survives_saving(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path
) -> None:
    result, _ = job(base, model, samples(base, 2), config)
    save_optimizer(result.optimizer, tmp_path / "adam.safetensors")
    again = make_optimizer(model, config)
    load_optimizer(again, tmp_path / "adam.safetensors")
    for tensor in adapter_tensors(model).values():
        for name, value in result.optimizer.state[tensor].items():
            assert torch.equal(again.state[tensor][name], value)
    assert [p.name for p in tmp_path.iterdir()] == ["adam.safetensors"]


def test_a_huge_gradient_is_cut_to_the_norm_that_is_allowed(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    """As it is, it would rule Adam's averages, and so every later step, for a long time."""
    before = {name: t.detach().clone() for name, t in adapter_tensors(model).items()}
    settings = dataclasses.replace(config, reward_weight=1e6, grad_clip=0.5)
    result, steps = job(base, model, [make_sample(base, hint=None)], settings)
    assert len(steps) == 1
    assert steps[0].grad_norm > 1000  # as it came
    moments = [state["exp_avg"].flatten() for state in result.optimizer.state.values()]
    taken = float(torch.cat(moments).norm()) / (1 - config.beta1)
    assert taken == pytest.approx(settings.grad_clip, rel=1e-3)
    after = adapter_tensors(model)
    moved = max(float((after[name].detach() - was).abs().max()) for name, was in before.items())
    assert 0 < moved <= config.lr * 1.01


def test_a_child_job_goes_on_with_its_parents_adam(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path
) -> None:
    first, _ = job(base, model, samples(base, 2), config)
    save_optimizer(first.optimizer, tmp_path / "adam.safetensors")
    second, _ = job(
        base, model, samples(base, 2), config, parent_optimizer=tmp_path / "adam.safetensors"
    )
    tensor = next(iter(adapter_tensors(model).values()))
    assert float(second.optimizer.state[tensor]["step"]) == first.steps + second.steps


def test_adams_state_of_another_adapter_is_refused(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path
) -> None:
    result, _ = job(base, model, samples(base, 1), config)
    save_optimizer(result.optimizer, tmp_path / "adam.safetensors")
    detach(base, model)
    other = attach(base, dataclasses.replace(config, rank=1, alpha=1), None)
    with pytest.raises(OptimizerInvalid, match="another shape"):
        load_optimizer(make_optimizer(other, config), tmp_path / "adam.safetensors")
    (tmp_path / "adam.safetensors").write_bytes(b"rubbish")
    with pytest.raises(OptimizerInvalid, match="cannot be read"):
        load_optimizer(make_optimizer(other, config), tmp_path / "adam.safetensors")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tensors, name: tensors[name].view(-1)[0].fill_(math.inf), "not finite"),
        (lambda tensors, name: tensors.pop(name), "other layers"),
    ],
)
def test_adams_state_that_would_spoil_the_next_step_is_refused(
    model: PeftModel, config: TrainConfig, tmp_path: Path, change: Any, why: str
) -> None:
    before, path = make_optimizer(model, config), tmp_path / "adam.safetensors"
    for tensor in adapter_tensors(model).values():
        tensor.grad = torch.ones_like(tensor)
    before.step()
    before.zero_grad()
    save_optimizer(before, path)
    tensors = load_file(path)
    change(tensors, next(name for name in tensors if name.endswith(".exp_avg_sq")))
    save_file(tensors, path)
    after = make_optimizer(model, config)
    with pytest.raises(OptimizerInvalid, match=why):
        load_optimizer(after, path)
    assert not after.state


def test_a_damaged_state_costs_its_moments_and_not_the_job(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path, caplog: Any
) -> None:
    damaged = tmp_path / "adam.safetensors"
    damaged.write_bytes(b"half a")
    result, _ = job(base, model, samples(base, 2), config, parent_optimizer=damaged)
    tensor = next(iter(adapter_tensors(model).values()))
    assert float(result.optimizer.state[tensor]["step"]) == result.steps
    assert "Adam begins anew" in caplog.text
