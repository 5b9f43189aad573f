"""Which of several candidate hints teaches a reply."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import PeftModel

from tests.training.conftest import make_sample
from tests.training.test_methods import walk_away
from tests.training.test_trainer import items_of
from training.adapters import snapshot
from training.base import Base
from training.candidates import overlap, with_chosen_hint
from training.config import TrainConfig
from training.small_talk import said_ids


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
    chosen = with_chosen_hint(base, model, item, config, parent)
    # The empty candidate adds nothing to the prompt: the student's own words, all of them.
    assert chosen.teacher_prompt_ids == item.prompt_ids
    assert chosen.other_prompts_ids == ()
    assert (chosen.said_ids, chosen.others_said_ids) == ((), ())  # it says nothing


def test_the_chosen_hints_own_words_are_asked_whether_they_are_small_talk(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    places = []
    for hints in (("zzzzzz zz zzzz!", "One word."), ("One word.", "zzzzzz zz zzzz!")):
        sample = make_sample(base, 1, hint=hints[0], other_hints=hints[1:])
        (item,) = items_of(base, [sample], replace(config, hint_effect_min=0.05))
        chosen = with_chosen_hint(base, model, item, config)
        place = (item.teacher_prompt_ids, *item.other_prompts_ids).index(chosen.teacher_prompt_ids)
        assert chosen.said_ids == said_ids(base, hints[place]) != ()
        places.append(place)
    assert sorted(places) == [0, 1]  # one of the two words, whichever comes first


def test_more_words_than_there_are_choose_the_first_hint(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    sample = make_sample(base, 1, hint="zz zzz!", other_hints=["One word."])
    (item,) = items_of(base, [sample], config)
    chosen = with_chosen_hint(base, model, item, replace(config, topk=1000))
    assert chosen.teacher_prompt_ids == item.teacher_prompt_ids  # all words are shared: equals
