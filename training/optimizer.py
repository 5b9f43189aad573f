"""Adam: how long its steps are, and its state beside a version, for its child. No pickle."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.adapters import adapter_tensors
from training.batching import Item
from training.config import TrainConfig
from training.errors import OptimizerInvalid

log = logging.getLogger(__name__)

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def make_optimizer(model: PeftModel, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101) over the adapter's parameters, known by their saved names."""
    return torch.optim.AdamW(
        [{"params": list(adapter_tensors(model).items())}],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )


def step_share(
    kl: float | None,
    *,
    effect: float | None,
    words_left: float | None = None,
    config: TrainConfig,
    items: Sequence[Item],
) -> float:
    """min(1, KL / (c E)) sqrt(min(1, n / N)): how much of the learning rate a step uses.

    Adam normalises the gradient, so near the target its steps would be as long as far from it,
    and mostly noise: the version would walk about and drift. So a step shrinks once less than a
    share c of the hints' whole effect E = KL(base || teacher) is left, and with the square root of
    the replies it rests on (the scaling rule of Adam, arXiv 2205.10287). Without hints there is
    no KL to go by: `reward_step` min(1, mean |A|) stands in for the first factor, so that thumbs
    that were expected move little. Where the user wrote what they wanted, too, there is the farther
    of two ways to go: `words_left` / c, if that is more (`corrections.WordsLeft`).
    """
    few = math.sqrt(min(1.0, len(items) / config.batch_size))
    if kl is not None and config.kl_full_share == 0:
        return few
    if kl is None or not effect:  # none was measured, or there is nothing to learn from the hints
        share = config.reward_step * _surprise(items, config)
    else:
        share = min(1.0, kl / (config.kl_full_share * effect))
    if words_left is not None and config.kl_full_share:
        share = max(share, min(1.0, words_left / config.kl_full_share))
    return share * few


def _surprise(items: Sequence[Item], config: TrainConfig) -> float:
    """min(1, mean |A|); 1 for KTO, whose every reply counts, however expected its thumb."""
    sizes = [abs(item.advantage) for item in items if item.advantage is not None]
    return 1.0 if config.is_kto or not sizes else min(1.0, sum(sizes) / len(sizes))


def save_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Write both moments and the step count of each parameter, as `save_tensors` does."""
    tensors = {
        f"{name}.{moment}": state[moment].detach().cpu().contiguous()
        for name, parameter in _named(optimizer).items()
        if (state := optimizer.state.get(parameter))
        for moment in _MOMENTS
    }
    save_tensors(tensors, path)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write one file of them; atomic, fsynced, may replace. Raises OSError, SafetensorError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    try:
        save_file(tensors, unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def go_on_with(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """From the state as the parent left it; a file that is damaged costs its moments alone."""
    try:
        load_optimizer(optimizer, path)
    except OptimizerInvalid as exc:
        log.warning("Adam begins anew: %s", exc)


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
    if not tensors:
        return
    numbers_N = torch.cat([tensor.flatten() for tensor in tensors.values()])  # checked and sent
    if not bool(torch.isfinite(numbers_N).all()):  # at once: a GPU waits for each thing it is sent
        raise OptimizerInvalid("Adam's state holds a number that is not finite")
    device = next(iter(parameters.values())).device
    sizes = [tensor.numel() for tensor in tensors.values()]
    parts = torch.split(numbers_N.to(device), sizes)
    placed = dict(zip(tensors, parts, strict=True))
    for name, parameter in parameters.items():
        first, second = (placed[f"{name}.{moment}"].view_as(parameter) for moment in _MOMENTS[:2])
        step = tensors[f"{name}.step"]  # stays in the processor's memory, as Adam has it
        optimizer.state[parameter] = {"exp_avg": first, "exp_avg_sq": second, "step": step}


def _named(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    (group,) = optimizer.param_groups
    return dict(zip(group["param_names"], group["params"], strict=True))
