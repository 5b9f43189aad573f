"""What it spares on a CPU to multiply an adapter's tokens at once, and not each by itself.

    PYTHONPATH=. python bench/load/products.py --rounds 5

Side by side in one process, on one core: the adapters' products of one pass through the default
model's blocks, as vLLM's worker calls them, by its own kernels and by our `cpu_worker`. Random
weights, rank 8. Median of the rounds' ratios, with their range.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU as ByToken

from rollouts.engines.cpu_worker import PunicaByAdapter

LAYERS, HIDDEN, INNER, RANK, SLOTS = 30, 576, 1536, 8, 20  # SmolLM2-135M
MODULES = (  # inputs, outputs of what vLLM merges
    (HIDDEN, (HIDDEN, 192, 192)),
    (HIDDEN, (HIDDEN,)),
    (HIDDEN, (INNER, INNER)),
    (INNER, (HIDDEN,)),
)
BATCHES = (  # what, tokens, adapters, whether it is a prompt that is read
    ("one reply", 1, 1, False),
    ("8 replies, one adapter", 8, 1, False),
    ("32 replies, one adapter", 32, 1, False),
    ("32 replies, 8 adapters", 32, 8, False),
    ("20 replies, 20 adapters", 20, 20, False),
    ("a prompt of 200 tokens", 200, 1, True),
    ("4 prompts of 128 tokens, 4 adapters", 512, 4, True),
)


def wrapper_of(kind: Callable[..., Any], tokens: int, adapters: int, *, is_prefill: bool) -> Any:
    """Told which adapter each token wears: prompts one after the other, replies in turn."""
    wrapper = kind(1024, 64, "cpu")
    each = tuple(
        (n * adapters // tokens if is_prefill else n % adapters) + 1 for n in range(tokens)
    )
    mapping = SimpleNamespace(index_mapping=each, prompt_mapping=each, is_prefill=is_prefill)
    wrapper.update_metadata(mapping, list(range(1, SLOTS + 1)), SLOTS, 100)
    return wrapper


def seconds(wrapper: Any, layers: list[Any], tokens: int, dtype: torch.dtype) -> float:
    began = time.perf_counter()
    for (inputs, outputs), (low, high) in zip(MODULES * LAYERS, layers * LAYERS, strict=True):
        y = torch.zeros(tokens, sum(outputs), dtype=dtype)
        x = torch.ones(tokens, inputs, dtype=dtype)
        wrapper.add_lora_linear(y, x, low, high, 1.0, outputs)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for dtype in (torch.bfloat16, torch.float32):
        layers = [
            (
                tuple(torch.randn(SLOTS, 1, RANK, inputs).to(dtype) for _ in outputs),
                tuple(torch.randn(SLOTS, 1, each, RANK).to(dtype) for each in outputs),
            )
            for inputs, outputs in MODULES
        ]
        for what, tokens, adapters, is_prefill in BATCHES:
            both = [
                wrapper_of(kind, tokens, adapters, is_prefill=is_prefill)
                for kind in (ByToken, PunicaByAdapter)
            ]
            rounds = [
                [seconds(wrapper, layers, tokens, dtype) for wrapper in both]
                for _ in range(args.rounds + 1)
            ][1:]  # the first warms up
            ratios = sorted(theirs / ours for theirs, ours in rounds)
            theirs, ours = (1000 * statistics.median(part) for part in zip(*rounds, strict=True))
            print(
                f"{str(dtype).removeprefix('torch.')} | {what} | {theirs:.0f} ms | {ours:.0f} ms |"
                f" {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
