"""What is mended in vLLM's worker on a CPU: tokens of the base model in a batch with adapters', and
seeds of prompts that are read in parts.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

BASE, FIRST, LAST = -1, 0, 2
INDICES = [BASE, FIRST, BASE, LAST]
HIDDEN, RANK, OUT = 3, 2, 4


def worker() -> Any:
    """Not with the other imports: vLLM's takes seconds, in each process that collects tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what vLLM imports warns of itself
        return import_module("rollouts.engines.cpu_worker")


@pytest.fixture(scope="module")
def kernels() -> Any:
    return worker().lora_ops


@pytest.fixture
def inputs_BH() -> Tensor:
    return torch.arange(4 * HIDDEN).reshape(4, HIDDEN).float() + 1


def slots(rows: int, columns: int) -> Tensor:
    """Weights of three slots: ones, twos, threes."""
    return torch.stack([torch.full((1, rows, columns), float(n)) for n in (1, 2, 3)])


def added(kernels: Any, inputs_BH: Tensor, indices: list[int], lora_b: Tensor) -> Tensor:
    """x A B of each token, by the kernels as the wrapper calls them."""
    token_lora = torch.tensor(indices)
    runs, counts = torch.unique_consecutive(token_lora, return_counts=True)
    meta = (torch.zeros(len(runs)), counts, runs, len(runs), int(counts.max()), len(indices))
    low_BR = torch.zeros(len(indices), RANK)
    y_BO = torch.zeros(len(indices), OUT)
    kernels.sgmv_shrink(inputs_BH, slots(RANK, HIDDEN), low_BR, *meta, 1.0)
    kernels.sgmv_expand_slice(low_BR, lora_b, y_BO, *meta, 0, OUT, True)
    whole_BO = torch.zeros(len(indices), OUT)
    kernels.bgmv_expand(low_BR, lora_b, whole_BO, token_lora, add_inputs=True)
    assert torch.allclose(y_BO, whole_BO, rtol=0, atol=0, equal_nan=True)
    return y_BO


def test_an_adapters_slot_changes_no_token_of_the_base(kernels: Any, inputs_BH: Tensor) -> None:
    found_BO = added(kernels, inputs_BH, INDICES, slots(OUT, RANK))
    # x A = (sum of x) n in both of rank 2, then times n in both: 2 n^2 times the sum
    assert found_BO.tolist() == [[0.0] * OUT, [2.0 * 15] * OUT, [0.0] * OUT, [18.0 * 33] * OUT]


def test_an_adapters_tokens_are_as_vllm_has_them(kernels: Any, inputs_BH: Tensor) -> None:
    indices = [FIRST, 1, 1, LAST]
    mixed = added(kernels, inputs_BH, indices, slots(OUT, RANK))
    alone = [
        added(kernels, inputs_BH[i : i + 1], [n], slots(OUT, RANK)) for i, n in enumerate(indices)
    ]
    assert torch.equal(mixed, torch.cat(alone))
    assert torch.equal(added(kernels, inputs_BH, [BASE] * 4, slots(OUT, RANK)), torch.zeros(4, OUT))


def test_what_is_no_number_in_a_slot_reaches_its_own_tokens_alone(
    kernels: Any, inputs_BH: Tensor
) -> None:
    lora_b = slots(OUT, RANK)
    lora_b[LAST] = torch.nan
    found_BO = added(kernels, inputs_BH, INDICES, lora_b)
    assert found_BO.isnan().any(dim=-1).tolist() == [False, False, False, True]


def wrapper_of(indices: list[int], *, is_prefill: bool) -> Any:
    """What vLLM's layers call, told which adapter each token of the batch wears."""
    worker()
    mapping = SimpleNamespace(  # vLLM's LoRAMapping, without all that its module imports
        index_mapping=tuple(0 if n == BASE else n + 1 for n in indices),
        prompt_mapping=tuple(0 if n == BASE else n + 1 for n in indices),
        is_prefill=is_prefill,
    )
    punica = import_module("vllm.lora.punica_wrapper.punica_cpu")
    wrapper = punica.PunicaWrapperCPU(64, 16, "cpu")
    wrapper.update_metadata(mapping, list(range(1, 11)), 10, 100)
    return wrapper


