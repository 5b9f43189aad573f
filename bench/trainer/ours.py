"""Contestant: `training.trainer.train`, a job of one step. Its whole call is timed.

Each update is a job whose parent is the one before: Adam's state goes through a file, as it does
between versions, and is read within the time taken. Jobs of thumbs alone begin Adam anew, and then
the others do, too. So the losses stay the others' throughout.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from bench.trainer.contestant import Desk, Task, task  # first: it sets the threads

# isort: split
import torch

from bench.trainer.batch import sample_of
from rollouts.types import Sample
from training.adapters import attach
from training.advantages import Baseline
from training.base import Base, load_base
from training.config import TrainConfig
from training.optimizer import save_optimizer
from training.trainer import train
from training.types import StepMetrics


def main() -> None:
    todo = task()
    desk = Desk(todo.device)
    base = load_base(todo.base, device=todo.device, threads=1)
    low = torch.bfloat16 if todo.precision == "bf16" else None  # as theirs
    base = replace(base, autocast_dtype=low)
    desk.loaded()
    config = config_of(todo)
    model = attach(base, config, todo.adapter)
    samples = samples_of(todo, base)
    desk.ready()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "optimizer.safetensors"
        for _ in range(todo.updates):
            desk.wait()
            steps: list[StepMetrics] = []
            with desk.timed():
                result = train(
                    base,
                    model,
                    samples,
                    config,
                    parent_optimizer=state if state.exists() else None,
                    baseline=Baseline(),
                    on_step=steps.append,
                    check=lambda: None,
                )
            save_optimizer(result.optimizer, state)
            (step,) = steps
            desk.done(loss=step.loss, grad_norm=step.grad_norm)


def config_of(todo: Task) -> TrainConfig:
    """The defaults, but for what would make it another computation than the others'."""
    numbers = todo.settings
    return TrainConfig(
        method=todo.loss,
        rank=int(numbers["rank"]),
        alpha=int(numbers["alpha"]),
        lr=numbers["lr"],
        beta1=numbers["beta1"],
        beta2=numbers["beta2"],
        grad_clip=numbers["grad_clip"],
        kto_beta=numbers["kto_beta"],
        batch_size=len(todo.rows),
        max_steps=1,  # no re-answers
        thumbs_batch=len(todo.rows),
        thumbs_epochs=1,
        thumbs_step=1.0,  # the whole learning rate, as theirs
        kl_full_share=0.0,
        hint_boost=0.0,
        hint_boost_again=0.0,
        question_boost=0.0,
        hint_effect_min=0.0,
        hint_heard_min=0.0,
        rated_tokens=max(len(row["response_ids"]) for row in todo.rows),
        train_seconds=1e6,
    )


def samples_of(todo: Task, base: Base) -> list[Sample]:
    is_hinted = todo.loss == "opd"
    return [
        sample_of(
            base,
            number,
            row,
            reward=1.0 if row["liked"] else -1.0,
            hint=row["hint"] if is_hinted else None,
        )
        for number, row in enumerate(todo.rows)
    ]


if __name__ == "__main__":
    main()
