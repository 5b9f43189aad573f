"""Inside vLLM's worker on a CPU: base stays base, an adapter's tokens are multiplied at once, and a
seed ends no server.

In vLLM 0.32 index -1 means "no adapter", but its kernels for CPUs read it as Python does: the last
slot (its pull requests 48421 and 49656 are open). A request for the base that shares a batch with
an adapter's would wear what stands in that slot: the version of whoever came there last, also when
it was unloaded long ago.

And they copy an adapter's matrices for each token, and multiply each copy by itself: most of the
time of a reply with an adapter goes there. Tokens of one adapter need one product for all of them.

And a prompt that does not fit into a step is read in parts, after each of which a word is drawn and
thrown away. vLLM then turns the request's generator back by an offset, which generators of a GPU
have and those of a CPU have not: any such prompt with a seed would end the server.

`--worker-extension-cls` names this; the worker imports it at its start.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from vllm.lora.ops import torch_ops
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

KERNELS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")  # the sgmv_* call these
# Products by adapter are the quicker ones of up to so many adapters, and of so many tokens to each
# of more (bench/load/products.py).
FEW_ADAPTERS, MANY_TOKENS = 8, 3


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


def rows_by_slot(indices_T: Any) -> list[tuple[int, Any]]:
    """The slots that tokens wear, each with its rows: their indices, or a slice where they stand
    together."""
    found: list[tuple[int, Any]] = []
    for slot in sorted(set(indices_T.tolist())):
        if slot >= 0:
            rows = (indices_T == slot).nonzero().squeeze(-1)
            first, after = int(rows[0]), int(rows[-1]) + 1
            found.append((slot, slice(first, after) if after - first == len(rows) else rows))
    return found


def without_unread(step: Any) -> Any:
    """The runner's method; while it runs, requests whose prompt is read in part have no generator.
    The word that is thrown away comes from everybody's, and theirs stands where it stood."""

    @functools.wraps(step)
    def stepped(runner: Any, *args: Any, **named: Any) -> Any:
        generators = runner.input_batch.generators
        is_unread_B = runner.discard_request_mask.np
        unread = {row: generators[row] for row in generators if is_unread_B[row]}
        for row in unread:
            del generators[row]
        try:
            return step(runner, *args, **named)
        finally:
            generators.update(unread)

    return stepped


class PunicaByAdapter(punica_cpu.PunicaWrapperCPU):
    """vLLM's products of adapters for CPUs, by adapter and not by token where that is quicker."""

    _by_slot: Sequence[tuple[int, Any]] = ()
    _is_by_adapter = False

    def update_metadata(self, *mapping: Any, **named: Any) -> None:
        super().update_metadata(*mapping, **named)
        indices_T = self.token_lora_indices
        self._by_slot = rows_by_slot(indices_T)
        adapters = len(self._by_slot)
        is_many_each = len(indices_T) >= MANY_TOKENS * adapters
        self._is_by_adapter = adapters <= FEW_ADAPTERS or is_many_each

    def add_lora_linear(
        self,
        y: Any,
        x: Any,
        lora_a_stacked: tuple[Any, ...],
        lora_b_stacked: tuple[Any, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **rest: Any,
    ) -> None:
        """y += s B (A x) of each token's adapter, in place; rounded where vLLM rounds."""
        if not self._is_by_adapter:
            super().add_lora_linear(
                y, x, lora_a_stacked, lora_b_stacked, scale, output_slices, **rest
            )
            return
        for slot, rows in self._by_slot:
            worn = x[rows].float()
            start = 0
            for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                low = (scale * (worn @ a[slot, 0].float().T)).to(y.dtype)
                high = low.float() @ b[slot, 0].float().T  # torch's small products in bf16 are slow
                y[rows, start : start + size] += high.to(y.dtype)
                start += size


for _name in KERNELS:
    _masked = for_adapters_alone(getattr(lora_ops, _name))
    for _module in (lora_ops, torch_ops, punica_cpu):  # each has the name for itself
        setattr(_module, _name, _masked)
for _name in ("_sample", "_bookkeeping_sync"):
    setattr(GPUModelRunner, _name, without_unread(getattr(GPUModelRunner, _name)))
punica_cpu.PunicaWrapperCPU = PunicaByAdapter  # type: ignore[misc]  # looked up by its name


class BaseStaysBase:
    """What the option names. vLLM adds it to its worker, which needs nothing of it."""
