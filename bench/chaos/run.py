"""Parts of a real system are killed at random while people chat and rate; then its rows are read.

    make chaos                                       # 20 kills
    make chaos ARGS="--kills 6 --seed 3"             # the faults of seed 3 again
    make chaos ARGS="--fault vllm --fault 'disk filled'"    # these, in this order
    make chaos ARGS="--kills 200 --resume"           # a new system after each twenty; those that
                                                     # are in --out already are not run again

Users ask, go on and rate without pause, a judge reads how they go on, and they remember what they
were told. A fault is kill -9 of a part, a part held still until its leases have run out, a lock on
the database for six seconds (PostgreSQL's sudden end, where that is used), tasks delivered twice,
or a disk filled to half of its reserve (where root may mount one: the data folder is then a tmpfs).
After the last one everything is given time to come to rest, and the promises of invariants.py are
checked; and that whatever was refused was refused with a sentence. The seed decides which faults
come in which order; when they hit what is the machine's doing. A slice with a broken promise leaves
the end of its logs beside --out, and its line there says how to run it again. Exit status 1 = a
broken promise, or a part that took longer than its time.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.faults import ALL, LIGHT_SECONDS, VLLM_SECONDS, Broken, Target, acts, drawn
from bench.chaos.invariants import Row, at_rest, told_and_kept, violations
from bench.chaos.people import Chatter, people
from tests.judge_server import judge_server, saying
from tests.loop.person import query
from tests.realstack import QUICK, Stack, new_stack
from tests.small_disk import mounted

HERE = Path(__file__).resolve().parent
REST_SECONDS = 420.0
JUDGEMENT = "They want less.\nHINT: Answer in one sentence.\nVERDICT: -1"
DISK_MIB, RESERVE_MIB = 1024, 64


def main() -> int:
    args = arguments()
    if args.faults:
        args.kills = args.slice = len(args.faults)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    there = already_run(args.out, args.only_kills) if args.resume else {}
    broken: list[str] = []
    for first in range(0, args.kills, args.slice):
        seed, kills = args.seed + first, min(args.slice, args.kills - first)
        found = there.get((seed, kills, args.users))
        if found is None:
            found = one_slice(seed, kills, args)
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
        broken += found["broken"]
    print(f"{len(broken)} broken promises" if broken else "every promise was kept")
    return 1 if broken else 0


def already_run(out: Path, only_kills: bool = False) -> dict[tuple[int, int, int], dict[str, Any]]:
    """The slices that ended, of kills alone or of all faults, by seed, kills and users; the newest
    of each."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if ("--only-kills" in row.get("again", "")) is only_kills]
    return {(row["seed"], row.get("kills", 0), row.get("users", 0)): row for row in rows}


def one_slice(seed: int, kills: int, args: argparse.Namespace) -> dict[str, Any]:
    """One system from its start to its end."""
    chance = random.Random(seed)
    names = args.faults or drawn(chance, kills, only_kills=args.only_kills)
    with ExitStack() as ends:
        judge = ends.enter_context(judge_server(saying(JUDGEMENT)))
        own = {"settle_seconds": "1", "disk_free_mib": str(RESERVE_MIB)}
        stack = new_stack(**QUICK, **own, judge_url=judge.url, judge_model="test")
        ends.callback(shutil.rmtree, stack.var, ignore_errors=True)
        disk = ends.enter_context(mounted(stack.var, mib=DISK_MIB))
        ends.callback(stack.stop)
        stack.start()
        target = Target(stack=stack, disk=disk)
        with people(stack, args.users, seed) as users:
            faults, broken = break_things(target, names, chance, args.pause)
        for user in users:
            user.give_up("queued")
        broken += come_to_rest(stack) + promises(stack, users)
        if broken:
            args.out.with_name(f"seed-{seed}.log").write_text(stack.all_logs(), encoding="utf-8")
        summary = {
            "seed": seed,
            "kills": kills,
            "users": args.users,
            "again": again(seed, kills, args),
            "faults": [(name, round(seconds, 1)) for name, seconds in faults],
            **what_was_done(stack, users),
            "broken": broken,
        }
    print(json.dumps(summary, indent=1))
    return summary


