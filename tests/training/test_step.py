"""A step of the tiny model: what its loss is the mean over."""

from __future__ import annotations

import dataclasses

import pytest
from peft import PeftModel

from tests.training.conftest import job, make_sample
from tests.training.test_methods import same, walk_away
from tests.training.test_trainer import gradients, items_of
from training.base import Base
from training.config import TrainConfig
from training.step import counts_of

WAYS = [
    {"method": "opd"},
    {"method": "opd", "estimator": "token"},
    {"method": "opd", "estimator": "topk"},
    {"method": "binary"},
    {"method": "combine"},
    {"method": "combine", "combine": "advantages"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_in_a_mean_over_replies_a_long_one_weighs_as_much_as_a_short_one(
    base: Base, model: PeftModel, config: TrainConfig, way: dict[str, str]
) -> None:
    walk_away(model)
    settings = dataclasses.replace(config, loss_mean="replies", **way)  # type: ignore[arg-type]
    short = make_sample(base, 2, response_ids=base.encode("no"), rollout_logprobs=[-1.0] * 2)
    items = items_of(base, [make_sample(base, 1), short], settings)
    assert [len(item.response_ids) for item in items] == [24, 2]
    assert counts_of(items, settings).rewarded == 2
    alone = [gradients(base, model, [item], settings) for item in items]
    halves = [(a + b) / 2 for a, b in zip(*alone, strict=True)]
    same(gradients(base, model, items, settings), halves, rtol=1e-3)


def test_what_the_charts_show_is_a_mean_over_tokens_either_way(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    walk_away(model)
    short = {"response_ids": base.encode("no"), "rollout_logprobs": [-1.0] * 2}
    given = [
        make_sample(base, 1),
        make_sample(base, 2, **short),
        make_sample(base, 3, hint=None, **short),
    ]
    shown = []
    for mean in ("tokens", "replies"):
        settings = dataclasses.replace(config, loss_mean=mean, lr=1e-12, max_steps=1)
        _, (step,) = job(base, model, given, settings)
        shown.append((step.kl, step.kl_base))
    assert shown[1] == pytest.approx(shown[0], rel=1e-4)
