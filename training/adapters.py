"""LoRA adapters: put on the base, taken off, saved whole or not at all, refused when bad."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from training.base import Base, standing_in
from training.config import TrainConfig
from training.errors import AdapterInvalid

WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
_PREFIX = "base_model.model."

FEW = 4  # rows that weights are laid out for; as good for dozens
_ONEDNN: Any = torch.ops.mkldnn  # the two functions that torch's compiler calls for linear layers
_LAYS_OUT = (
    all(hasattr(_ONEDNN, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    and hasattr(_ONEDNN, "_is_mkldnn_bf16_supported")
    and _ONEDNN._is_mkldnn_bf16_supported()  # it refuses CPUs that have no instructions for bf16
)

# What the server refuses, or would quietly get wrong, unless the setting has this value.
_PLAIN_SETTINGS: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "target_parameters": (None, []),
    "layers_to_transform": (None, []),
    "layer_replication": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "exclude_modules": (None, []),
    "alora_invocation_tokens": (None, []),
    "trainable_token_indices": (None, []),
    "init_lora_weights": (True, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAdapter:
    """A version on disk. `sha256` is of the weights' file, `bytes` of the whole folder; `rank` may
    be its parent's and not the setting's."""

    path: Path
    sha256: str
    bytes: int
    rank: int


def attach(base: Base, config: TrainConfig, parent: Path | None) -> PeftModel:
    """The base wearing a trainable adapter: `parent`'s, else a fresh one that changes nothing.

    All linear layers of the blocks, no dropout; rank and alpha are the parent's when there is one.
    The base's modules are wrapped in place: `detach` must follow before the next `attach`.
    Raises AdapterInvalid when the parent does not fit the base.
    """
    rank, alpha = config.rank, config.alpha
    if parent is not None:
        settings = check_folder(parent, base=base, max_rank=max(512, config.rank))
        rank, alpha = settings["r"], settings["lora_alpha"]
    torch.manual_seed(config.seed)  # of the fresh A matrices
    lora = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        target_modules=sorted({name.rsplit(".", 1)[-1] for name in _linear_shapes(base.model)}),
    )
    model = get_peft_model(base.model, lora)
    model.eval()
    if parent is not None:
        _copy_into(model, load_file(parent / WEIGHTS))
    return model


def detach(base: Base, model: PeftModel) -> None:
    """Take the adapter off. The base is bit for bit what it was, and nothing of it is trainable."""
    bare: Any = model.unload()
    if bare is not base.model:
        raise AdapterInvalid("the adapter sits on another base model")
    if hasattr(bare, "peft_config"):
        del bare.peft_config
    bare.requires_grad_(False)


def save_version(model: PeftModel, folder: Path) -> SavedAdapter:
    """Write `folder` so that it appears whole or not at all; raises FileExistsError if it is there.

    bf16 halves what the server reads. The model's own adapter is rounded with it, so that what is
    measured afterwards (gate, probe) is what was saved.
    """
    if folder.exists():
        raise FileExistsError(f"{folder.name} exists; a version is never overwritten")
    round_to_saved(model)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.unfinished-{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    try:
        tensors = {
            name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
            for name, tensor in adapter_tensors(model).items()
        }
        save_file(tensors, unfinished / WEIGHTS, metadata={"format": "pt"})
        (unfinished / SETTINGS).write_text(_settings_text(model), encoding="utf-8")
        for name in (WEIGHTS, SETTINGS):
            _fsync(unfinished / name)
        _fsync(unfinished)
        os.rename(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _fsync(folder.parent)
    size = sum((folder / name).stat().st_size for name in (WEIGHTS, SETTINGS))
    settings: Any = model.peft_config["default"]
    sha256 = file_sha256(folder / WEIGHTS)
    return SavedAdapter(path=folder, sha256=sha256, bytes=size, rank=settings.r)


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_folder(folder: Path, *, base: Base, max_rank: int) -> dict[str, Any]:
    """The adapter's settings when it may be served on `base`; else AdapterInvalid with the reason.

    Guards what the server does not: it takes wrong shapes without a word (wrong replies), and one
    NaN adapter poisons other people's requests through its cache.
    """
    settings = _checked_settings(folder, max_rank)
    try:
        tensors = load_file(folder / WEIGHTS)
    except FileNotFoundError as exc:
        raise AdapterInvalid(f"{WEIGHTS} is missing") from exc
    except (SafetensorError, OSError) as exc:
        raise AdapterInvalid(f"{WEIGHTS} cannot be read: {exc}") from exc
    expected = _expected_shapes(base, settings)
    if missing := sorted(expected.keys() - tensors.keys()):
        raise AdapterInvalid(f"tensor {missing[0]} is missing ({len(missing)} in all)")
    if unknown := sorted(tensors.keys() - expected.keys()):
        raise AdapterInvalid(f"tensor {unknown[0]} belongs to no layer of the base model")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != expected[name]:
            raise AdapterInvalid(f"{name} has shape {tuple(tensor.shape)}, not {expected[name]}")
        if not tensor.is_floating_point():
            raise AdapterInvalid(f"{name} holds {tensor.dtype}, not floating-point numbers")
        if not bool(torch.isfinite(tensor).all()):
            raise AdapterInvalid(f"{name} holds a number that is not finite")
    return settings


def adapter_tensors(model: PeftModel) -> dict[str, Tensor]:
    """The adapter's parameters under the names they have on disk: themselves, no copies."""
    return {
        name.replace(".default.weight", ".weight"): parameter
        for name, parameter in model.named_parameters()
        if ".lora_A." in name or ".lora_B." in name
    }


