"""Simulated people rate replies; how soon does each recipe give them what they want?

    make bench-personas                                   # what is missing of the first stage
    make bench-personas ARGS="--stage 2"                  # and of the second
    make bench-personas ARGS="--recipes opd memory --people short greets --seeds 0 1 --turns 16"
    make bench-personas ARGS="--recipes binary kto --held-out 96 --seeds 0 1 2"  # is it chance?
    make bench-personas ARGS="--quick"                    # one person, eight ratings, must learn

One cell is a recipe, a person and a seed; bench/personas/stages.py says which a stage is made of.
Replies come from vLLM (its ids and log-probs train), training is the project's own
`training.trainer`, in this process. Each cell ends as one line of results/cells.jsonl; cells that
are there are not run again, unless their recipe or their person's rules have changed, or more turns
or questions are asked for than they have (`--asked-at` alone runs none). Held-out questions are
never rated.

Per number of rated turns: `satisfied`, the share of held-out first answers that keep to all wishes;
`nll`, the base's mean negative log-prob per token of those answers under the hinted prompt (low is
fluent and on topic). Per update: seconds. At the end: what the gate measures (drift, repetition …).
`three`: rated turns until three in a row passed; nobody's gate stops a version here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.numbers import whole
from bench.personas.cell import EVALS, Cell
from bench.personas.chats import OneChat
from bench.personas.lab import Lab
from bench.personas.newcomers import EVERYONE
from bench.personas.older import EARLIER
from bench.personas.questions import HELD_OUT, HERE
from bench.personas.recipes import QUICK, RECIPES, made_with
from bench.personas.report import write_report
from bench.personas.rows import DEFAULT, SAME, Cells, cell_of, is_judged_bare, longest
from bench.personas.stages import FIRST_PEOPLE, Key, first_stage, second_stage
from clawweb.config import ROOT
from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from tests.realstack import new_stack
from training.base import load_base
from training.config import TrainConfig
from training.small_talk import wish_probe

ROWS, REPORT = HERE / "results" / "cells.jsonl", HERE.parent.parent / "docs" / "personas"
TURNS = 64  # that are rated unless others are asked for
QUICK_TURNS, QUICK_GAIN, QUICK_ASKED = 8, 0.25, 12
QUICK_NLL = 0.5  # nats per token that its replies may be off the base's: lower is a rut
QUICK_WORDS = 8  # different ones in the median reply at least: a sentence, however short
IN_NATS = (0.002, 0.01)  # `hint_effect_min` of older rows, per token
KTO_BESIDE = 4  # `kto_beside` of older rows, where it had to do with several wishes alone


def done_cells(path: Path) -> list[dict[str, Any]]:
    """The rows that hold for the recipes as they are. A line that was not written to its end is
    none."""
    if not path.exists():
        return []
    rows = []
    # Bytes: it may have ended within a letter, and replies hold what else ends lines of a text.
    for line in path.read_bytes().split(b"\n"):
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if is_present(row)]


def is_present(row: dict[str, Any]) -> bool:
    """Whether it was made with its recipe as it is today. Settings that came later were, in older
    rows, what they are by default, and SFT always had corrections; the oldest rows name no
    settings, and are taken. Least effects of hints were once in nats: none was dropped for
    them, and on the base's replies the people's would not be today (docs/LOG.md, What a hint
    moves). Rows of earlier trainers stay until they are run again: bench/personas/older.py marks
    those that today's would make otherwise."""
    recipe = RECIPES.get(row["recipe"])
    if recipe is None or "made_with" not in row:
        return recipe is not None
    before = {"corrects": recipe.learns == "sft", "trainer": 1}
    before |= {"at_once": False, "as_served": False, "edits": 0, "one_chat": False}
    now, then = made_with(recipe), {**before, **row["made_with"]}
    default = asdict(TrainConfig())
    # Nobody else who has several wishes liked enough replies for KTO beside the hints.
    would = recipe.config.method == "combine" and row["person"] == "recipes"
    early = {
        "kto_beside": 0 if would else recipe.config.kto_beside,
        "hint_heard_min": recipe.config.hint_heard_min,  # older.py marks whom it changes
        "correction_kept_weight": recipe.config.correction_kept_weight,  # was 1
        "earlier_exchanges": recipe.config.earlier_exchanges,  # all; only one chat had several
    }
    beside = {"liked_weight": 0.0, "kto_beside_steps": 2}  # before they were settings
    then["config"] = {**default, **early, **beside, **then["config"], **SAME}
    if then["trainer"] in EARLIER:
        then["trainer"] = now["trainer"]
        if then["config"]["kto_beside"] == KTO_BESIDE:
            then["config"]["kto_beside"] = now["config"]["kto_beside"]
    if not is_liked_beside(row):
        then["config"] |= {name: now["config"][name] for name in beside}
    if then["config"]["hint_effect_min"] in IN_NATS:
        then["config"]["hint_effect_min"] = default["hint_effect_min"]
    if not recipe.is_thumb:  # how a job of thumbs alone trains is nothing to it
        then["config"] |= {
            name: now["config"][name] for name in default if name.startswith("thumbs")
        }
    return now == then


