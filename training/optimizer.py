"""Adam's state beside a version: saved with it, restored for its child. No pickle."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.adapters import adapter_tensors
from training.config import TrainConfig
from training.errors import OptimizerInvalid

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def make_optimizer(model: PeftModel, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101) over the adapter's parameters, known by their saved names."""
    return torch.optim.AdamW(
        [{"params": list(adapter_tensors(model).items())}],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )


def save_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Write both moments and the step count of each parameter; atomic, fsynced, may replace."""
    tensors = {
        f"{name}.{moment}": state[moment].detach().cpu().contiguous()
        for name, parameter in _named(optimizer).items()
        if (state := optimizer.state.get(parameter))
        for moment in _MOMENTS
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    try:
        save_file(tensors, unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Restore what save_optimizer wrote. OptimizerInvalid leaves the optimizer untouched."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as exc:
        raise OptimizerInvalid(f"Adam's state cannot be read: {exc}") from exc
    parameters = _named(optimizer)
    expected = {f"{name}.{moment}" for name in parameters for moment in _MOMENTS}
    if tensors and expected != tensors.keys():
        raise OptimizerInvalid("Adam's state is of an adapter with other layers")
    for name, parameter in parameters.items():
        for moment in ("exp_avg", "exp_avg_sq"):
            saved = tensors.get(f"{name}.{moment}")
            if saved is not None and saved.shape != parameter.shape:
                raise OptimizerInvalid(f"Adam's state of {name} has another shape")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise OptimizerInvalid("Adam's state holds a number that is not finite")
    for name, parameter in parameters.items() if tensors else ():
        optimizer.state[parameter] = {
            moment: _placed(tensors[f"{name}.{moment}"], parameter, moment) for moment in _MOMENTS
        }


def _named(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    (group,) = optimizer.param_groups
    return dict(zip(group["param_names"], group["params"], strict=True))


def _placed(tensor: Tensor, parameter: Tensor, moment: str) -> Tensor:
    return tensor if moment == "step" else tensor.to(parameter.device)
