"""Many users chat, rate and train at once; then the same chat beside a training job and without.

    make bench-load                    # or, with other numbers:
    PYTHONPATH=. python bench/load/run.py --users 50 --seconds 300 --pairs 6 --window 60

A system of its own is started as users start it. First so many users at once, half by websocket
and half by API: each asks, waits for the whole reply, rates every second one, sometimes presses
"Train now", thinks for half a second to two. Then a few of them only talk, in windows of equal
length: one idle, one while a job of another user trains, in alternating order; the ratio is of
medians within a pair. Windows are cut off: a reply that is asked for in one counts there.

A result is one line of results/runs.jsonl; the tables are printed. Memory is read every five
seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from bench.load.adapters import adapter_costs
from bench.load.costs import costs_of
from bench.load.people import SEED, Person
from bench.load.report import summary, tables
from bench.load.watch import Watch
from tests.realstack import Stack, running

HERE = Path(__file__).resolve().parent
RATED = 7  # replies that a job learns from: one less than start it by themselves
Facts = dict[str, Any]


async def all_at_once(people: Sequence[Person], seconds: float) -> Facts:
    """Everybody does everything."""
    until = time.monotonic() + seconds
    await asyncio.gather(*(person.live(until) for person in people))
    asked = [asdict(each) for person in people for each in person.notes.asked]
    others: Counter[str] = Counter()
    for person in people:
        others.update(person.notes.others)
    found: Facts = {"users": len(people), "seconds": seconds, "others": dict(others)}
    for way in ("socket", "api"):
        found[way] = summary([each for each in asked if each["way"] == way])
    return {**found, "all": summary(asked)}


async def window(talkers: Sequence[Person], seconds: float) -> Facts:
    for person in talkers:
        person.notes.asked.clear()
    until = time.monotonic() + seconds
    await asyncio.gather(*(person.talk(until) for person in talkers))
    return summary([asdict(each) for person in talkers for each in person.notes.asked])


async def one_pair(
    talkers: Sequence[Person], learner: Person, seconds: float, *, training_first: bool
) -> Facts:
    found: Facts = {}
    for training in (training_first, not training_first):
        if not training:
            found["idle"] = await window(talkers, seconds)
            continue
        job = await learner.begin_training()
        found["training"] = await window(talkers, seconds)
        found["job"] = await learner.state_of(job)  # what it was doing when the window ended
        await learner.end_jobs()
    return found


async def measure(people: Sequence[Person], args: argparse.Namespace) -> tuple[Facts, list[Facts]]:
    async with AsyncExitStack() as present:
        for person in people:
            await present.enter_async_context(person.present())
        *users, learner = people
        await users[0].ask()  # the model server's first reply takes two seconds more
        users[0].notes.asked.clear()
        busy = await all_at_once(users, args.seconds)
        for person in users:
            await person.end_jobs()
        await learner.teach(RATED if args.pairs else 0)
        pairs = []
        for number in range(args.pairs):
            first = bool(number % 2)
            pair = await one_pair(users[: args.talkers], learner, args.window, training_first=first)
            print(json.dumps(pair), flush=True)
            pairs.append(pair)
    return busy, pairs


def people_of(stack: Stack, users: int) -> list[Person]:
    code = SEED.format(users=users)
    facts = json.loads(stack.manage("shell", "-v", "0", "--command", code, timeout=300))
    return [Person(stack.url, **each) for each in facts]


def main() -> None:
    args = arguments()
    load = os.getloadavg()[0]
    # Nobody is stopped by a key's limit: what is measured is the system.
    unlimited = {"requests_per_minute": "0", "concurrent": "0"}
    with running(max_reply_tokens=str(args.tokens), **unlimited) as stack:
        people = people_of(stack, args.users + 1)
        watch = Watch(stack)
        watch.start()
        busy, pairs = asyncio.run(measure(people, args))
        memory = watch.end()
        costs = costs_of(stack) | (adapter_costs(stack, args.adapters) if args.adapters else {})
    run = {
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": [load, os.getloadavg()[0]],
        "tokens": args.tokens,
        "talkers": args.talkers,
        "window": args.window,
        "busy": busy,
        "pairs": pairs,
        "memory": memory,
        "costs": costs,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")
    print(tables(run))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="of everybody at once")
    parser.add_argument("--pairs", type=int, default=2, help="of windows, idle and training")
    parser.add_argument("--window", type=float, default=30.0, help="seconds of each")
    parser.add_argument("--talkers", type=int, default=4, help="who chat in the windows")
    parser.add_argument("--adapters", type=int, default=16, help="whose cost is measured")
    parser.add_argument("--tokens", type=int, default=32, help="longest reply")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "runs.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
