"""What the trainer bench asks of our trainer."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from training.batching import in_steps

NUMBERS = {"rank": 8, "alpha": 16, "lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0}


@pytest.mark.parametrize(
    ("loss", "job"), [("kto", 1), ("apo_zero_unpaired", 1), ("opd", 1), ("opd", 4)]
)
def test_an_update_is_one_step_whatever_the_defaults_are(
    loss: str, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")  # the contestants set them when they are imported
    from bench.trainer.contestant import Task
    from bench.trainer.ours import config_of

    rows = [{"response_ids": [1] * 64}] * 8
    here = Path()
    todo = Task(
        loss=loss, variant="", device="cpu", precision="fp32", base=here, adapter=here,
        updates=job, job=job, rows=rows,
        settings={**NUMBERS, "kto_beta": 0.1},
    )  # fmt: skip
    config = config_of(todo)
    assert len(in_steps(rows, batch_size=config.batch_size)) == 1  # type: ignore[arg-type]
    assert config.max_steps == job
    assert config.rated_tokens >= 64


def test_a_jobs_updates_are_answered_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")
    from bench.trainer.contestant import Desk

    said: list[dict[str, float]] = []
    asked = iter(["go\n", "go\n", ""])
    monkeypatch.setattr(Desk, "__post_init__", lambda _: None)
    monkeypatch.setattr(Desk, "_say", lambda _, **facts: said.append(facts))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(readline=lambda: next(asked)))
    clock = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    desk = Desk("cpu", 3)
    for number in range(6):
        desk.wait()
        with desk.timed():
            pass
        desk.done(loss=number, grad_norm=1.0)
    assert [facts["loss"] for facts in said] == [2, 5]  # of the last of each three
    assert [facts["seconds"] for facts in said] == [3, 3]  # one for each, by that clock
    with pytest.raises(SystemExit):
        desk.wait()