def snapshot(model: PeftModel) -> dict[str, Tensor]:
    """Copies of the adapter's parameters as they are now."""
    return {name: tensor.detach().clone() for name, tensor in adapter_tensors(model).items()}


@torch.no_grad()
def round_to_saved(model: PeftModel) -> None:
    """Round the adapter to what a saved version holds (bf16), in place. Idempotent."""
    for tensor in adapter_tensors(model).values():
        tensor.copy_(tensor.to(torch.bfloat16).to(tensor.dtype))


@torch.no_grad()
def scale(model: PeftModel, end: dict[str, Tensor], *, share: float) -> None:
    """Set the adapter to that share of the way from the base to `end`: B shrinks, A stays."""
    for name, tensor in adapter_tensors(model).items():
        tensor.copy_(end[name] * (share if ".lora_B." in name else 1.0))


@contextmanager
def _bare(model: PeftModel) -> Iterator[None]:
    """Inside, `model` answers as the base. As peft's `disable_adapter`, but for its look at the
    state of every layer, which took longer than a short pass."""
    switched = [layer for layer in _adapted(model) if not layer.disable_adapters]
    for layer in switched:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in switched:
            layer.enable_adapters(True)


def _adapted(model: PeftModel) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


@contextmanager
def wearing(model: PeftModel, version: Path | dict[str, Tensor] | None) -> Iterator[None]:
    """Inside, `model` answers as `version`: a folder, a snapshot, or None for the base.

    Its own adapter is back afterwards.
    """
    if version is None:
        with _bare(model):
            yield
        return
    own = snapshot(model)
    _copy_into(model, load_file(version / WEIGHTS) if isinstance(version, Path) else version)
    try:
        yield
    finally:
        _copy_into(model, own)


@contextmanager
def merged(model: PeftModel, low: torch.dtype | None = None) -> Iterator[None]:
    """Inside, `model` says the same, but few rows at a time three times as fast: for sampling.

    In fp32 W + (alpha/r) B A stands in for W, column by column: so few rows read it faster. Where
    products are in `low` W is rounded once, on a CPU laid out once, too, as its products want it,
    and (alpha/r) B A x is added to W x: rounded into W most of what an adapter adds would vanish,
    being less than `low` tells apart there.

    The base's own tensors are put back, not recomputed, so no rounding leaks into them. Costs a
    second copy of the weights, but of those that are in `low` already (on a GPU).
    """
    layers = _adapted(model)
    head: Any = model.get_base_model().get_output_embeddings()  # type: ignore[operator]
    low = low or head.weight.dtype
    weights: dict[Any, Tensor] = {}
    laid_out: dict[Any, Callable[[Tensor], Tensor]] = {}
    hooks: list[Any] = []
    with torch.no_grad():
        if low == torch.float32:
            weights = {head: _by_columns(head.weight)}
            weights |= {layer.get_base_layer(): _by_columns(_summed(layer)) for layer in layers}
        else:
            modules = [head, *(layer.get_base_layer() for layer in layers)]
            if head.weight.device.type == "cpu" and low == torch.bfloat16 and _LAYS_OUT:
                laid_out = {module: _laid_out(module, low) for module in modules}
            else:
                weights = {m: m.weight.to(low) for m in modules if m.weight.dtype != low}
            hooks = [_adding(layer) for layer in layers if not layer.disable_adapters]
    try:
        for module, product in laid_out.items():
            module.forward = product
        with standing_in(weights), _bare(model):
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in laid_out:
            del module.forward  # its class's again


