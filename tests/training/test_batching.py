from __future__ import annotations

from collections.abc import Sequence

import pytest

from training.batching import (
    Item,
    in_steps,
    in_steps_beside,
    micro_batches,
    pad_batch,
    padded_size,
    shared_length,
)
from training.config import TrainConfig


def item(number: int, prompt: int, response: int, teacher: int | None = None) -> Item:
    return Item(
        sample_id=number,
        prompt_ids=(1,) * prompt,
        response_ids=(2,) * response,
        teacher_prompt_ids=(1,) * (teacher or prompt),
        is_hinted=True,
    )


def cut_at(tokens: int) -> TrainConfig:
    return TrainConfig(micro_batch_tokens=tokens)


def test_padding_goes_right_and_positions_predict_the_next_token() -> None:
    batch = pad_batch([((5, 6), (7, 8)), ((5,), (9,))], pad_id=0, device="cpu")
    # position 1 predicts the 7, the 7 at 2 the 8; the last token predicts nothing and is left out
    assert batch.input_ids_BT.tolist() == [[5, 6, 7], [5, 0, 0]]
    assert batch.attention_mask_BT.tolist() == [[True, True, True], [True, False, False]]
    assert batch.predicts_BT.tolist() == [[False, True, True], [True, False, False]]
    assert batch.shared_ids_P.tolist() == []


def test_what_all_prompts_begin_with_stands_once() -> None:
    system = tuple(range(10, 50))
    pairs = [((*system, 1, 2), (7, 8)), ((*system, 3), (9,)), ((*system, 1), (6, 6, 6))]
    batch = pad_batch(pairs, pad_id=0, device="cpu")
    assert batch.shared_ids_P.tolist() == list(system)
    assert batch.input_ids_BT.tolist() == [[1, 2, 7], [3, 0, 0], [1, 6, 6]]
    assert batch.attention_mask_BT.shape == (3, 43)
    assert batch.attention_mask_BT.sum(-1).tolist() == [43, 41, 43]
    assert batch.predicts_BT.tolist() == [
        [False, True, True],
        [True, False, False],
        [True, True, True],
    ]


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        ([(1,) * 33, (1,) * 40], 32),  # each prompt's last token is read in its own row
        ([(1,) * 32, (1,) * 40], 0),  # 31 tokens fewer are not worth a pass
        ([(1,) * 12, (1,) * 12, (1,) * 12, (1,) * 12], 11),
        ([(1,) * 500], 0),
        ([(2,) * 500, (1,) * 500], 0),
        ([[1] * 50, (1,) * 40 + (2,) * 9], 40),
    ],
)
def test_tokens_are_shared_when_it_is_worth_it(prompts: list[Sequence[int]], shared: int) -> None:
    assert shared_length(prompts, device="cpu") == shared


def test_shared_tokens_count_once() -> None:
    items = [item(i, prompt=60, response=10) for i in range(4)]
    # 59 that all share, and four times the prompt's last and the reply
    assert padded_size(items, device="cpu") == 59 + 4 * 11
    assert len(micro_batches(items, cut_at(59 + 4 * 11), device="cpu")) == 1
    assert len(micro_batches(items, cut_at(59 + 4 * 11 - 1), device="cpu")) == 2


def test_a_micro_batch_holds_at_most_so_many_padded_tokens() -> None:
    items = [item(i, prompt=10, response=5 * i) for i in range(1, 9)]
    groups = micro_batches(items, cut_at(100), device="cpu")
    assert all(len(g) == 1 or padded_size(g, device="cpu") <= 100 for g in groups)
    assert sorted(i.sample_id for g in groups for i in g) == list(range(1, 9))
    assert len(groups) < 8


def test_the_teachers_longer_prompt_counts() -> None:
    items = [item(1, 10, 10, 80), item(2, 10, 10, 80)]
    assert len(micro_batches(items, cut_at(100), device="cpu")) == 2


def test_a_gpu_takes_more_at_once_and_reads_no_beginning_apart() -> None:
    items = [item(i, prompt=60, response=10) for i in range(4)]
    assert padded_size(items, device="cuda") == 4 * 70
    assert len(micro_batches(items, cut_at(70), device="cuda")) == 1
    assert len(micro_batches(items, cut_at(69), device="cuda")) == 2


def test_one_long_item_is_a_group_of_its_own() -> None:
    groups = micro_batches([item(1, 500, 100), item(2, 5, 5)], cut_at(512), device="cpu")
    assert [[i.sample_id for i in g] for g in groups] == [[2], [1]]


def test_no_step_is_of_earlier_replies_alone() -> None:
    def cut(own: int, earlier: int) -> list[list[int]]:
        known = [item(number, 1, 1) for number in range(100, 100 + earlier)]
        items = [item(number, 1, 1) for number in range(own)]
        steps = in_steps_beside(items, known, 4)
        return [[each.sample_id for each in step] for step in steps]

    assert cut(3, 0) == [[0, 1, 2]]
    assert cut(3, 10) == [[109, 0, 1, 2]]
    assert cut(4, 10) == [[0, 1, 2, 3]]
    assert cut(6, 1) == [[0, 1, 2, 3], [100, 4, 5]]


def test_steps_keep_the_order_and_lose_nothing() -> None:
    items = [item(i, 1, 1) for i in range(11)]
    steps = in_steps(items, batch_size=4)
    assert [[i.sample_id for i in s] for s in steps] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
