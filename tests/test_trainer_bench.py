"""What the trainer bench asks of our trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.batching import in_steps

NUMBERS = {"rank": 8, "alpha": 16, "lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0}


@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired", "opd"])
def test_an_update_is_one_step_whatever_the_defaults_are(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")  # the contestants set them when they are imported
    from bench.trainer.contestant import Task
    from bench.trainer.ours import config_of

    rows = [{"response_ids": [1] * 64}] * 8
    here = Path()
    todo = Task(
        loss=loss, variant="", device="cpu", precision="fp32", base=here, adapter=here,
        updates=1, job=1, rows=rows,
        settings={**NUMBERS, "kto_beta": 0.1},
    )  # fmt: skip
    config = config_of(todo)
    assert len(in_steps(rows, batch_size=config.batch_size)) == 1  # type: ignore[arg-type]
    assert config.max_steps == 1
    assert config.rated_tokens >= 64
