"""How often a job answers prompts anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from peft import PeftModel

from tests.training.conftest import hinted_kl, items_of, job, make_sample
from training import trainer
from training.base import Base
from training.batching import Item, reanswer_sets
from training.config import TrainConfig
from training.sampling import Reply, sample_replies
from training.step import group_backward


def test_earlier_hints_are_learned_further_in_a_job_of_thumbs_alone(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    disliked = [make_sample(base, n, hint=None, reward=-1.0) for n in range(1, 4)]
    older = [make_sample(base, n, version_age=9) for n in range(11, 14)]
    items = items_of(base, [make_sample(base, n) for n in range(11, 14)], config)
    before = hinted_kl(base, model, items)
    longer = dataclasses.replace(config, max_steps=16)  # a GPU draws other replies
    result, steps = job(base, model, disliked, longer, replay=older)
    assert [s.phase for s in steps] == ["rated", *["reanswer"] * 15]
    assert set(result.reanswers) == {11, 12, 13}
    assert result.trained == (1, 2, 3)
    assert hinted_kl(base, model, items) < before - 0.05


def test_the_ids_that_were_sampled_are_the_ids_that_train(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[tuple[int, ...]] = []
    trained: list[tuple[int, ...]] = []

    def sample(*given: Any, **more: Any) -> list[Reply]:
        replies = sample_replies(*given, **more)
        sampled.extend(reply.ids for reply in replies)
        return replies

    def backward(
        base: Base, model: PeftModel, group: Sequence[Item], *more: Any, **named: Any
    ) -> Any:
        trained.extend(item.response_ids for item in group if item.is_fresh)
        return group_backward(base, model, group, *more, **named)

    monkeypatch.setattr(trainer, "sample_replies", sample)
    monkeypatch.setattr(trainer, "group_backward", backward)
    job(base, model, [make_sample(base, n) for n in range(1, 5)], config)
    assert len(trained) == 12
    assert sorted(trained) == sorted(sampled)


def test_who_likes_everything_is_left_alone(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    liked = [make_sample(base, n, hint=None, reward=1.0) for n in range(1, 4)]
    older = [make_sample(base, n, version_age=9) for n in range(11, 14)]
    result, steps = job(base, model, liked, config, replay=older)
    assert ([s.phase for s in steps], result.reanswers) == (["rated"], {})
    all_sets = dataclasses.replace(config, reanswer_sets="all", kto_beside=0)
    result, steps = job(base, model, liked, all_sets, replay=older)
    assert [s.phase for s in steps] == ["rated", *["reanswer"] * (config.max_steps - 1)]


@pytest.mark.parametrize(
    ("disliked", "hinted", "unvoted", "liked", "sets"),
    [  # ceil(6 sqrt(d / n))
        (8, 0, 0, 0, 6),
        (1, 0, 0, 7, 3),  # 2.12
        (2, 0, 0, 6, 3),  # 3
        (0, 3, 0, 5, 4),  # 3.67: liked, and something was still to be better
        (0, 0, 1, 1, 5),  # 4.24: nobody has said that it was liked
        (0, 0, 0, 8, 0),
    ],
)
def test_sets_of_reanswers_go_by_the_share_that_was_not_liked(
    base: Base, disliked: int, hinted: int, unvoted: int, liked: int, sets: int
) -> None:
    kinds = [
        *[{"hint": None, "reward": -1.0}] * disliked,
        *[{"hint": "Be brief.", "reward": 1.0}] * hinted,
        *[{"hint": "Be brief.", "reward": None}] * unvoted,
        *[{"hint": None, "reward": 1.0}] * liked,
    ]
    given = [make_sample(base, n, **kind) for n, kind in enumerate(kinds)]
    config = TrainConfig(max_steps=7)
    assert reanswer_sets(items_of(base, given, config), config) == sets
    every = dataclasses.replace(config, reanswer_sets="all")
    assert reanswer_sets(items_of(base, given, every), every) == 6


def test_of_all_that_a_job_is_reminded_of_the_newest_eight_are_answered_anew(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    disliked = [make_sample(base, n, hint=None, reward=-1.0) for n in range(30, 33)]
    older = [make_sample(base, n, hint="Use lists.") for n in range(1, 11)]
    liked = [make_sample(base, n, hint=None, reward=1.0) for n in range(11, 16)]
    longer = dataclasses.replace(config, max_steps=8)
    result, _ = job(base, model, disliked, longer, replay=[*older, *liked])
    assert set(result.reanswers) == {*range(3, 11)}
