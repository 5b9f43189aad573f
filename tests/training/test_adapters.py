"""An adapter leaves no trace on the base, appears whole or not at all, is refused when bad."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from rollouts.rendering import weights_hash
from tests.training.conftest import DEVICE
from training import adapters
from training.adapters import (
    adapter_tensors,
    attach,
    check_folder,
    detach,
    merged,
    save_version,
    wearing,
)
from training.base import Base
from training.config import TrainConfig
from training.errors import AdapterInvalid

IDS = torch.arange(40, device=DEVICE)[None]


@torch.no_grad()
def logits_of(model: Any) -> Tensor:
    result: Tensor = model(input_ids=IDS).logits.clone()
    return result


@torch.no_grad()
def shake(model: PeftModel, seed: int = 0) -> None:
    """Give the adapter weights that matter."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in adapter_tensors(model).values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)


@pytest.fixture
def saved(base: Base, model: PeftModel, tmp_path: Path) -> Path:
    shake(model)
    save_version(model, tmp_path / "v1")
    return tmp_path / "v1"


def test_a_fresh_adapter_changes_nothing(base: Base, config: TrainConfig) -> None:
    before = logits_of(base.model)
    model = attach(base, config, None)
    assert torch.equal(logits_of(model), before)
    detach(base, model)


def test_detaching_gives_the_base_back_bit_for_bit(base: Base, config: TrainConfig) -> None:
    before = logits_of(base.model)
    for seed in range(2):
        model = attach(base, config, None)
        shake(model, seed)
        assert not torch.allclose(logits_of(model), before, atol=1e-2)
        with merged(model):
            pass
        detach(base, model)
        assert torch.equal(logits_of(base.model), before)
    assert not any(p.requires_grad for p in base.model.parameters())


def test_only_the_blocks_linear_layers_are_adapted(model: PeftModel) -> None:
    names = adapter_tensors(model)
    assert len(names) == 2 * 7 * 2  # two blocks, seven linear layers, A and B
    assert not any("lm_head" in name or "embed" in name for name in names)
    assert all(p.requires_grad == ("lora_" in n) for n, p in model.named_parameters())


def test_a_child_starts_from_its_parents_weights(
    base: Base, config: TrainConfig, tmp_path: Path
) -> None:
    first = attach(base, config, None)
    shake(first)
    save_version(first, tmp_path / "v1")
    expected = logits_of(first)
    detach(base, first)
    second = attach(base, config, tmp_path / "v1")
    assert torch.equal(logits_of(second), expected)
    detach(base, second)


def test_merged_weights_answer_as_the_adapter_does(model: PeftModel) -> None:
    shake(model)
    expected = logits_of(model)
    with merged(model):
        assert torch.allclose(logits_of(model), expected, atol=1e-4)
    assert torch.equal(logits_of(model), expected)


def test_merged_weights_are_put_back_after_an_error(model: PeftModel) -> None:
    shake(model)
    expected = logits_of(model)
    with pytest.raises(KeyError), merged(model):
        raise KeyError
    assert torch.equal(logits_of(model), expected)


def test_merged_under_a_disabled_adapter_is_the_base(base: Base, model: PeftModel) -> None:
    shake(model)
    with model.disable_adapter():
        expected = logits_of(model)
        with merged(model):
            assert torch.allclose(logits_of(model), expected, atol=1e-4)


def test_wearing_another_version_ends(model: PeftModel, saved: Path) -> None:
    as_saved = logits_of(model)
    shake(model, seed=1)
    own = logits_of(model)
    with wearing(model, saved):
        assert torch.equal(logits_of(model), as_saved)
    assert torch.equal(logits_of(model), own)
    with wearing(model, None), model.disable_adapter():
        base_logits = logits_of(model)
    with wearing(model, None):
        assert torch.equal(logits_of(model), base_logits)


def test_the_base_stays_worn_until_the_outer_one_ends(model: PeftModel) -> None:
    shake(model)
    own = logits_of(model)
    with wearing(model, None):
        base_logits = logits_of(model)
        with wearing(model, None):
            assert torch.equal(logits_of(model), base_logits)
        assert torch.equal(logits_of(model), base_logits)
    assert not torch.equal(own, base_logits)
    assert torch.equal(logits_of(model), own)
    assert all(tensor.requires_grad for tensor in adapter_tensors(model).values())


def test_the_model_is_what_was_saved(model: PeftModel, saved: Path) -> None:
    on_disk = load_file(saved / "adapter_model.safetensors")
    for name, tensor in adapter_tensors(model).items():
        assert on_disk[name].dtype == torch.bfloat16
        assert torch.equal(on_disk[name].float(), tensor.detach().cpu())


def test_a_saved_version_names_no_path_and_passes_its_own_check(
    base: Base, saved: Path, tiny_folder: Path
) -> None:
    settings = check_folder(saved, base=base, max_rank=8)
    assert settings["base_model_name_or_path"] == "tiny"
    assert str(tiny_folder.parent) not in (saved / "adapter_config.json").read_text()


