"""TRL's KTOTrainer in the seat of our trainer: the same ratings, the same adapter's shape."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.trainer.environment import TRL_VENV, make_trl_venv
from rollouts.types import Sample
from training.adapters import attach, detach, save_version
from training.base import Base
from training.config import TrainConfig

PROGRAM = Path(__file__).parent / "with_trl.py"
EPOCHS = 3  # Trainer's default


def trl_update(
    base: Base,
    samples: Sequence[Sample],
    config: TrainConfig,
    *,
    lr: float | None,
    parent: Path | None,
    out: Path,
) -> int:
    """Train `parent`'s adapter, or a fresh one, on thumbs; returns the optimizer steps.

    The adapter is written to `out`. `lr` None is TRL's default: its rate, falling to 0 in three
    epochs. A rate of ours comes with our schedule: as many steps as our KTO makes, as long. Adam
    begins anew either way. Raises CalledProcessError with TRL's own words on stderr.
    """
    make_trl_venv()
    epochs, rate = schedule(config, len(samples), lr)
    with tempfile.TemporaryDirectory() as folder:
        if parent is None:
            parent = Path(folder) / "fresh"
            model = attach(base, config, None)
            try:
                save_version(model, parent)
            finally:
                detach(base, model)
        told: dict[str, Any] = {
            "base": str(base.model.config.name_or_path),
            "parent": str(parent),
            "out": str(out),
            "loss": config.method,
            "lr": rate,
            "epochs": epochs,  # all ratings are one batch
            "seed": config.seed,
            "rows": [
                {
                    "prompt_ids": list(sample.prompt_ids),
                    "response_ids": list(sample.response_ids),
                    "liked": sample.reward == 1.0,
                }
                for sample in samples
            ],
        }
        task = Path(folder) / "task.json"
        task.write_text(json.dumps(told), encoding="utf-8")
        done = subprocess.run(
            [TRL_VENV / "bin" / "python", PROGRAM, task],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    steps: int = json.loads(done.stdout.splitlines()[-1])["steps"]
    return steps


def schedule(config: TrainConfig, count: int, lr: float | None) -> tuple[int, float | None]:
    """Steps on `count` thumbs, all in each, and their learning rate: TRL's own, or of our rate as
    our KTO takes them."""
    if lr is None:
        return EPOCHS, None
    few = math.sqrt(min(1.0, count / config.thumbs_batch))
    return config.thumbs_epochs, lr * config.thumbs_step * few
