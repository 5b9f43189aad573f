"""What an adapter costs: bytes on disk, memory of the model server, time to load and to first use.

Part of `make bench-load`. Adapters with random weights are loaded one after the other, each asked
for a token (its weights are read then), and all of them again. Memory is the proportional set of
the model server's processes.
"""

from __future__ import annotations

import asyncio
import statistics
import time

import torch

from bench.load.watch import MIB, processes_of
from rollouts.types import BASE, Message, Policy, SamplingParams
from tests.loop.person import engine_of
from tests.realstack import Stack
from training.adapters import attach, save_version
from training.base import load_base
from training.config import TrainConfig


def adapter_costs(stack: Stack, count: int) -> dict[str, str]:
    """Of so many adapters in the running model server."""
    policies, size = make_adapters(stack, count)
    found = asyncio.run(measure(stack, policies))
    figures = {"adapter, bytes on disk": float(size), **found}
    return {name: f"{value:,.1f}" for name, value in figures.items()}


def make_adapters(stack: Stack, count: int) -> tuple[list[Policy], int]:
    """Random ones, as training leaves them on the disk; and one's bytes."""
    model = attach(load_base(stack.config.model_folder), TrainConfig(), None)
    policies = []
    for number in range(count):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.001)
        path = stack.var / "bench" / str(number)  # where no sweep looks
        path.parent.mkdir(parents=True, exist_ok=True)
        size = save_version(model, path).bytes
        policies.append(Policy(adapter=f"bench-u{number}-v1", version=1, path=str(path)))
    return policies, size


def memory(stack: Stack) -> float:
    return sum(process.memory_full_info().pss for process in processes_of(stack, "vllm")) / MIB


async def measure(stack: Stack, policies: list[Policy]) -> dict[str, float]:
    engine = engine_of(stack)
    hello = [Message(role="user", content="Hello")]

    async def ask(policy: Policy) -> float:
        started = time.perf_counter()
        await engine.generate(hello, policy=policy, params=SamplingParams(max_tokens=1))
        return time.perf_counter() - started

    for _ in range(3):
        await ask(BASE)
    base = [await ask(BASE) for _ in range(10)]
    before = memory(stack)
    loads, firsts = [], []
    for policy in policies:
        started = time.perf_counter()
        await engine.load(policy)
        loads.append(time.perf_counter() - started)
        firsts.append(await ask(policy))
    after = memory(stack)
    again = [await ask(policy) for policy in policies]
    return {
        "vLLM, MiB per adapter": (after - before) / len(policies),
        "load, ms, median": 1000 * statistics.median(loads),
        "first token of base, ms, median": 1000 * statistics.median(base),
        "first token by a new adapter, ms, median": 1000 * statistics.median(firsts),
        "the same adapter again, ms, median": 1000 * statistics.median(again),
    }