def _summed(layer: Any) -> Tensor:
    """W + (alpha/r) B A; W alone where the adapter is switched off."""
    weight: Tensor = layer.get_base_layer().weight
    return weight if layer.disable_adapters else weight + layer.get_delta_weight("default")


def _by_columns(weight: Tensor) -> Tensor:
    """A copy that is stored column by column."""
    return weight.t().contiguous().t()


def _laid_out(module: Any, low: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The module's product, to the bit, with its weight in oneDNN's own order: a plain product puts
    it so at each call, which takes as long as the product with few rows itself."""
    weight = _ONEDNN._reorder_linear_weight(module.weight.detach().to(low), FEW)
    bias = None if module.bias is None else module.bias.detach().to(low)

    def product(x: Tensor) -> Tensor:
        result: Tensor = _ONEDNN._linear_pointwise(x.to(low), weight, bias, "none", [], "")
        return result

    return product


def _adding(layer: Any) -> Any:
    """A hook by which the wrapped layer's output has (alpha/r) B A x added to it; in fp32, as a CPU
    takes longer over bf16 of so few numbers."""
    a_IR = layer.lora_A["default"].weight.detach().t()
    b_RO = layer.scaling["default"] * layer.lora_B["default"].weight.detach().t()

    def added(_: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        with torch.autocast(output.device.type, enabled=False):
            more: Tensor = args[0].to(a_IR.dtype) @ a_IR @ b_RO
            return output + more.to(output.dtype)

    return layer.get_base_layer().register_forward_hook(added)


def _checked_settings(folder: Path, max_rank: int) -> dict[str, Any]:
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise AdapterInvalid(f"{SETTINGS} is missing") from exc
    except (ValueError, OSError) as exc:
        raise AdapterInvalid(f"{SETTINGS} cannot be read: {exc}") from exc
    if not isinstance(settings, dict):
        raise AdapterInvalid(f"{SETTINGS} is not an object")
    for name, allowed in _PLAIN_SETTINGS.items():
        if settings.get(name) not in allowed:
            raise AdapterInvalid(f"{name}={settings.get(name)!r} cannot be served")
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise AdapterInvalid(f"rank {rank!r} is no rank")
    if rank > max_rank:
        raise AdapterInvalid(f"rank {rank} is greater than the server's {max_rank}")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or alpha <= 0:
        raise AdapterInvalid(f"lora_alpha {alpha!r} is no scale")
    targets = settings.get("target_modules")
    if not isinstance(targets, list) or not all(isinstance(name, str) for name in targets):
        raise AdapterInvalid("target_modules must be a list of names")
    return settings


def _expected_shapes(base: Base, settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (out_features, in_features) in _linear_shapes(base.model).items():
        if name.rsplit(".", 1)[-1] in settings["target_modules"]:
            shapes[f"{_PREFIX}{name}.lora_A.weight"] = (settings["r"], in_features)
            shapes[f"{_PREFIX}{name}.lora_B.weight"] = (out_features, settings["r"])
    if not shapes:
        raise AdapterInvalid("target_modules names no layer of the base model")
    return shapes


def _linear_shapes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Linear layers of the blocks, (out, in) by name; the output layer is never adapted.

    (The server leaves an adapted output layer out of prompt log-probs.) Wrapped layers count
    under the name of what they wrap.
    """
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    shapes = {}
    for name, module in model.named_modules():
        if ".lora_" in name or name.endswith(".base_layer"):
            continue  # the parts of a wrapped layer
        inner: Any = module.get_base_layer() if isinstance(module, LoraLayer) else module
        if isinstance(inner, nn.Linear) and inner is not head:
            shapes[name] = (inner.out_features, inner.in_features)
    return shapes


@torch.no_grad()
def _copy_into(model: PeftModel, tensors: dict[str, Tensor]) -> None:
    own = adapter_tensors(model)
    if own.keys() != tensors.keys():
        raise AdapterInvalid("the version adapts other layers than this model")
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise AdapterInvalid(f"{name} has shape {tuple(tensor.shape)}")
        own[name].copy_(tensor)


def _settings_text(model: PeftModel) -> str:
    settings = model.peft_config["default"].to_dict()
    settings["inference_mode"] = True
    settings["base_model_name_or_path"] = Path(
        str(settings.get("base_model_name_or_path") or "base")
    ).name
    settings["target_modules"] = sorted(settings["target_modules"])
    return json.dumps(settings, indent=2, sort_keys=True, default=str) + "\n"


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