def is_liked_beside(row: dict[str, Any]) -> bool:
    """Whether somebody with several wishes, taught by "combine", liked a reply as it was."""
    has_several = len(EVERYONE[row["person"]].wishes) > 1
    learned = row["made_with"]["config"].get("method") == "combine"
    return has_several and learned and any(update["liked"] for update in row["updates"])


def is_done(row: dict[str, Any], args: argparse.Namespace) -> bool:
    """Whether it has as many turns and held-out questions as are asked for, judged by the rules of
    today. What is not rated has no turns."""
    turns = args.turns or TURNS
    has_turns = row["turns"] >= turns or not RECIPES[row["recipe"]].is_rated
    has_questions = len(row["evals"]["0"]["passed"]) >= args.held_out
    return has_turns and has_questions and not is_judged_bare(row)


def quick(cells: Sequence[dict[str, Any]], seconds: float) -> int:
    """The short form's verdict: 0 when eight ratings taught the person's wish, and replies are
    still sentences."""
    (cell,) = cells
    before, after = (cell["evals"][turns] for turns in ("0", str(QUICK_TURNS)))
    words = statistics.median(len(set(text.split())) for text in cell["texts"])
    is_fluent = abs(after["nll"] - before["nll"]) <= QUICK_NLL and words >= QUICK_WORDS
    learned = is_fluent and after["satisfied"] - before["satisfied"] >= QUICK_GAIN
    shown = (f"{end['satisfied']} / {end['nll']}" for end in (before, after))
    print(
        f"satisfied / nll {' -> '.join(shown)}, {words:.0f} words, in {seconds:.0f} s:",
        "it learns" if learned else "LEARNING IS BROKEN",
    )
    return 0 if learned else 1


def main() -> int:
    args, started = arguments(), time.monotonic()
    if args.quick:
        args.recipes, args.people, args.seeds, args.turns = [DEFAULT], ["short"], [0], QUICK_TURNS
        args.held_out, args.out = QUICK_ASKED, Path(tempfile.mkdtemp()) / "cells.jsonl"
    found = done_cells(args.out)
    names = {cell_of(c) for c in found if is_done(c, args)}
    wanted = [key for key in asked_for(args, found) if key not in names]
    number, of = args.shard
    ran = run_cells(wanted[number::of], args, found)
    if args.quick:  # a row of no recipe: of a thing to look at once
        shutil.rmtree(args.out.parent)
        return quick(ran, time.monotonic() - started)
    write_report(done_cells(args.out), args.report)
    return 0


def asked_for(args: argparse.Namespace, found: Cells) -> list[Key]:
    """Those of the stage, or all of what was named."""
    if not (args.recipes or args.people or args.seeds):
        return first_stage() if args.stage == 1 else second_stage(longest(found))
    return [
        (recipe, person, seed)
        for seed in args.seeds or [0]
        for person in args.people or FIRST_PEOPLE
        for recipe in args.recipes or RECIPES
    ]


def first_evals(
    cells: Cells, *, held_out: int, dtype: str
) -> dict[tuple[str, int], dict[str, Any]]:
    """How the base answered each person's held-out questions before the first rating, by person and
    seed, where a row has the whole of it: the same replies, if in the same precision."""
    return {
        (cell["person"], cell["seed"]): first
        for cell in cells
        if cell["recipe"] != "hinted" and cell.get("dtype") == dtype
        if "about" in (first := cell["evals"]["0"]) and len(first["passed"]) == held_out
        if not is_judged_bare(cell)
    }


