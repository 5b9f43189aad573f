from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from tests.training.conftest import DEVICE
from training.adapters import adapter_tensors, attach, detach, save_version
from training.base import Base
from training.config import TrainConfig
from training.probe import write_probe


def test_the_probe_holds_what_the_saved_version_says(
    base: Base, config: TrainConfig, tmp_path: Path
) -> None:
    model = attach(base, config, None)
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            tensor.copy_(torch.randn_like(tensor) * 0.2)
    write_probe(base, model, tmp_path / "v1.probe.json")
    save_version(model, tmp_path / "v1")
    detach(base, model)
    probe = json.loads((tmp_path / "v1.probe.json").read_text())
    assert set(probe) == {"prompt_ids", "response_ids", "adapter_logprobs", "base_logprobs"}

    def scored(answering: torch.nn.Module) -> list[float]:
        ids = torch.tensor([probe["prompt_ids"] + probe["response_ids"]], device=DEVICE)
        with torch.no_grad():
            rows = torch.log_softmax(answering(input_ids=ids).logits[0].float(), -1)
        start = len(probe["prompt_ids"]) - 1
        return [float(rows[start + i, token]) for i, token in enumerate(probe["response_ids"])]

    assert probe["base_logprobs"] == pytest.approx(scored(base.model), abs=1e-4)
    again = attach(base, config, tmp_path / "v1")
    assert probe["adapter_logprobs"] == pytest.approx(scored(again), abs=1e-4)
    detach(base, again)
    assert probe["adapter_logprobs"] != pytest.approx(probe["base_logprobs"], abs=1e-2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["v1", "v1.probe.json"]


def test_the_probe_is_exact_where_the_trainer_computes_in_bf16(
    base: Base, model: PeftModel, tmp_path: Path
) -> None:
    half = replace(base, autocast_dtype=torch.bfloat16)
    written = []
    for number, one in enumerate((base, half)):
        path = tmp_path / f"{number}.probe.json"
        write_probe(one, model, path)
        written.append(json.loads(path.read_text()))
    assert written[0] == written[1]
