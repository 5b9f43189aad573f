"""Which of several candidate hints teaches a reply."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import PeftModel

from rollouts.hints import NOTE
from tests.training.conftest import (
    DEVICE,
    Cancelled,
    cancel_after,
    items_of,
    job,
    make_sample,
)
from tests.training.test_gate import shake
from tests.training.test_methods import walk_away
from training.adapters import snapshot, wearing
from training.advantages import Baseline
from training.base import Base
from training.candidates import each_hint, nearest, overlap
from training.config import TrainConfig
from training.prepare import prepare
from training.small_talk import said_ids
from training.teacher import Teacher


def test_overlap_counts_the_words_in_both_sets_at_each_position() -> None:
    student = torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert overlap(student, student) == 6
    assert overlap(student, torch.tensor([[3, 1, 9], [9, 8, 7]])) == 2


@pytest.mark.parametrize("teacher", ["base", "parent"])
def test_the_candidate_that_the_student_can_nearly_say_is_chosen(
    base: Base, model: PeftModel, config: TrainConfig, teacher: str
) -> None:
    parent = None
    if teacher == "parent":  # far from the base, whose words would be others
        walk_away(model, far=1.0)
        parent = snapshot(model)
    sample = make_sample(base, 1, hint="zzzzzz zz zzzz!", other_hints=["", "One word."])
    (item,) = items_of(base, [sample], config)
    assert len(item.other_prompts_ids) == 2
    chosen = nearest(base, model, each_hint(item), config, parent)
    # The empty candidate adds nothing to the prompt: the student's own words, all of them.
    assert chosen.teacher_prompt_ids == item.prompt_ids
    assert chosen.other_prompts_ids == ()
    assert (chosen.said_ids, chosen.others_said_ids) == ((), ())  # it says nothing


@pytest.mark.parametrize("teacher", ["base", "parent"])
@torch.no_grad()
def test_the_student_is_as_it_is_now_and_the_teacher_as_it_was(
    base: Base, model: PeftModel, config: TrainConfig, teacher: str
) -> None:
    config = replace(config, topk=16)
    walk_away(model)
    parent = snapshot(model) if teacher == "parent" else None
    shake(model, 0.1)

    def likeliest(prompt: tuple[int, ...], reply: tuple[int, ...]) -> list[set[int]]:
        logits_TV = model(input_ids=torch.tensor([[*prompt, *reply]], device=DEVICE)).logits[0]
        rows_TK = logits_TV[len(prompt) - 1 : -1].topk(config.topk).indices
        return [set(row) for row in rows_TK.tolist()]

    hints = ("Be brief.", "Use lists, please.", "zz zzz!", "One word.")
    chosen = set()
    for number, text in enumerate(("tea", "a longer one", "no!", "1, 2 and 3", "Hm?", "ok ok"), 1):
        reply = base.encode(text)
        changes = {"response_ids": reply, "rollout_logprobs": [-1.0] * len(reply)}
        sample = make_sample(base, number, hint=hints[0], other_hints=hints[1:], **changes)
        (item,) = items_of(base, [sample], config)
        own = likeliest(*item.plain)
        ways = each_hint(item)
        with wearing(model, parent):
            theirs = [likeliest(*way.taught) for way in ways]
        shared = [sum(len(a & b) for a, b in zip(own, each, strict=True)) for each in theirs]
        best = shared.index(max(shared))
        assert nearest(base, model, ways, config, parent) == ways[best]
        chosen.add(best)
    assert len(chosen) > 1  # now this one, now that one


def test_the_chosen_hints_own_words_are_asked_whether_they_are_small_talk(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    places = []
    for hints in (("zzzzzz zz zzzz!", "One word."), ("One word.", "zzzzzz zz zzzz!")):
        sample = make_sample(base, 1, hint=hints[0], other_hints=hints[1:])
        (item,) = items_of(base, [sample], replace(config, hint_effect_min=0.05))
        chosen = nearest(base, model, each_hint(item), config)
        place = (item.teacher_prompt_ids, *item.other_prompts_ids).index(chosen.teacher_prompt_ids)
        assert chosen.said_ids == said_ids(base, hints[place]) != ()
        places.append(place)
    assert sorted(places) == [0, 1]  # one of the two words, whichever comes first


def test_more_words_than_there_are_choose_the_first_hint(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    sample = make_sample(base, 1, hint="zz zzz!", other_hints=["One word."])
    (item,) = items_of(base, [sample], config)
    chosen = nearest(base, model, each_hint(item), replace(config, topk=1000))
    assert chosen.teacher_prompt_ids == item.teacher_prompt_ids  # all words are shared: equals


@pytest.mark.parametrize("idle", ["", NOTE])
def test_a_candidate_that_does_nothing_is_not_chosen_where_another_does_something(
    base: Base, model: PeftModel, config: TrainConfig, idle: str
) -> None:
    """It overlaps most with what the student says already, and would then be dropped for that."""
    settings = replace(config, hint_effect_min=0.05, small_talk_nats=0.0)
    for hints in ((idle, "zz zzz!"), ("zz zzz!", idle)):
        sample = make_sample(base, 1, hint=hints[0] or " ", other_hints=hints[1:])
        (item,) = items_of(base, [sample], settings)
        wished = each_hint(item)[hints.index("zz zzz!")]
        assert nearest(base, model, each_hint(item), settings) != wished
        teacher = Teacher(base, model, settings)
        assert teacher.with_chosen_hint(item) == wished
        fresh = Teacher(base, model, settings)  # what was tried meanwhile is not what it teaches
        torch.testing.assert_close(teacher.hidden([wished]), fresh.hidden([wished]))
        result, _ = job(base, model, [sample], settings)
        assert (result.trained, result.dropped) == ((1,), {})


def test_a_candidate_that_leaves_no_room_is_none(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    endless, short = "zz zzz " * 20, "One word."
    room = len(items_of(base, [make_sample(base, 1, hint=endless)], config)[0].prompt_ids) + 120
    settings = replace(config, hint_effect_min=0.01, max_tokens=room)
    (taught,) = items_of(base, [make_sample(base, 1, hint=short)], settings)
    for hints in ((endless, short), (short, endless)):
        sample = make_sample(base, 1, hint=hints[0], other_hints=hints[1:])
        assert items_of(base, [sample], settings) == [taught]
    _, dropped = prepare(base, [make_sample(base, 1, hint=endless)], settings, baseline=Baseline())
    assert dropped == {1: "too_long"}


def test_a_cancelled_job_chooses_no_hint(base: Base, model: PeftModel, config: TrainConfig) -> None:
    (item,) = items_of(base, [make_sample(base, 1, other_hints=["One word."])], config)
    with pytest.raises(Cancelled):
        Teacher(base, model, config).with_chosen_hint(item, cancel_after(0))


def test_candidates_that_all_do_nothing_are_told_apart_by_their_overlap(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = replace(config, hint_effect_min=0.05)
    sample = make_sample(base, 1, hint=NOTE, other_hints=[""])
    (item,) = items_of(base, [sample], settings)
    chosen = Teacher(base, model, settings).with_chosen_hint(item)
    assert chosen.taught == item.plain


@pytest.mark.parametrize("method", ["binary", "kto", "apo_zero_unpaired"])
def test_several_hints_are_none_to_a_method_of_thumbs(
    base: Base, model: PeftModel, config: TrainConfig, method: str
) -> None:
    settings = replace(config, method=method, hint_effect_min=0.05)
    read = make_sample(base, 1, hint="zz zzz!", other_hints=["One word."])
    result, _ = job(base, model, [read, make_sample(base, 2, hint=None, reward=1.0)], settings)
    assert (result.trained, result.dropped) == ((1, 2), {})