def run_cells(wanted: Sequence[Key], args: argparse.Namespace, found: Cells) -> Cells:
    """Their rows, each written as soon as it is there."""
    if not wanted:
        return []
    rank = max(RECIPES[recipe].config.rank for recipe, _, _ in wanted)
    stack = new_stack(lora_rank=str(rank))
    folder = Path(tempfile.mkdtemp(prefix="personas-"))
    ran = []
    try:
        url, key = args.vllm, args.vllm_key
        if not url:
            stack.start("--parts", "vllm")
            url, key = stack.config.vllm, stack.config.secret("vllm_key", stack.config.vllm_key)
        kept = ROOT / "var" / "small-talk"  # where `make run` keeps it, too
        base = load_base(stack.config.model_folder, threads=args.threads, kept=kept)
        wish_probe(base, base.model)  # as a worker does before its first job
        patient = EngineConfig(url=url, key=key, silence_seconds=900)  # it may serve others, too
        lab = Lab(build_engine(patient), base, folder)
        lab.first_evals = first_evals(found, held_out=args.held_out, dtype=lab.dtype)
        for recipe, person, seed in wanted:
            chosen = QUICK if args.quick else RECIPES[recipe]
            kind = OneChat if chosen.one_chat else Cell
            one = kind(lab, chosen, EVERYONE[person], seed, args.held_out, args.asked_at)
            cell = one.run(args.turns or TURNS, with_gate=not args.quick)
            write_row(cell, args.out)
            ran.append(cell)
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(stack.var, ignore_errors=True)
    return ran


def write_row(row: dict[str, Any], path: Path) -> None:
    """Add it as a line of its own, also where the last one was not written to its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = path.read_bytes() if path.exists() else b""
    begun = "\n" if known and not known.endswith(b"\n") else ""
    with path.open("a", encoding="utf-8") as file:
        file.write(begun + json.dumps(row, ensure_ascii=False) + "\n")


def shard(text: str) -> tuple[int, int]:
    """Of "I/N" both numbers."""
    parts = text.split("/")
    if len(parts) != 2 or not all(map(str.isdecimal, parts)) or int(parts[0]) >= int(parts[1]):
        raise argparse.ArgumentTypeError(f"{text} is not I/N with I from 0 to N - 1")
    return int(parts[0]), int(parts[1])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stage", type=int, default=1, choices=(1, 2), help="without the next three"
    )
    parser.add_argument("--recipes", nargs="+", choices=RECIPES)
    parser.add_argument("--people", nargs="+", choices=EVERYONE)
    parser.add_argument("--seeds", nargs="+", type=whole(0))
    parser.add_argument("--turns", type=whole(1), help=f"rated turns, else {TURNS}")
    parser.add_argument(
        "--held-out", type=int, default=HELD_OUT, choices=range(2, 97, 2), metavar="N",
        help=f"questions that are never rated, an even number up to 96; default {HELD_OUT}",
    )  # fmt: skip
    parser.add_argument(
        "--asked-at", nargs="+", type=whole(0), default=EVALS, metavar="TURNS",
        help="rated turns after which they are asked; always before the first and after the last",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=ROWS, help="rows, else the published ones")
    parser.add_argument(
        "--report", type=Path, help="folder of table and curves, else docs/personas, or beside OUT"
    )
    parser.add_argument(
        "--shard", type=shard, default=(0, 1), metavar="I/N",
        help="every Nth cell from the Ith on, counted from 0",
    )  # fmt: skip
    parser.add_argument("--threads", type=whole(1), default=1, help="of the trainer on a CPU")
    parser.add_argument("--vllm", default="", help="of a running server; empty: one is started")
    parser.add_argument("--vllm-key", default="")
    parser.add_argument("--quick", action="store_true", help="one person, eight ratings")
    args = parser.parse_args()
    args.report = args.report or (REPORT if args.out == ROWS else args.out.parent)
    return args


if __name__ == "__main__":
    raise SystemExit(main())
