"""Contestant: `training.trainer.train`, a job of one step, or of several. Its whole call is timed.

A job's parent is the one before: Adam's state goes through a file, as it does between versions, and
is read within the time taken. Jobs of thumbs alone begin Adam anew, and then the others do, too. So
the losses stay the others' throughout. A job of several steps answers its prompts anew after the
first; as nothing may be sampled, the batch's replies are given once more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.trainer.contestant import Desk, Task, task  # first: it sets the threads

# isort: split
import torch

from bench.trainer.batch import sample_of
from rollouts.types import Sample
from training import trainer
from training.adapters import attach
from training.advantages import Baseline
from training.base import Base, load_base
from training.config import TrainConfig
from training.optimizer import save_optimizer
from training.sampling import Reply
from training.trainer import train
from training.types import StepMetrics


def main() -> None:
    todo = task()
    desk = Desk(todo.device, todo.job)
    base = load_base(todo.base, device=todo.device, threads=1)
    low = torch.bfloat16 if todo.precision == "bf16" else None  # as theirs
    base = replace(base, autocast_dtype=low)
    desk.loaded()
    config = config_of(todo)
    model = attach(base, config, todo.adapter)
    samples = samples_of(todo, base)
    trainer.sample_replies = given(todo)
    desk.ready()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "optimizer.safetensors"
        for _ in range(todo.updates // todo.job):
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
            assert len(steps) == todo.job
            for step in steps:
                desk.done(loss=step.loss, grad_norm=step.grad_norm)


def given(todo: Task) -> Callable[..., list[Reply]]:
    """In the place of sampling: each prompt's reply as the batch has it."""
    replies = {tuple(row["prompt_ids"]): tuple(row["response_ids"]) for row in todo.rows}

    def again(
        _base: Base, _model: object, prompts: Sequence[Sequence[int]], **_more: object
    ) -> list[Reply]:
        return [Reply(ids=replies[tuple(ids)], is_finished=True) for ids in prompts]

    return again


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
        max_steps=todo.job,
        kl_stop=0.0,
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
