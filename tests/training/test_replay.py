"""Older replies that a job is reminded of."""

from __future__ import annotations

from typing import Any

import pytest
from peft import PeftModel

from tests.training.conftest import job, make_sample, samples
from training import trainer
from training.base import Base
from training.batching import Item
from training.candidates import with_chosen_hint
from training.config import TrainConfig


def test_replay_takes_part_in_reanswers_only(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    older = make_sample(base, 99, version_age=2)
    result, steps = job(base, model, samples(base, 2), config, replay=[older])
    assert result.reanswers == {1: 3, 2: 3, 99: 3}
    assert 99 not in result.trained
    assert steps[0].phase == "rated"


@pytest.mark.parametrize("hint", ["Be brief.", None])
def test_of_an_older_reply_one_hint_is_chosen_again(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch, hint: Any
) -> None:
    chosen: list[int] = []

    def choose(base: Base, model: PeftModel, item: Item, *rest: Any) -> Item:
        chosen.append(item.sample_id)
        return with_chosen_hint(base, model, item, *rest)

    monkeypatch.setattr(trainer, "with_chosen_hint", choose)
    older = make_sample(base, 99, other_hints=["", "One word."])
    job(base, model, [make_sample(base, 1, hint=hint, reward=1.0)], config, replay=[older])
    assert chosen.count(99) == 1
