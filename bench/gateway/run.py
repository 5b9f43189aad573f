"""What the gateway adds to vLLM: time to the first token, time per request, CPU per token.

    make bench-gateway                 # or, with other numbers:
    PYTHONPATH=. python bench/gateway/run.py --streams 1 8 --pairs 10 --workers 2

The system is started by the code that users start it by, without the workers. Then pairs of
bursts: so many streams at once to vLLM itself, and as many through the gateway, in alternating
order, so that what else the machine does hits both. A figure is the difference within a pair. All
ask base, whose replies are equally long on both ways: 32 tokens of counting. Each prompt begins
with words of its own, so that no prefix is cached. vLLM is asked plainly, as a client would; the
gateway asks it for ids and log-probs too, keeps every reply in the database and counts limits.

CPU is user plus system time of the web, the generator and Valkey over all bursts of a kind,
divided by the tokens that came through. Sent is the size of the stream that a client reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import httpx

from bench.gateway.report import table
from bench.load.watch import processes_of
from tests.realstack import Stack, running

HERE = Path(__file__).resolve().parent
PARTS = ("web", "generator", "valkey")
PAIRS = {1: 40, 8: 20, 32: 10}
TOKENS = 32
DIRECT, GATEWAY = "direct", "gateway"
# Counted, and never reached.
LIMITS = {"requests_per_minute": "100000", "tokens_per_minute": "100000000", "concurrent": "1000"}
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """Where a stream is asked for."""

    name: str
    url: str
    key: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One stream, in milliseconds from the request's first byte."""

    first: float
    last: float
    tokens: int
    bytes: int


async def stream(client: httpx.AsyncClient, way: Way) -> Seen:
    """Ask once and read all of it; raises when it is not a whole reply."""
    text = f"{uuid.uuid4()} {uuid.uuid4()}: Count from one to one hundred in words."
    body = {
        "model": "base",
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "max_tokens": TOKENS,
    }
    headers = {"Authorization": f"Bearer {way.key}"}
    first, size, tokens = 0.0, 0, 0
    started = time.perf_counter()
    async with client.stream("POST", way.url, json=body, headers=headers) as answer:
        if answer.status_code != 200:
            raise SystemExit(f"{way.name}: {answer.status_code} {await answer.aread()!r}")
        async for line in answer.aiter_lines():
            size += len(line) + 1
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise SystemExit(f"{way.name}: {chunk}")
            if not first and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                first = time.perf_counter()
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    ended = time.perf_counter()
    if not first or not tokens:
        raise SystemExit(f"{way.name}: the reply was empty")
    return Seen((first - started) * 1000, (ended - started) * 1000, tokens, size)


async def burst(client: httpx.AsyncClient, way: Way, streams: int) -> Facts:
    """So many streams at once: their medians, and tokens per second of all."""
    started = time.perf_counter()
    seen = await asyncio.gather(*(stream(client, way) for _ in range(streams)))
    seconds = time.perf_counter() - started
    tokens = sum(one.tokens for one in seen)
    return {
        "first_ms": statistics.median(one.first for one in seen),
        "request_ms": statistics.median(one.last for one in seen),
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "bytes_per_token": sum(one.bytes for one in seen) / tokens,
        "load": os.getloadavg()[0],
    }


class Clock:
    """CPU seconds of the system's parts."""

    def __init__(self, running: Stack) -> None:
        self.processes = {part: processes_of(running, part) for part in (*PARTS, "vllm")}

    def read(self) -> dict[str, float]:
        return {
            part: sum(sum(process.cpu_times()[:2]) for process in processes)
            for part, processes in self.processes.items()
        }


async def measure(running: Stack, ways: Sequence[Way], streams: int, pairs: int) -> Facts:
    """Pairs of bursts with so many streams; one pair before them warms up."""
    clock = Clock(running)
    bursts: dict[str, list[Facts]] = {way.name: [] for way in ways}
    cpu = {way.name: dict.fromkeys((*PARTS, "vllm"), 0.0) for way in ways}
    # A burst may take longer than a server keeps an idle connection: those are not used again.
    kept = httpx.Limits(keepalive_expiry=1)
    async with httpx.AsyncClient(timeout=120, trust_env=False, limits=kept) as client:
        for number in range(pairs + 1):
            for way in ways if number % 2 else reversed(ways):
                before = clock.read()
                found = await burst(client, way, streams)
                await asyncio.sleep(0.3)  # what is written after the last byte is work too
                if not number:
                    continue
                bursts[way.name].append(found)
                for part, seconds in clock.read().items():
                    cpu[way.name][part] += seconds - before[part]
    return {"streams": streams, "bursts": bursts, "cpu_seconds": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", nargs="+", type=int, default=list(PAIRS))
    parser.add_argument("--pairs", type=int, default=0, help="of bursts; 0 = by streams")
    parser.add_argument("--workers", type=int, default=1, help="processes of the web server")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cpu.json")
    args = parser.parse_args()
    parts = "valkey,vllm,web,generator"
    with running("--parts", parts, web_workers=str(args.workers), **LIMITS) as stack:
        vllm_key = stack.config.secret("vllm_key", stack.config.vllm_key)
        ways = [
            Way(DIRECT, f"{stack.config.vllm}/v1/chat/completions", vllm_key),
            Way(GATEWAY, f"{stack.url}/v1/chat/completions", stack.key("bench")),
        ]
        cases = []
        for streams in args.streams:
            pairs = args.pairs or PAIRS.get(streams, 10)
            cases.append(asyncio.run(measure(stack, ways, streams, pairs)))
            print(table(cases), flush=True)
            keep(args.out, args.workers, cases)


def keep(path: Path, workers: int, cases: Sequence[Facts]) -> None:
    """Write down what there is so far."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    facts = {"date": str(date.today()), "machine": machine, "workers": workers}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
