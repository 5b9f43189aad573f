"""What it spares that vLLM's engine sleeps while its worker computes, on a CPU.

    PYTHONPATH=. python bench/load/waiting.py --rounds 5

Two model servers side by side, one as `make run` starts it, one as vLLM waits by itself. They take
turns: eight replies at once, beside a process that only counts, placed as the trainer is: on the
last core, with nice 10. Per turn: tokens per second, CPU seconds of the engine and of the worker,
and how far the other counted.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import httpx
import psutil

from clawweb.stack.guard import place
from clawweb.stack.parts import cores, run_folder, vllm
from tests.realstack import new_stack

REPLIES, TOKENS = 8, 100
OURS = ("--worker-extension-cls", "--distributed-executor-backend")


@dataclass(frozen=True, kw_only=True)
class Server:
    url: str
    key: str
    engine: psutil.Process
    worker: psutil.Process

    async def write(self) -> None:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {self.key}"}) as client:
            body = {"model": "base", "max_tokens": TOKENS, "ignore_eos": True}
            replies = [
                client.post(
                    f"{self.url}/v1/completions", json=body | {"prompt": f"{n}:"}, timeout=600
                )
                for n in range(REPLIES)
            ]
            for reply in await asyncio.gather(*replies):
                reply.raise_for_status()

    def turn(self, counted: Synchronized[int]) -> dict[str, float]:
        before = [cpu(self.engine), cpu(self.worker), counted.value]
        began = time.monotonic()
        asyncio.run(self.write())
        seconds = time.monotonic() - began
        after = [cpu(self.engine), cpu(self.worker), counted.value]
        engine, worker, steps = (b - a for a, b in zip(before, after, strict=True))
        return {
            "tokens/s": REPLIES * TOKENS / seconds,
            "engine, CPU s": engine,
            "worker, CPU s": worker,
            "counted/s": steps / seconds,
        }


def cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


@contextmanager
def serving(*, is_ours: bool) -> Iterator[Server]:
    """A model server of its own; without `is_ours` vLLM waits as it does by itself."""
    stack = new_stack()
    part = vllm(stack.config)
    (run_folder(stack.config) / "ipc").mkdir(parents=True, exist_ok=True)
    command = list(part.command)
    for option in () if is_ours else OURS:
        at = command.index(option)
        del command[at : at + 2]
    with (stack.config.var / "vllm.out").open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **part.environment}, stdout=output, stderr=output
        )
    try:
        while health(stack.config.vllm) != httpx.codes.OK:
            if process.poll() is not None:
                raise SystemExit((stack.config.var / "vllm.out").read_text()[-3000:])
            time.sleep(1)
        children = psutil.Process(process.pid).children(recursive=True)
        names = {child.cmdline()[0]: child for child in children}
        yield Server(
            url=stack.config.vllm,
            key=stack.config.secret("vllm_key", stack.config.vllm_key),
            engine=names["VLLM::EngineCore"],
            worker=names["VLLM::Worker"],
        )
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(stack.var, ignore_errors=True)


def health(url: str) -> int:
    try:
        return httpx.get(f"{url}/health").status_code
    except httpx.TransportError:
        return 0


def count(counted: Synchronized[int]) -> None:
    place(cores()[-1:], 10)
    while True:
        for _ in range(100_000):
            pass
        counted.value += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    counted: Any = multiprocessing.Value("q", 0)
    other = multiprocessing.Process(target=count, args=[counted], daemon=True)
    with ExitStack() as servers:
        both = {
            "asleep": servers.enter_context(serving(is_ours=True)),
            "as vLLM": servers.enter_context(serving(is_ours=False)),
        }
        other.start()
        for server in both.values():
            server.turn(counted)  # warms up
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in both}
        for round_ in range(args.rounds):
            for name in list(both)[:: -1 if round_ % 2 else 1]:
                turns[name].append(both[name].turn(counted))
                print(name, {what: round(x, 2) for what, x in turns[name][-1].items()}, flush=True)
        other.terminate()
    report(turns["asleep"], turns["as vLLM"])


def report(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> None:
    for what in ours[0]:
        medians = [statistics.median(turn[what] for turn in turns) for turns in (ours, theirs)]
        ratios = sorted(a[what] / b[what] for a, b in zip(ours, theirs, strict=True))
        least, median, most = ratios[0], statistics.median(ratios), ratios[-1]
        print(
            f"{what}: asleep {medians[0]:.2f}, as vLLM {medians[1]:.2f};"
            f" ratio {least:.2f} - {median:.2f} - {most:.2f}"
        )


if __name__ == "__main__":
    main()
