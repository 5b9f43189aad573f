"""One update of our trainer against TRL and a plain peft loop: tokens per second and memory.

    make bench-trainer                            # or, with other numbers:
    PYTHONPATH=. python bench/trainer/run.py --losses kto opd --shapes short --rounds 5
    PYTHONPATH=. python bench/trainer/run.py --shapes agent --against TRL   # a shared system prompt

Every contestant gets the same batch (eight replies of the base model), starts from the same adapter
(rank 8, all linear layers, away from the base) and computes the same loss in fp32 with one thread:
KTO and APO-zero-unpaired on thumbs, and the reverse KL to the base under a hint. Each is a process
of its own; they take turns, one update each, so that what else the machine does hits all of them.
The first update is the warm-up. After each the loss and the gradient's norm must agree with the
plain loop's, which is therefore always there. TRL is run as it is by default, with gradient
checkpoints, and without.

A case that is run again replaces itself in the results file; the others stay.

Response tokens per second count the replies' tokens once, however many passes a contestant makes.
Memory is the resident set: its peak, and how far that lies above the loaded base model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from bench.trainer.environment import PINS, TRL_VENV, VENV, make_trl_venv
from bench.trainer.report import table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LOSSES, SHAPES = ("kto", "apo_zero_unpaired", "opd"), ("short", "long", "agent")
LOSS_RTOL, GRADIENT_RTOL = 1e-4, 1e-3
OURS, PLAIN = "ours", "plain-peft"
# name: module, environment, variant
CONTESTANTS = {
    OURS: ("bench.trainer.ours", VENV, ""),
    "TRL": ("bench.trainer.with_trl", TRL_VENV, ""),
    "TRL-no-checkpoints": ("bench.trainer.with_trl", TRL_VENV, "no_checkpoints"),
    PLAIN: ("bench.trainer.plain", VENV, ""),
}
Facts = dict[str, Any]


@dataclass
class Contestant:
    """A process that does one update each time it is told to."""

    name: str
    process: subprocess.Popen[str]
    log: Path  # what it and its libraries print
    loaded_mib: float = 0.0
    updates: list[Facts] = field(default_factory=list)

    @classmethod
    def started(cls, name: str, arguments: Sequence[str], folder: Path) -> Contestant:
        module, venv, variant = CONTESTANTS[name]
        command = [str(venv / "bin" / "python"), "-m", module, "--variant", variant, *arguments]
        log = folder / f"{name}.log"
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        contestant = cls(name, process, log)
        contestant.loaded_mib = contestant.hear()["loaded_mib"]
        return contestant

    def update(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.updates.append({**self.hear(), "load": os.getloadavg()[0]})

    def hear(self) -> Facts:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            said = self.log.read_text(encoding="utf-8")[-3000:]
            raise SystemExit(f"{said}\n{self.name} ended with {self.process.wait()}")
        facts: Facts = json.loads(line)
        return facts

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, default=None, help="folder of the base model")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=LOSSES)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument(
        "--against", nargs="+", choices=list(CONTESTANTS)[1:], default=list(CONTESTANTS)[1:]
    )
    parser.add_argument("--rounds", type=int, default=3, help="timed updates of each contestant")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cpu.json")
    args = parser.parse_args()
    make_trl_venv()
    base = args.base or default_base()
    results: Facts = {"machine": machine(), "cases": []}
    if args.out.exists():
        results["cases"] = json.loads(args.out.read_text(encoding="utf-8"))["cases"]
    with tempfile.TemporaryDirectory() as folder:
        make_batches(base, args.shapes, Path(folder))
        for shape in args.shapes:
            for loss in args.losses:
                names = [name for name in CONTESTANTS if name in (OURS, PLAIN, *args.against)]
                found = case(base, Path(folder), loss, shape, args.rounds, names)
                results["cases"] = [*others(results["cases"], loss, shape), found]
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                print(table([found]), flush=True)
    print(table(results["cases"]))


def others(cases: Sequence[Facts], loss: str, shape: str) -> list[Facts]:
    """What the results hold of other losses and batches, which this run leaves alone."""
    return [each for each in cases if (each["loss"], each["shape"]) != (loss, shape)]


def default_base() -> Path:
    from clawweb.config import Config

    folder = Config().model_folder  # type: ignore[call-arg]  # defaults
    if not folder.exists():
        raise SystemExit("there is no base model yet: `make run` once, or name one with --base")
    return folder


def make_batches(base: Path, shapes: Sequence[str], folder: Path) -> None:
    command = [VENV / "bin" / "python", "-m", "bench.trainer.batch", "--base", base]
    command += ["--shapes", *shapes, "--out", folder]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def case(
    base: Path, folder: Path, loss: str, shape: str, rounds: int, names: Sequence[str]
) -> Facts:
    """One loss on one batch: contestants in turns. Raises SystemExit when they disagree."""
    batch = folder / f"{shape}.json"
    arguments = ["--loss", loss, "--base", str(base), "--adapter", str(folder / "adapter")]
    arguments += ["--batch", str(batch), "--updates", str(rounds + 1)]
    running = [Contestant.started(name, arguments, folder) for name in names]
    try:
        for _ in range(1 + rounds):
            for contestant in running:
                contestant.update()
            check_agreement({each.name: each.updates[-1] for each in running}, f"{loss}, {shape}")
    finally:
        for contestant in running:
            contestant.end()
    return {
        "loss": loss,
        "shape": shape,
        **sizes(json.loads(batch.read_text(encoding="utf-8"))["rows"]),
        "contestants": {each.name: summary(each) for each in running},
    }


def check_agreement(updates: dict[str, Facts], where: str) -> None:
    """An update's loss and gradient against the plain loop's: is it the same computation?"""
    for name, facts in updates.items():
        for measure, rtol in (("loss", LOSS_RTOL), ("grad_norm", GRADIENT_RTOL)):
            wanted, found = updates[PLAIN][measure], facts[measure]
            if not abs(found - wanted) <= rtol * abs(wanted):
                raise SystemExit(f"{where}: {measure} of {name} is {found}, not {wanted}")


def sizes(rows: Sequence[Facts]) -> Facts:
    """Tokens of the whole batch; a teacher's or another reply's prompt is not counted."""
    prompts = [len(row["prompt_ids"]) for row in rows]
    replies = [len(row["response_ids"]) for row in rows]
    return {
        "replies": len(rows),
        "prompt_tokens": [min(prompts), max(prompts)],
        "reply_tokens": [min(replies), max(replies)],
        "response_tokens": sum(replies),
        "total_tokens": sum(prompts) + sum(replies),
    }


def summary(contestant: Contestant) -> Facts:
    timed = contestant.updates[1:]
    peak = max(update["peak_mib"] for update in contestant.updates)
    return {
        "seconds": [round(update["seconds"], 3) for update in timed],
        "cpu_seconds": [round(update["cpu_seconds"], 3) for update in timed],
        "median_seconds": round(statistics.median(u["seconds"] for u in timed), 3),
        "losses": [update["loss"] for update in contestant.updates],
        "grad_norms": [update["grad_norm"] for update in contestant.updates],
        "load": [round(update["load"], 2) for update in contestant.updates],
        "peak_mib": round(peak),
        "above_loaded_mib": round(peak - contestant.loaded_mib),
    }


def machine() -> Facts:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "pins": [
            line
            for line in PINS.read_text(encoding="utf-8").splitlines()
            if line.startswith(("trl=", "torch=", "transformers=", "peft=", "accelerate="))
        ],
    }


if __name__ == "__main__":
    main()
