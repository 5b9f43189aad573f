"""Corrections as words: the loss by hand, its gradient, and a job that learns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from rollouts.hints import NOTE
from rollouts.types import Sample
from tests.training.conftest import (
    ATOL,
    DEVICE,
    Cancelled,
    cancel_after,
    items_of,
    job,
    make_sample,
    nothing,
)
from training import forward
from training.adapters import adapter_tensors
from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.corrections import WordsLeft, correction_backward, word_weights
from training.prepare import HINT_NO_EFFECT
from training.step import StepSums

WANTED, OTHER = "Hello! Boil water.", "Boil it."


@pytest.fixture
def config(config: TrainConfig) -> TrainConfig:
    return replace(config, correction_weight=0.5, batch_size=4)


def corrected(base: Base, number: int, correction: str | None, **more: Any) -> Sample:
    return make_sample(base, number, correction=correction, **more)


def nll_by_hand(base: Base, sample: Sample, words: str, end: Sequence[int] | None = None) -> float:
    """-sum_t log p of the words and the end token after the prompt, by one plain pass."""
    ids = [*base.encode(words), *(base.eos_ids[:1] if end is None else end)]
    with torch.no_grad():
        read = torch.tensor([[*sample.prompt_ids, *ids]], device=DEVICE)
        logits_TV = base.model(input_ids=read).logits[0]
    logprobs_TV = torch.log_softmax(logits_TV.float(), dim=-1)
    start = len(sample.prompt_ids) - 1
    return -sum(float(logprobs_TV[start + t, token]) for t, token in enumerate(ids))


def test_the_loss_is_the_mean_over_the_words_of_the_step(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    samples = [corrected(base, 1, WANTED), corrected(base, 2, OTHER), corrected(base, 3, None)]
    sums = correction_backward(base, model, items_of(base, samples, config), config, nothing)
    total = nll_by_hand(base, samples[0], WANTED) + nll_by_hand(base, samples[1], OTHER)
    words = sum(len(base.encode(text)) + 1 for text in (WANTED, OTHER))
    assert sums.corrected_tokens == words
    assert sums.correction_nll == pytest.approx(total, rel=1e-5)
    assert sums.loss == pytest.approx(0.5 * total / words, rel=1e-5)


@pytest.mark.parametrize(
    ("reply", "written", "weights"),
    [
        ("abcdef.", "Habcdef.", "11000000"),  # greeted, and on with the reply
        ("abcdef.", "abcdefq.", "00000011"),  # a question before the end
        ("abcdefgh.", "abcd.", "00001"),  # shortened: it ends here
        ("abcd", "abcd.", "00001"),  # cut off by a limit, ended by hand
        ("Xabcdef.", "abcdef.", "1000000"),  # without its greeting: it begins here
        ("abcdefghij", "abcdXfghij", "0000110000"),
        ("abcdef", "abXdefY", "1111111"),  # runs of two and three: hardly the reply
        ("abc.", "xyz", "111"),
    ],
)
def test_what_was_changed_teaches_and_what_follows_each_change(
    config: TrainConfig, reply: str, written: str, weights: str
) -> None:
    ids = [ord(word) for word in reply], [ord(word) for word in written]
    wanted = tuple(map(float, weights))
    assert word_weights(*ids, config) == wanted[: weights.rindex("1") + 1]
    half = replace(config, correction_kept_weight=0.5)
    assert word_weights(*ids, half) == tuple(each or 0.5 for each in wanted)


@pytest.mark.parametrize(
    ("reply", "written", "weights"),
    [
        ("abcdefgh", "Habcdef.", "11"),  # the half sentence goes, and nothing is said of its end
        ("abcdefgh", "abcdefQ?.", "000000111"),  # it ends after what was added
        ("abcd" + "x" * 41, "abcd.", "00001"),  # so much less was wanted
        ("abcd" + "x" * 40, "Habcd.", "11"),
    ],
)
def test_where_a_limit_ended_a_reply_its_end_is_not_taught(
    config: TrainConfig, reply: str, written: str, weights: str
) -> None:
    ids = [ord(word) for word in reply], [ord(word) for word in written]
    found = word_weights(*ids, config, has_ended=False)
    assert found == tuple(map(float, weights))


def test_a_correction_that_changes_nothing_is_what_they_wanted(config: TrainConfig) -> None:
    assert word_weights([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], config) == (1.0,) * 5


def test_words_that_come_often_are_found_again_in_a_long_reply(config: TrainConfig) -> None:
    reply = [1, 2, 3, 4] * 60
    assert word_weights(reply, [9, *reply], config) == (1.0, 1.0)


def test_only_so_many_changed_words_teach(config: TrainConfig) -> None:
    def found(most: int) -> tuple[float, ...]:
        limited = replace(config, correction_tokens=most)
        return word_weights([1, 2, 3, 4, 5, 6, 7, 8], [9, 1, 2, 3, 4, 0, 5, 6, 7, 8], limited)

    assert found(2) == (1.0, 1.0)
    assert found(3) == (1.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    assert len(found(99)) == 7


def test_the_loss_is_of_the_changed_words_after_all_that_stands_before_them(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    sample = corrected(base, 1, None)
    reply = base.tokenizer.decode(sample.response_ids, skip_special_tokens=True).strip()
    sample = replace(sample, correction=f"{reply} Shall I go on?")
    added = base.answer_ids(sample.correction)[len(base.encode(reply)) :]
    (item,) = items_of(base, [sample], config)
    assert item.correction_weights == (0.0,) * (len(item.correction_ids) - len(added)) + (
        1.0,
    ) * len(added)
    sums = correction_backward(base, model, [item], config, nothing)
    whole = nll_by_hand(base, sample, sample.correction)
    before = nll_by_hand(base, sample, reply, end=())
    assert sums.corrected_tokens == len(added)
    assert sums.correction_nll == pytest.approx(whole - before, rel=1e-5)
    assert sums.loss == pytest.approx(0.5 * (whole - before) / len(added), rel=1e-5)


def gradient(base: Base, model: PeftModel, items: Sequence[Item], config: TrainConfig) -> Tensor:
    model.zero_grad()
    correction_backward(base, model, items, config, nothing)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_its_gradient_does_not_depend_on_how_a_step_is_cut(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = items_of(base, [corrected(base, 1, WANTED), corrected(base, 2, OTHER)], config)
    whole = gradient(base, model, items, config)
    monkeypatch.setattr(forward, "CHUNK", 7)
    cut = gradient(base, model, items, replace(config, micro_batch_tokens=1))
    double = gradient(base, model, items, replace(config, correction_weight=1.0))
    assert float(whole.norm()) > 0
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=ATOL)
    torch.testing.assert_close(double, 2 * whole, rtol=1e-4, atol=ATOL)


def test_each_word_has_its_own_weight_however_a_step_is_cut(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [
        replace(
            item, correction_weights=tuple(0.5 * (n % 3) for n in range(len(item.correction_ids)))
        )
        for item in items_of(base, [corrected(base, 1, WANTED), corrected(base, 2, OTHER)], config)
    ]
    whole = gradient(base, model, items, config)
    sums = correction_backward(base, model, items, config, nothing)
    monkeypatch.setattr(forward, "CHUNK", 7)
    small = replace(config, micro_batch_tokens=1)
    torch.testing.assert_close(gradient(base, model, items, small), whole, rtol=1e-4, atol=ATOL)
    cut = correction_backward(base, model, items, small, nothing)
    assert sums.loss == pytest.approx(0.5 * sums.correction_nll / sums.corrected_tokens, rel=1e-5)
    assert (cut.loss, cut.correction_nll) == pytest.approx(
        (sums.loss, sums.correction_nll), rel=1e-5
    )


def test_a_cancelled_job_ends_before_each_micro_batch_of_corrections(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    items = items_of(base, [corrected(base, 1, WANTED)], config)
    with pytest.raises(Cancelled):
        correction_backward(base, model, items, config, cancel_after(0))


def test_without_a_correction_nothing_is_added_or_measured(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    items = items_of(base, [make_sample(base)], config)
    sums = correction_backward(base, model, items, config, nothing)
    assert (sums.loss, sums.corrected_tokens) == (0.0, 0)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("change", [{"correction_weight": 0.0}, {"method": "binary"}])
def test_words_are_learned_only_where_a_job_says_so(
    base: Base, config: TrainConfig, change: dict[str, Any]
) -> None:
    (item,) = items_of(base, [corrected(base, 1, WANTED)], replace(config, **change))
    assert item.correction_ids == ()


def test_a_long_correction_trains_on_its_beginning(base: Base, config: TrainConfig) -> None:
    long = "word " * 50
    ids = (*base.encode(long.strip()), base.eos_ids[0])

    def kept(**change: int) -> tuple[int, ...]:
        (item,) = items_of(base, [corrected(base, 1, long)], replace(config, **change))
        return item.correction_ids

    assert kept(correction_tokens=20) == ids[:20]
    assert kept(correction_tokens=4096) == ids


@pytest.mark.parametrize("ended", [True, False])
def test_the_end_is_taught_unless_a_limit_had_ended_the_reply(
    base: Base, config: TrainConfig, ended: bool
) -> None:
    end = base.eos_ids[:1]
    said = (*base.encode("Boil it in water, and"), *(end if ended else ()))
    sample = corrected(base, 1, "Yes! Boil it in water,", response_ids=said)
    (item,) = items_of(base, [sample], config)
    assert item.correction_weights[0] == 1.0
    assert (item.correction_ids[-1:] == end) == ended


def test_of_a_correction_no_more_is_learned_than_has_room_after_its_prompt(
    base: Base, config: TrainConfig
) -> None:
    reply = " ".join(f"word{number}" for number in range(30))
    sample = corrected(base, 1, f"Yes! {reply} Well?", response_ids=base.encode(reply))
    words = base.answer_ids(sample.correction or "")
    short = replace(config, correction_tokens=16)
    (whole,) = items_of(base, [sample], short)
    assert whole.correction_ids == words
    for room in (len(words), len(words) - 1, len(words) - 2):
        tight = replace(short, max_tokens=len(sample.prompt_ids) + room)
        (cut,) = items_of(base, [sample], tight)
        assert cut.correction_ids == words[:room]


def test_a_correction_that_leaves_no_room_is_told_as_far_as_it_is_learned(
    base: Base, config: TrainConfig
) -> None:
    long = " ".join(f"word{number}" for number in range(60))
    tight = replace(config, correction_tokens=20)
    whole, short = (corrected(base, 1, text) for text in (long, base.beginning(long, 20)))
    (roomy,) = items_of(base, [whole], tight)
    (begun,) = items_of(base, [short], tight)
    assert len(roomy.teacher_prompt_ids) > len(begun.teacher_prompt_ids)
    room = len(begun.teacher_prompt_ids) + len(begun.response_ids)
    (cut,) = items_of(base, [whole], replace(tight, max_tokens=room))
    assert cut.teacher_prompt_ids == begun.teacher_prompt_ids
    assert cut.correction_ids == roomy.correction_ids
    assert items_of(base, [whole], replace(tight, max_tokens=room - 1)) == []


def test_the_beginning_of_a_text(base: Base) -> None:
    text = "Zürich is — mostly — warm."
    assert base.beginning(text, 1000) == text
    begun = base.beginning(text, 3)
    assert 0 < len(begun) < len(text)
    assert text.startswith(begun)


def test_a_reply_ends_as_the_template_ends_it(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    (end,) = base.eos_ids
    other = base.pad_id if base.pad_id != end else end + 1
    monkeypatch.setattr(base.model.generation_config, "eos_token_id", [other, end])
    assert base.eos_ids == (other, end)  # the first of which ends no turn
    assert base.answer_ids(" Yes. ") == (*base.encode("Yes."), end)
    base.cache.clear()
    monkeypatch.setattr(base.tokenizer, "chat_template", "{{ messages[0].content }}")
    assert base.end_id == end  # the tokenizer's own
    base.cache.clear()
    monkeypatch.setattr(base.model.generation_config, "eos_token_id", [other])
    assert base.end_id == other


def test_a_job_makes_corrections_likelier_and_says_how_far_it_is(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    samples = [corrected(base, number, WANTED) for number in range(1, 5)]
    by_hand = sum(nll_by_hand(base, sample, WANTED) for sample in samples)
    before = {name: tensor.clone() for name, tensor in adapter_tensors(model).items()}
    _, steps = job(base, model, samples, config)
    found = [step.correction_nll for step in steps]
    assert found[0] == pytest.approx(by_hand / (4 * len(base.answer_ids(WANTED))), rel=1e-4)
    assert found[-1] is not None
    assert found[-1] < 0.9 * found[0]
    after = adapter_tensors(model)
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())
    _, steps = job(base, model, [make_sample(base)], config)
    assert steps[0].correction_nll is None


def test_words_are_learned_where_the_prompt_moves_nothing(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    taught = replace(corrected(base, 1, WANTED), hint=NOTE)
    samples = [taught, make_sample(base, 2, hint=NOTE)]
    result, _ = job(base, model, samples, config)
    assert result.trained == (1,)
    assert result.dropped == {2: HINT_NO_EFFECT}


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_what_the_user_wrote_instead_is_not_weighed_against_a_note(
    base: Base, config: TrainConfig, weight: float
) -> None:
    given = [corrected(base, 1, WANTED), replace(corrected(base, 2, WANTED), hint=None)]
    items = items_of(
        base, [*given, make_sample(base, 3)], replace(config, correction_weight=weight)
    )
    assert [bool(item.noted_prompt_ids) for item in items] == [False, False, True]


def test_how_much_is_left_to_say_is_a_share_of_what_it_was_at_first() -> None:
    words = WordsLeft()
    assert words.after(StepSums()) is None  # a step without any
    assert words.after(StepSums(correction_nll=12.0, corrected_tokens=4.0)) == 1.0  # 3 nats each
    assert words.after(StepSums(correction_nll=3.0, corrected_tokens=2.0)) == 0.5
    assert words.after(StepSums(correction_nll=7.5, corrected_tokens=2.0)) == 1.25
    assert WordsLeft().after(StepSums(correction_nll=0.0, corrected_tokens=2.0)) is None


def test_steps_stay_long_while_what_was_written_is_not_learned(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    samples = [corrected(base, number, WANTED) for number in range(1, 5)]
    _, steps = job(base, model, samples, config)
    assert all(
        step.lr == pytest.approx(config.lr)
        for step in steps
        if (step.correction_nll or 0.0) >= 0.5 * (steps[0].correction_nll or 0.0)
    )


@pytest.mark.parametrize(("correction", "stopped"), [(WANTED, "steps"), (None, "learned")])
def test_words_are_learned_on_where_the_hint_is_learned(
    base: Base, model: PeftModel, config: TrainConfig, correction: str | None, stopped: str
) -> None:
    samples = [corrected(base, number, correction) for number in range(1, 5)]
    result, _ = job(base, model, samples, replace(config, kl_stop=1e6))
    assert result.stopped == stopped
