"""One update of our trainer against TRL and a plain peft loop: tokens per second and memory.

    make bench-trainer                            # or, with other numbers:
    PYTHONPATH=. python bench/trainer/run.py --losses kto opd --shapes short --rounds 5
    PYTHONPATH=. python bench/trainer/run.py --shapes agent --against TRL   # a shared system prompt
    PYTHONPATH=. python bench/trainer/run.py --losses opd --job 4           # each batch four times
    PYTHONPATH=. python bench/trainer/run.py --precision bf16               # where the CPU has it
    PYTHONPATH=. python bench/trainer/run.py --device cuda --base FOLDER    # as shapes.py makes one

Every contestant gets the same batch (eight replies of the base model), starts from the same adapter
(rank 8, all linear layers, away from the base) and computes the same loss in the same precision, on
a CPU with one thread: KTO and APO-zero-unpaired on thumbs, and the reverse KL to the base under a
hint. Each is a process of its own; they take turns, one update each, so that what else the machine
does hits all of them. In bf16 adapters stay in fp32, and so does a CPU's base.
The first update is the warm-up. With --job an update is so many on the same batch, one after the
other: ours is then one job that answers its prompts anew, all are given the replies, and what a job
does once is in its time. After each the loss and the gradient's norm must agree with the
plain loop's, which is therefore always there. TRL is run as it is by default, with gradient
checkpoints, and without.

A case that is run again replaces itself in the results file; the others stay.

Response tokens per second count the replies' tokens once, however many passes a contestant makes.
Memory is the resident set, on a GPU what torch's tensors hold there: its peak, and how far that
lies above the loaded base model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from bench.numbers import whole
from bench.trainer.environment import TRL_VENV, VENV, make_trl_venv
from bench.trainer.report import table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TRL_PYTHON = TRL_VENV / "bin" / "python"
PACKAGES = ("trl", "torch", "transformers", "peft", "accelerate")
LOSSES, SHAPES = ("kto", "apo_zero_unpaired", "opd"), ("short", "long", "agent")
LOSS_RTOL = {"fp32": 1e-4, "bf16": 2e-2}
GRADIENT_RTOL = {"fp32": 1e-3, "bf16": 1e-1}
ATOL = {"fp32": 0.0, "bf16": 2e-3}  # what is nearly learned is nearly noise
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
    def started(
        cls, name: str, arguments: Sequence[str], folder: Path, python: Path | None
    ) -> Contestant:
        """The process, which loads its model meanwhile; `python` in the place of its own."""
        module, venv, variant = CONTESTANTS[name]
        python = python or venv / "bin" / "python"
        command = [str(python), "-m", module, "--variant", variant, *arguments]
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
        return cls(name, process, log)

    def wait_until_ready(self) -> None:
        self.loaded_mib = self.hear()["loaded_mib"]

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
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=tuple(LOSS_RTOL), help="fp32 on a CPU if not said")
    parser.add_argument("--python", type=Path, help="one that has TRL and all else, for everybody")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=LOSSES)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument(
        "--against", nargs="+", choices=list(CONTESTANTS)[1:], default=list(CONTESTANTS)[1:]
    )
    parser.add_argument("--spread", type=float, help="of the adapter's B, if not batch.py's")
    parser.add_argument(
        "--rounds", type=whole(1), default=3, help="timed updates of each contestant"
    )
    parser.add_argument(
        "--job", type=whole(1), default=1, help="updates on the same batch, timed as one"
    )
    parser.add_argument("--out", type=Path, help="results/DEVICE-PRECISION.json if not said")
    args = parser.parse_args()
    if args.device == "cuda" and args.precision == "fp32":
        parser.error("on a GPU the base is in bf16, and so are its products")
    if args.job > 1 and tuple(args.losses) != ("opd",):
        parser.error("only hints' jobs answer anew: --job goes with --losses opd")
    if not args.python:
        make_trl_venv()
    args.base = args.base or default_base()
    args.precision = args.precision or ("fp32" if args.device == "cpu" else "bf16")
    args.out = args.out or HERE / "results" / f"{args.device}-{args.precision}.json"
    results: Facts = {"cases": []}
    if args.out.exists():
        results = json.loads(args.out.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        make_batches(args, Path(folder))
        for shape in args.shapes:
            for loss in args.losses:
                found = case(args, Path(folder), loss, shape)
                results["cases"] = [*others(results["cases"], found), found]
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                print(table([found]), flush=True)
    print(table(results["cases"]))


def others(cases: Sequence[Facts], found: Facts) -> list[Facts]:
    """What the results hold of other losses, batches and jobs, which this run leaves alone."""

    def which(case: Facts) -> tuple[object, ...]:
        return case["loss"], case["shape"], case.get("job", 1)

    return [each for each in cases if which(each) != which(found)]


def default_base() -> Path:
    from clawweb.config import Config

    folder = Config().model_folder  # type: ignore[call-arg]  # defaults
    if not folder.exists():
        raise SystemExit("there is no base model yet: `make run` once, or name one with --base")
    return folder


def make_batches(args: argparse.Namespace, folder: Path) -> None:
    command = [args.python or VENV / "bin" / "python", "-m", "bench.trainer.batch"]
    command += ["--base", args.base, "--device", args.device]
    command += ["--spread", str(args.spread)] if args.spread else []
    command += ["--shapes", *args.shapes, "--out", folder]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def case(args: argparse.Namespace, folder: Path, loss: str, shape: str) -> Facts:
    """One loss on one batch: contestants in turns. Raises SystemExit when they disagree."""
    batch = folder / f"{shape}.json"
    told = ["--loss", loss, "--base", str(args.base), "--adapter", str(folder / "adapter")]
    told += ["--device", args.device, "--precision", args.precision]
    told += ["--batch", str(batch), "--job", str(args.job)]
    told += ["--updates", str(args.job * (args.rounds + 1))]
    names = [name for name in CONTESTANTS if name in (OURS, PLAIN, *args.against)]
    running = [Contestant.started(name, told, folder, args.python) for name in names]
    try:
        for contestant in running:
            contestant.wait_until_ready()
        for _ in range(1 + args.rounds):
            for contestant in running:
                contestant.update()
            latest = {each.name: each.updates[-1] for each in running}
            check_agreement(latest, args.precision, f"{loss}, {shape}")
    finally:
        for contestant in running:
            contestant.end()
    return {
        "loss": loss,
        "shape": shape,
        "job": args.job,
        "machine": machine(args.device, args.python or TRL_PYTHON),
        **sizes(json.loads(batch.read_text(encoding="utf-8"))["rows"]),
        "contestants": {each.name: summary(each) for each in running},
    }


def check_agreement(updates: dict[str, Facts], precision: str, where: str) -> None:
    """An update's loss and gradient against the plain loop's: is it the same computation?"""
    for name, facts in updates.items():
        for measure, rtol in (("loss", LOSS_RTOL), ("grad_norm", GRADIENT_RTOL)):
            wanted, found = updates[PLAIN][measure], facts[measure]
            if not abs(found - wanted) <= rtol[precision] * abs(wanted) + ATOL[precision]:
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


def machine(device: str, python: Path) -> Facts:
    """What a case ran on, of which code, and by which versions `python` has."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    asked = "import platform; from importlib.metadata import version\n"
    asked += (
        f"print('python', platform.python_version())\nfor n in {PACKAGES}: print(n, version(n))"
    )
    found = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    facts = {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "date": date.today().isoformat(),
        "commit": commit(),
        "packages": found.stdout.splitlines(),
    }
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        said = subprocess.run(query, check=True, capture_output=True, text=True)
        facts["gpu"] = said.stdout.strip()
    return facts


def commit() -> str:
    """The code's, where it came with its history."""
    if not shutil.which("git"):
        return "unknown"
    asked = ["git", "describe", "--always", "--dirty"]
    said = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
