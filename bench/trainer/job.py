"""One whole job with the defaults, from eight rated replies to the gate: seconds and memory.

    PYTHONPATH=. python bench/trainer/job.py --base var/models/SmolLM2-135M-Instruct
    PYTHONPATH=. python bench/trainer/job.py --base FOLDER --device cuda    # as shapes.py makes one

The replies are the base's own, all disliked under one hint, and it does not stop where all is
learned: so each set of re-answers is made, and a job of eight such takes no longer. `warm` is what
the base's share of every gate takes, once per process. With random weights no reply ends before its
limit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bench.trainer.batch import HINT, SHAPES, rows, sample_of
from training.adapters import attach, detach, save_version
from training.advantages import Baseline
from training.base import load_base
from training.config import TrainConfig
from training.drift import Wishes
from training.gate import measure, neutral_prompts, warm
from training.small_talk import wish_probe
from training.trainer import train
from training.types import StepMetrics
from training.way_back import step_back


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", choices=SHAPES, default="short")
    parser.add_argument("--jobs", type=int, default=2, help="each from the base, one warms up")
    args = parser.parse_args()
    base = load_base(args.base, device=args.device, threads=1)
    config = TrainConfig(train_seconds=1e6, kl_stop=0.0)
    neutral, wishes = neutral_prompts(), Wishes(hints=(HINT,))
    model = attach(base, config, None)
    samples = [
        sample_of(base, number, row, reward=-1.0, hint=HINT)
        for number, row in enumerate(rows(base, model, SHAPES[args.shape]))
    ]
    detach(base, model)
    with timed("warm", args.device):
        warm(base, neutral, config)
        wish_probe(base, base.model)
    for number in range(args.jobs):
        model = attach(base, config, None)
        steps: list[StepMetrics] = []
        with timed("train", args.device):
            train(
                base, model, samples, config,
                parent_optimizer=None, baseline=Baseline(), on_step=steps.append,
                check=lambda: None,
            )  # fmt: skip
        with timed("step_back", args.device):
            told = neutral, wishes, config, lambda: None
            step_back(base, model, None, *told)
        with tempfile.TemporaryDirectory() as folder, timed("save", args.device):
            save_version(model, Path(folder) / "v")
        with timed("gate", args.device):
            measure(base, model, None, [], *told)
        detach(base, model)
        each = ", ".join(f"{step.phase} {step.seconds:.2f}" for step in steps)
        memory = max(step.memory_mib or 0 for step in steps)
        print(f"  job {number}: steps {each}; at most {memory:.0f} MiB", flush=True)


@contextmanager
def timed(phase: str, device: str) -> Iterator[None]:
    """Prints the phase's seconds, a GPU's work included."""
    began = time.perf_counter()
    yield
    if device == "cuda":
        torch.cuda.synchronize()
    print(f"{phase} {time.perf_counter() - began:.2f} s", flush=True)


if __name__ == "__main__":
    main()