def test_peft_itself_reads_the_folder(base: Base, model: PeftModel, saved: Path) -> None:
    expected = logits_of(model)
    model.load_adapter(str(saved), adapter_name="again")
    model.set_adapter("again")
    assert torch.allclose(logits_of(model), expected, atol=1e-5)
    model.set_adapter("default")
    model.delete_adapter("again")


def test_a_version_is_never_overwritten(model: PeftModel, saved: Path) -> None:
    before = (saved / "adapter_model.safetensors").read_bytes()
    shake(model, seed=3)
    with pytest.raises(FileExistsError):
        save_version(model, saved)
    assert (saved / "adapter_model.safetensors").read_bytes() == before


@pytest.mark.parametrize("failing", ["save_file", "_settings_text", "_fsync"])
def test_a_save_that_fails_leaves_nothing(
    model: PeftModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(adapters, failing, fail)
    with pytest.raises(OSError, match="disk full"):
        save_version(model, tmp_path / "v1")
    assert list(tmp_path.iterdir()) == []


def test_nobody_sees_a_half_written_version(
    model: PeftModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    rename = os.rename

    def watched(source: Path, target: Path) -> None:
        seen.append(target.exists())
        assert {p.name for p in source.iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    save_version(model, tmp_path / "v1")
    assert seen == [False]
    assert [p.name for p in tmp_path.iterdir()] == ["v1"]


def _set(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda settings: settings.update(values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set(peft_type="IA3"), "peft_type"),
        (_set(use_dora=True), "use_dora"),
        (_set(bias="all"), "bias"),
        (_set(lora_bias=True), "lora_bias"),
        (_set(modules_to_save=["lm_head"]), "modules_to_save"),
        (_set(use_rslora=True), "use_rslora"),
        (_set(rank_pattern={"q_proj": 4}), "rank_pattern"),
        (_set(alpha_pattern={"q_proj": 4}), "alpha_pattern"),
        (_set(init_lora_weights="pissa"), "init_lora_weights"),
        (_set(layer_replication=[[0, 1]]), "layer_replication"),
        (_set(target_parameters=["w"]), "target_parameters"),
        (_set(alora_invocation_tokens=[1]), "alora_invocation_tokens"),
        (_set(trainable_token_indices=[1]), "trainable_token_indices"),
        (_set(r=16), "greater than the server's 8"),
        (_set(r=0), "is no rank"),
        (_set(r="8"), "is no rank"),
        (_set(lora_alpha=0), "lora_alpha"),
        (_set(target_modules="all-linear"), "target_modules"),
        (_set(target_modules=["nothing"]), "no layer"),
        (_set(target_modules=["q_proj"]), "belongs to no layer"),
        (_set(r=4), "has shape"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(
    base: Base, saved: Path, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    path = saved / "adapter_config.json"
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))
    with pytest.raises(AdapterInvalid, match=reason):
        check_folder(saved, base=base, max_rank=8)


FIRST = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t | {FIRST: torch.full_like(t[FIRST], float("nan"))}, "not finite"),
        (lambda t: t | {FIRST: torch.full_like(t[FIRST], float("inf"))}, "not finite"),
        (lambda t: t | {FIRST: t[FIRST][:, :-8].contiguous()}, "has shape"),
        (lambda t: t | {FIRST: t[FIRST].to(torch.int8)}, "floating-point"),
        (lambda t: {n: x for n, x in t.items() if n != FIRST}, "is missing"),
        (lambda t: t | {"base_model.model.lm_head.lora_A.weight": t[FIRST].clone()}, "no layer"),
        (lambda t: {}, "is missing"),
    ],
)
def test_weights_that_cannot_be_served_are_refused(
    base: Base, saved: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], reason: str
) -> None:
    path = saved / "adapter_model.safetensors"
    changed = change(load_file(path))
    path.unlink()
    save_file(changed, path)
    with pytest.raises(AdapterInvalid, match=reason):
        check_folder(saved, base=base, max_rank=8)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_missing_and_broken_files_are_refused(base: Base, saved: Path, name: str) -> None:
    (saved / name).write_bytes(b"\x00rubbish")
    with pytest.raises(AdapterInvalid, match="cannot be read"):
        check_folder(saved, base=base, max_rank=8)
    (saved / name).unlink()
    with pytest.raises(AdapterInvalid, match="is missing"):
        check_folder(saved, base=base, max_rank=8)


def test_a_bad_parent_is_refused_before_the_base_is_touched(
    base: Base, config: TrainConfig, tmp_path: Path
) -> None:
    with pytest.raises(AdapterInvalid, match="missing"):
        attach(base, config, tmp_path / "nothing")
    assert not any("lora_" in name for name, _ in base.model.named_parameters())


def test_the_weights_hash_follows_the_bytes(tiny_folder: Path, tmp_path: Path) -> None:
    one = load_file(tiny_folder / "model.safetensors")
    save_file(one, tmp_path / "model.safetensors")
    first = weights_hash(tmp_path)
    assert weights_hash(tmp_path) == first
    name = next(iter(one))
    os.remove(tmp_path / "model.safetensors")
    save_file(one | {name: one[name] + 1}, tmp_path / "model.safetensors")
    assert weights_hash(tmp_path) != first
