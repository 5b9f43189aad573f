from __future__ import annotations

from training.batching import Item, in_steps, micro_batches, pad_batch


def item(number: int, prompt: int, response: int, teacher: int | None = None) -> Item:
    return Item(
        sample_id=number,
        prompt_ids=(1,) * prompt,
        response_ids=(2,) * response,
        teacher_prompt_ids=(1,) * (teacher or prompt),
        is_hinted=True,
    )


def test_padding_goes_right_and_positions_predict_the_next_token() -> None:
    batch = pad_batch([((5, 6), (7, 8)), ((5,), (9,))], pad_id=0, device="cpu")
    assert batch.input_ids_BT.tolist() == [[5, 6, 7, 8], [5, 9, 0, 0]]
    assert batch.attention_mask_BT.tolist() == [[True] * 4, [True, True, False, False]]
    # position 1 predicts the 7 at 2, position 2 the 8; the last predicts nothing
    assert batch.predicts_BT.tolist() == [
        [False, True, True, False],
        [True, False, False, False],
    ]
    assert batch.targets_N.tolist() == [7, 8, 9]


def test_a_micro_batch_holds_at_most_so_many_padded_tokens() -> None:
    items = [item(i, prompt=10, response=5 * i) for i in range(1, 9)]
    groups = micro_batches(items, max_tokens=100)
    assert all(len(g) * max(i.length for i in g) <= 100 for g in groups)
    assert sorted(i.sample_id for g in groups for i in g) == list(range(1, 9))
    assert len(groups) < 8


def test_the_teachers_longer_prompt_counts() -> None:
    assert len(micro_batches([item(1, 10, 10, 80), item(2, 10, 10, 80)], max_tokens=100)) == 2


def test_one_long_item_is_a_group_of_its_own() -> None:
    groups = micro_batches([item(1, 500, 100), item(2, 5, 5)], max_tokens=512)
    assert [[i.sample_id for i in g] for g in groups] == [[2], [1]]


def test_steps_keep_the_order_and_lose_nothing() -> None:
    items = [item(i, 1, 1) for i in range(11)]
    steps = in_steps(items, batch_size=4)
    assert [[i.sample_id for i in s] for s in steps] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