@pytest.mark.parametrize("is_prefill", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "indices",
    [
        [FIRST],
        [FIRST] * 6,
        [BASE, BASE, BASE, LAST, LAST, LAST],
        [FIRST, LAST, BASE, LAST, FIRST, 1],
        [BASE] * 4,
    ],
)
def test_products_by_adapter_are_those_by_token(
    monkeypatch: pytest.MonkeyPatch,
    is_prefill: bool,
    dtype: torch.dtype,
    indices: list[int],
) -> None:
    wrapper = wrapper_of(indices, is_prefill=is_prefill)
    assert wrapper._is_by_adapter
    torch.manual_seed(0)
    sizes = (4, 2)
    inputs_TH = torch.randn(len(indices), HIDDEN).to(dtype)
    low = tuple(torch.randn(3, 1, RANK, HIDDEN).to(dtype) for _ in sizes)
    high = tuple(torch.randn(3, 1, size, RANK).to(dtype) for size in sizes)
    start_TO = torch.randn(len(indices), sum(sizes)).to(dtype)
    ours_TO = start_TO.clone()
    wrapper.add_lora_linear(ours_TO, inputs_TH, low, high, 0.5, sizes)
    monkeypatch.setattr(wrapper, "_is_by_adapter", False)
    theirs_TO = start_TO.clone()
    wrapper.add_lora_linear(theirs_TO, inputs_TH, low, high, 0.5, sizes)
    torch.testing.assert_close(ours_TO, theirs_TO)
    for row, slot in enumerate(indices):  # and by hand
        added = [
            (0.5 * (inputs_TH[row].float() @ a[slot, 0].float().T)).to(dtype) @ b[slot, 0].T
            for a, b in zip(low, high, strict=True)
        ]
        wanted = start_TO[row] if slot == BASE else start_TO[row] + torch.cat(added)
        torch.testing.assert_close(ours_TO[row], wanted)


@pytest.mark.parametrize(
    ("adapters", "tokens", "is_by_adapter"),
    [(8, 8, True), (9, 9, False), (9, 26, False), (9, 27, True), (0, 5, True)],
)
def test_many_adapters_of_few_tokens_are_left_to_vllm(
    adapters: int, tokens: int, is_by_adapter: bool
) -> None:
    indices = [n % adapters if adapters else BASE for n in range(tokens)]
    wrapper = wrapper_of(indices, is_prefill=False)
    assert wrapper._is_by_adapter is is_by_adapter


def test_vllm_itself_still_takes_the_last_slot(kernels: Any, inputs_BH: Tensor) -> None:
    """When this fails vLLM has mended it, and `for_adapters_alone` can go."""
    low_BR = torch.zeros(1, RANK)
    shrink = kernels.bgmv_shrink.__wrapped__
    shrink(inputs_BH[:1], slots(RANK, HIDDEN), low_BR, torch.tensor([BASE]), 1.0)
    assert low_BR.tolist() == [[18.0, 18.0]]  # 3 times the sum of x, of a slot nobody asked for


class Runner:
    """As much of vLLM's runner as the guard reads: three requests with a seed, the second of which
    is read in part, and one without."""

    def __init__(self) -> None:
        generators = {row: torch.Generator().manual_seed(row) for row in (0, 1, 3)}
        self.input_batch = SimpleNamespace(generators=generators, num_reqs=4)
        self.discard_request_mask = SimpleNamespace(np=np.arange(4) == 1)


def test_a_request_that_is_read_in_part_draws_nothing_of_its_own() -> None:
    guard = worker().without_unread
    runner = Runner()
    own = dict(runner.input_batch.generators)

    def draw(runner: Runner, what: str, *, times: int) -> tuple[str, int, list[int]]:
        return what, times, sorted(runner.input_batch.generators)

    assert guard(draw)(runner, "a word", times=2) == ("a word", 2, [0, 3])
    assert runner.input_batch.generators == own

    def fail(runner: Runner) -> None:
        raise ValueError(sorted(runner.input_batch.generators))

    with pytest.raises(ValueError, match=r"\[0, 3\]"):
        guard(fail)(runner)
    assert runner.input_batch.generators == own


def test_vllm_itself_still_turns_a_seed_back_by_an_offset() -> None:
    """When this fails vLLM has mended it, and `without_unread` can go."""
    runners = worker().GPUModelRunner
    with pytest.raises(RuntimeError, match="CPU Generator does not use offset"):
        runners._bookkeeping_sync.__wrapped__(Runner(), None, None, None, None, 0)
    assert hasattr(runners._sample, "__wrapped__")
