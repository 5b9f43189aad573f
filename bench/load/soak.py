"""Many open chats for long: do the web server's or Valkey's memory, files or clients grow?

    make bench-soak                                        # 200 sockets, ten minutes
    make bench-soak ARGS="--sockets 50 --seconds 60"       # to try it

A real web server and Valkey, no model: replies come from tests/writer.py. Each visitor opens a
socket, says something, reads the reply to its end or leaves in mid-reply and comes back with a
cursor, goes quiet, closes, comes again. What arrives is compared with what was asked for.

The figures are read every two seconds. Once all have come and gone a little (forty seconds, or half
of a short run) the median of the last quarter may be at most --growth (a share) above that of the
first quarter, else the exit status is 1: of the web server's proportional memory and open files,
and of Valkey's clients and memory, the logs of replies left out: those are kept for an hour, by
design. A wrong reply fails, too. A pool of connections grows to what was ever used at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from redis import Redis
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from bench.load.people import SEED
from bench.load.watch import MIB, processes_of
from tests.browser.demo import NOBODY, Demo
from tests.realstack import Stack, running

HERE = Path(__file__).resolve().parent
WORDS, RATE = 40, 8.0  # of a reply, and how many come in a second
QUIET = (10.0, 40.0)  # seconds between two questions
PATIENCE = 120.0
WARM_SECONDS = 40.0
# What may come and go without being a leak: a thread's connection, a page of memory.
SLACK = {"web_pss": 8.0, "web_files": 12, "valkey_clients": 12, "valkey_other": 1.0}
Figures = dict[str, float]


@dataclass(slots=True)
class Tally:
    """What all visitors went through."""

    open: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Visitor:
    """One browser's worth of sockets, one after another."""

    def __init__(self, url: str, cookie: str, tally: Tally, chance: random.Random) -> None:
        self.address = url.replace("http", "ws", 1) + "/ws/chat/"
        self.headers = {"Cookie": f"sessionid={cookie}"}
        self.tally = tally
        self.chance = chance

    async def visit(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                await self._stay(until)
            except (OSError, WebSocketException, TimeoutError) as exc:
                self.tally.counts[type(exc).__name__] += 1
                await asyncio.sleep(1)

    async def _stay(self, until: float) -> None:
        """One socket, or two where the first is left in mid-reply."""
        socket = await self._open()
        try:
            for _ in range(self.chance.randint(1, 4)):
                await self._keep_quiet(until, self.chance.random())
                if time.monotonic() > until:
                    return
                socket = await self._ask(socket)
                await self._keep_quiet(until)
        finally:
            await self._close(socket)

    async def _keep_quiet(self, until: float, share: float = 1.0) -> None:
        seconds = self.chance.uniform(*QUIET) * share
        await asyncio.sleep(max(0, min(seconds, until - time.monotonic())))

    async def _open(self) -> ClientConnection:
        socket = await connect(
            self.address, additional_headers=self.headers, proxy=None, open_timeout=PATIENCE
        )
        self.tally.open += 1
        self.tally.counts["sockets"] += 1
        return socket

    async def _close(self, socket: ClientConnection) -> None:
        self.tally.open -= 1
        await socket.close()

    async def _ask(self, socket: ClientConnection) -> ClientConnection:
        """Say something and read what comes; the socket that is open afterwards."""
        text = " ".join(f"word{self.chance.randrange(1000)}" for _ in range(WORDS))
        message = {"type": "send", "text": text, "client_id": uuid.uuid4().hex}
        await socket.send(json.dumps(message))
        leave_at = self.chance.randrange(len(text)) if self.chance.random() < 0.3 else None
        turn, read = "", ""
        async with asyncio.timeout(PATIENCE):
            while True:
                told = json.loads(await socket.recv())
                if told["type"] == "error":
                    self.tally.counts["refused"] += 1
                    return socket
                if told["type"] == "turn":
                    turn = told["turn"]["id"]
                elif told["type"] == "delta" and told["turn"] == turn:
                    # What was read before the cut may come again: the cursor says where it belongs.
                    read = read[: told["cursor"] - len(told["text"])] + told["text"]
                    if leave_at is not None and len(read) > leave_at:
                        leave_at = None
                        socket = await self._come_back(socket, turn, len(read))
                elif told["type"] == "done" and told["turn"]["id"] == turn:
                    self._compare(text, read, told["turn"])
                    return socket

    async def _come_back(
        self, socket: ClientConnection, turn: str, cursor: int
    ) -> ClientConnection:
        await self._close(socket)
        self.tally.counts["cuts"] += 1
        await asyncio.sleep(self.chance.random())
        socket = await self._open()
        await socket.send(json.dumps({"type": "follow", "turn": turn, "cursor": cursor}))
        return socket

    def _compare(self, text: str, read: str, turn: dict[str, Any]) -> None:
        self.tally.counts[turn["state"]] += 1
        if turn["state"] == "complete" and not text == read == turn["reply"]:
            self.tally.wrong.append(turn["id"])


def figures(stack: Stack, valkey: Redis) -> Figures:
    """Of the web server and Valkey, now; memory in MiB."""
    web = processes_of(stack, "web")
    memory = valkey.info("memory")
    found = {
        "web_pss": sum(process.memory_full_info().pss for process in web) / MIB,
        "web_files": sum(process.num_fds() for process in web),
        "web_cpu": sum(sum(process.cpu_times()[:2]) for process in web),
        "valkey_memory": memory["used_memory"] / MIB,
        "valkey_clients": valkey.info("clients")["connected_clients"],
    }
    logs = valkey.pipeline(transaction=False)
    for key in valkey.scan_iter("gen:turn*", count=1000):
        logs.memory_usage(key)
    found["valkey_logs"] = sum(size or 0 for size in logs.execute()) / MIB
    found["valkey_other"] = found["valkey_memory"] - found["valkey_logs"]
    return found


async def soak(stack: Stack, people: Sequence[dict[str, str]], args: argparse.Namespace) -> Any:
    tally, samples = Tally(), []
    started = time.monotonic()
    until = started + args.seconds
    visitors = [
        Visitor(stack.url, people[n % len(people)]["cookie"], tally, random.Random(args.seed + n))
        for n in range(args.sockets)
    ]
    with Redis.from_url(stack.config.redis) as valkey:
        before = figures(stack, valkey)
        visits = asyncio.gather(*(visitor.visit(until) for visitor in visitors))
        while time.monotonic() < until:
            await asyncio.sleep(2)
            read = await asyncio.to_thread(figures, stack, valkey)
            at = round(time.monotonic() - started, 1)
            samples.append({"at": at, "open": tally.open, **read})
        await visits
        await asyncio.sleep(3)
        after = figures(stack, valkey)
    return tally, before, samples, after


def growth(samples: Sequence[Figures], share: float) -> dict[str, dict[str, Any]]:
    """Medians of the first and the last quarter after the start, and whether the growth is within
    bounds."""
    warm = min(WARM_SECONDS, samples[-1]["at"] / 2)
    samples = [sample for sample in samples if sample["at"] > warm]
    quarter = len(samples) // 4
    found = {}
    for name, slack in SLACK.items():
        early = statistics.median(sample[name] for sample in samples[:quarter])
        late = statistics.median(sample[name] for sample in samples[-quarter:])
        limit = early * (1 + share) + slack
        found[name] = {"early": early, "late": late, "limit": limit, "ok": late <= limit}
    return found


def main() -> int:
    args = arguments()
    load = os.getloadavg()[0]
    with running("--parts", "web,valkey", vllm_url=NOBODY, queue_turns="0") as stack:
        code = SEED.format(users=20)
        people = json.loads(stack.manage("shell", "-v", "0", "--command", code, timeout=300))
        with Demo(stack=stack, cookies={}, places={}).writing(RATE):
            tally, before, samples, after = asyncio.run(soak(stack, people, args))
    found = {
        "date": str(date.today()),
        "sockets": args.sockets,
        "seconds": args.seconds,
        "load": [load, os.getloadavg()[0]],
        "counts": dict(tally.counts),
        "wrong": tally.wrong,
        "before": before,
        "after": after,
        "growth": growth(samples, args.growth),
        "samples": samples[:: max(1, len(samples) // 40)],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    print(table(found))
    ok = not tally.wrong and all(each["ok"] for each in found["growth"].values())
    print("nothing grew" if ok else "IT GREW, or a reply was wrong")
    return 0 if ok else 1


def table(found: dict[str, Any]) -> str:
    lines = [
        "| | before | first quarter | last quarter | limit | all closed |",
        "|---|---|---|---|---|---|",
    ]
    for name, each in found["growth"].items():
        values = [found["before"][name], each["early"], each["late"], each["limit"]]
        shown = " | ".join(f"{value:.1f}" for value in [*values, found["after"][name]])
        lines.append(f"| {name} | {shown} |")
    counts = ", ".join(f"{name} {count}" for name, count in sorted(found["counts"].items()))
    lines += [
        f"\nCounts: {counts}; wrong replies: {len(found['wrong'])}.",
        f"Replies' logs: {found['after']['valkey_logs']:.1f} MiB. CPU of the web server: "
        f"{found['after']['web_cpu'] - found['before']['web_cpu']:.0f} s. "
        f"Load average {found['load'][0]:.1f} before, {found['load'][1]:.1f} after.",
    ]
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sockets", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--growth", type=float, default=0.1, help="a share")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "soak.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