def again(seed: int, kills: int, args: argparse.Namespace) -> str:
    """The command that runs the same faults again."""
    words = f"--kills {kills} --seed {seed} --users {args.users}"
    words += " --pause {} {}".format(*args.pause)
    words += " --only-kills" * args.only_kills
    words += "".join(f" --fault '{name}'" for name in args.faults)
    return f'make chaos ARGS="{words}"'


def what_was_done(stack: Stack, users: list[Chatter]) -> dict[str, Any]:
    jobs = query(stack, "SELECT state, attempt FROM clawweb_trainingjob")
    return {
        "asked": sum(user.told.asked for user in users),
        "answered": sum(len(user.told.replies) for user in users),
        "rated": sum(len(values) for user in users for values in user.told.ratings.values()),
        "failed_requests": sum(user.told.failed for user in users),
        "jobs": dict(Counter(row["state"] for row in jobs)),
        "jobs_begun_again": sum(row["attempt"] > 1 for row in jobs),
    }


def break_things(
    target: Target,
    names: Sequence[str],
    chance: random.Random,
    pause: tuple[float, float],
    slack: float = 1.0,
) -> tuple[list[tuple[str, float]], list[str]]:
    """Fault after fault, each once the one before is healed, and the seconds that it took; and what
    was broken meanwhile. It ends at a part that does not come back. On a machine
    that does other things `slack` times as long as usual is not too long."""
    faults: list[tuple[str, float]] = []
    broken: list[str] = []
    for name in names:
        time.sleep(chance.uniform(*pause))
        try:
            seconds = acts(target)[name]()
        except Broken as exc:
            seconds = 0.0
            broken.append(str(exc))
        except pytest.fail.Exception as exc:
            return faults, [*broken, f"{name}: {exc}"]
        faults.append((name, seconds))
        if too_long(name, seconds / slack):
            broken.append(f"{name}: back after {seconds:.0f} s")
        print(f"{len(faults)}/{len(names)} {name}: {seconds:.1f} s", flush=True)
    return faults, broken


def too_long(name: str, seconds: float) -> bool:
    return seconds > (VLLM_SECONDS if name == "vllm" else LIGHT_SECONDS)


def come_to_rest(stack: Stack) -> list[str]:
    deadline = time.monotonic() + REST_SECONDS
    while moving := at_rest(lambda sql: query(stack, sql)):
        if time.monotonic() > deadline:
            return [f"after {REST_SECONDS:.0f} s not at rest: {', '.join(moving)}"]
        time.sleep(1)
    return []


def promises(stack: Stack, users: list[Chatter]) -> list[str]:
    asked = {user.name: user.told.asked for user in users}
    replies = {turn: texts for user in users for turn, texts in user.told.replies.items()}
    ratings = {turn: values for user in users for turn, values in user.told.ratings.items()}
    tries: Counter[str] = Counter()
    for user in users:
        tries.update(user.told.tries)

    def ask(sql: str) -> list[Row]:
        return query(stack, sql)

    return [
        *violations(ask, stack.config.var),
        *told_and_kept(ask, asked=asked, replies=replies, ratings=ratings, tries=tries),
        *(f"without a reason: {words}" for user in users for words in user.told.unexplained),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--fault",
        dest="faults",
        action="append",
        default=[],
        choices=ALL,
        metavar="NAME",
        help=f"instead of those that the seed draws: {', '.join(ALL)}",
    )
    parser.add_argument("--only-kills", action="store_true", help="no locks, full disks and so on")
    parser.add_argument("--slice", type=int, default=20, help="faults of one system")
    parser.add_argument("--resume", action="store_true", help="leave out what --out has")
    parser.add_argument("--users", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, nargs=2, default=(5.0, 20.0), help="seconds")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "slices.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
