from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from training.config import MOST_EPOCHS, MOST_WORDS, TrainConfig, check_chosen


def test_json_there_and_back() -> None:
    config = TrainConfig(lr=2e-4, rank=16, seed=7)
    assert TrainConfig.from_json(json.dumps(dataclasses.asdict(config))) == config


@pytest.mark.parametrize(
    "field",
    [
        {"lr": 0.0}, {"lr": float("nan")}, {"rank": 12}, {"method": "ppo"}, {"clip_low": 1.5},
        {"batch_size": 0}, {"kl_stop": -1.0}, {"beta1": 2.0}, {"train_seconds": 0.0},
        {"loss_mean": "sums"}, {"hint_boost": 10**400}, {"lr": float("inf")},
    ],
)  # fmt: skip
def test_a_senseless_value_is_refused_by_name(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        TrainConfig(**field)


@pytest.mark.parametrize("fields", [{"lrr": 1.0}, {"rank": "8"}, {"seed": 1.5}, {"lr": True}])
def test_json_with_unknown_fields_or_wrong_types_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        TrainConfig.from_json(json.dumps(fields))


def test_every_field_has_its_meaning_beside_it() -> None:
    import training.config as module

    source = Path(module.__file__).read_text(encoding="utf-8").splitlines()
    for field in dataclasses.fields(TrainConfig):
        line = next(x for x in source if x.strip().startswith(f"{field.name}:"))
        assert "# " in line, field.name


def test_a_job_is_given_what_can_be_chosen_within_its_bounds() -> None:
    check_chosen({"reward_epochs": MOST_EPOCHS, "reward_step": 1.0, "negative_importance_cap": 2.0})
    with pytest.raises(ValueError, match="at most 16"):
        check_chosen({"reward_epochs": MOST_EPOCHS + 1})
    with pytest.raises(ValueError, match="topk must be at most 1000"):
        check_chosen({"topk": MOST_WORDS + 1})
    with pytest.raises(ValueError, match="rank: a job is given estimator"):
        check_chosen({"rank": 8})
