"""Inside vLLM's worker on a CPU: what the base model answers stays the base model's.

In vLLM 0.32 index -1 means "no adapter", but its kernels for CPUs read it as Python does: the last
slot (its pull requests 48421 and 49656 are open). A request for the base that shares a batch with
an adapter's would wear what stands in that slot: the version of whoever came there last, also when
it was unloaded long ago. `--worker-extension-cls` names this; the worker imports it at its start.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.lora.ops import torch_ops
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu

KERNELS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")  # the sgmv_* call these


def for_adapters_alone(kernel: Any) -> Any:
    """The kernel, for the rows (tokens) whose index names a slot; it leaves the others alone."""

    @functools.wraps(kernel)
    def masked(
        inputs: Any, weights: Any, output: Any, indices: Any, *rest: Any, **named: Any
    ) -> None:
        wears_B = indices >= 0
        if bool(wears_B.all()):
            kernel(inputs, weights, output, indices, *rest, **named)
        elif bool(wears_B.any()):
            rows = output[: len(indices)]
            part = rows[wears_B]
            worn = inputs[: len(indices)][wears_B]
            kernel(worn, weights, part, indices[wears_B], *rest, **named)
            rows[wears_B] = part

    return masked


for _name in KERNELS:
    _masked = for_adapters_alone(getattr(lora_ops, _name))
    for _module in (lora_ops, torch_ops, punica_cpu):  # each has the name for itself
        setattr(_module, _name, _masked)


class BaseStaysBase:
    """What the option names. vLLM adds it to its worker, which needs nothing of it."""
