"""Older replies that a job is reminded of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from peft import PeftModel

from tests.training.conftest import job, make_sample, samples
from training import teacher, trainer
from training.advantages import Baseline
from training.base import Base
from training.batching import Item
from training.candidates import nearest
from training.config import TrainConfig
from training.prepare import prepare, under_collected


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

    def choose(base: Base, model: PeftModel, ways: Sequence[Item], *rest: Any) -> Item:
        chosen.append(ways[0].sample_id)
        return nearest(base, model, ways, *rest)

    monkeypatch.setattr(teacher, "nearest", choose)
    older = make_sample(base, 99, other_hints=["", "One word."])
    job(base, model, [make_sample(base, 1, hint=hint, reward=-1.0)], config, replay=[older])
    assert chosen.count(99) == 1


@dataclass(frozen=True)
class Step:
    phase: str
    items: Sequence[Item]
    effect: float | None  # of the hints, which its length goes by


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """What each optimizer step of a job is given."""
    found: list[Step] = []
    step = trainer._step

    def seen(run: Any, items: Sequence[Item], *, phase: str, began: float) -> float | None:
        found.append(Step(phase, items, run.effect))
        return step(run, items, phase=phase, began=began)

    monkeypatch.setattr(trainer, "_step", seen)
    return found


def taught(base: Base, items: Sequence[Item]) -> list[str]:
    """What stands under the marker in each teacher's prompt."""
    texts = [base.tokenizer.decode(item.teacher_prompt_ids) for item in items]
    return [text.split("[user's hint / instruction]\n")[1].split("<|im_end|>")[0] for text in texts]


def test_collected_hints_stand_before_the_own_newest_last(base: Base, config: TrainConfig) -> None:
    hints = ["One.", "Two.", "Three.", "Four.", "Five."]
    again = [*hints, "Of one reply.", *hints[1:], "One."]
    given = [make_sample(base, number, hint=hint) for number, hint in enumerate(again)]
    given.append(make_sample(base, 19, hint=None, reward=1.0))
    items, _ = prepare(base, given[2:4], config, baseline=Baseline())
    assert taught(base, items) == ["Three.", "Four."]
    assert taught(base, under_collected(base, items, given, config)) == [
        "Two.\nFour.\nFive.\nOne.\nThree.",
        "Two.\nThree.\nFive.\nOne.\nFour.",
    ]
    items, _ = prepare(base, given[5:6], config, baseline=Baseline())
    (text,) = taught(base, under_collected(base, items, given, config))
    assert text == "Three.\nFour.\nFive.\nOne.\nOf one reply."  # the newest four


def test_hints_that_a_reply_followed_are_collected_in_their_order(
    base: Base, config: TrainConfig
) -> None:
    followed = {"hint": None, "reward": 1.0, "prompted_hints": ("Two.", "Three.")}
    given = [make_sample(base, 1, hint="One."), *samples(base, 3, **followed)[1:]]
    items, _ = prepare(base, given[:1], config, baseline=Baseline())
    (text,) = taught(base, under_collected(base, items, given, config))
    assert text == "Two.\nThree.\nOne."


def test_a_correction_stands_beside_what_was_said_again(base: Base, config: TrainConfig) -> None:
    given = [make_sample(base, number, hint="Be brief.") for number in range(2)]
    given.append(make_sample(base, 2, hint=None, correction="Boil it."))
    items, _ = prepare(base, given[2:], config, baseline=Baseline())
    (text,) = taught(base, under_collected(base, items, given, config))
    assert text.split("\n\n") == ["Be brief.", "[what the user wanted instead]\nBoil it."]


def test_without_others_or_without_room_the_own_hint_stays(base: Base, config: TrainConfig) -> None:
    given = samples(base, 3)
    items, _ = prepare(base, given, config, baseline=Baseline())
    assert under_collected(base, items, given, config) == items
    given[0] = replace(given[0], hint="Please " * 50)
    assert under_collected(base, items[1:], given, config) == items[1:]  # it was said once
    given.append(replace(given[0], id=9))
    longest = max(item.length for item in items[1:]) + config.reanswer_tokens
    tight = replace(config, max_tokens=longest)
    assert under_collected(base, items[1:], given, tight) == items[1:]
    assert under_collected(base, items[1:], given, config) != items[1:]


@pytest.mark.parametrize("which", ["own", "collected"])
def test_reanswers_are_distilled_under_own_or_collected_hints(
    base: Base, model: PeftModel, config: TrainConfig, steps: list[Step], which: Any
) -> None:
    said = ["Be brief.", "Greet me.", "Be brief.", "Greet me."]
    given = [make_sample(base, number, hint=hint) for number, hint in enumerate(said, 1)]
    older = make_sample(base, 0, hint="No lists.")
    job(base, model, given, replace(config, max_steps=2, reanswer_hints=which), replay=[older])
    again = [*said, "No lists."]
    if which == "collected":
        again = ["Greet me.\nBe brief.", "Be brief.\nGreet me."] * 2
        again.append("Be brief.\nGreet me.\nNo lists.")
    own = said
    assert [step.phase for step in steps] == ["rated", "reanswer"]
    assert [taught(base, step.items) for step in steps] == [own, again]


def test_a_dropped_hint_is_not_collected(
    base: Base, model: PeftModel, config: TrainConfig, steps: list[Step]
) -> None:
    old = {"hint": "Greet me.", "version_age": config.max_version_age + 1}
    given = [
        make_sample(base, 1, hint="Be brief."),
        make_sample(base, 2, **old),
        make_sample(base, 3, hint="No lists."),
        make_sample(base, 4, **old),
        make_sample(base, 5, hint="Be brief."),
        make_sample(base, 6, hint="No lists."),
    ]
    settings = replace(config, max_steps=2, reanswer_hints="collected")
    result, _ = job(base, model, given, settings)
    assert result.dropped == {2: "stale", 4: "stale"}
    assert taught(base, steps[1].items) == ["No lists.\nBe brief.", "Be brief.\nNo lists."] * 2


def test_collected_hints_stand_before_the_candidate_that_was_chosen(
    base: Base, config: TrainConfig
) -> None:
    given = [
        make_sample(base, 1, hint="No lists."),
        make_sample(base, 2, hint="Be brief.", other_hints=["One word."]),
        make_sample(base, 3, hint="No lists."),
    ]
    items, _ = prepare(base, given, config, baseline=Baseline())
    (other_prompt,) = items[1].other_prompts_ids
    chosen = replace(items[1], teacher_prompt_ids=other_prompt, other_prompts_ids=())
    assert taught(base, under_collected(base, [chosen], given, config)) == ["No lists.\nOne word."]


@pytest.mark.parametrize("which", ["own", "collected"])
def test_a_steps_length_goes_by_the_effect_of_what_it_teaches(
    base: Base, model: PeftModel, config: TrainConfig, steps: list[Step], which: Any
) -> None:
    said = ["Be brief.", "Greet me."] * 2
    given = [make_sample(base, number, hint=hint) for number, hint in enumerate(said)]
    job(base, model, given, replace(config, max_steps=2, reanswer_hints=which))
    rated, again = (step.effect for step in steps)
    assert rated
    assert again
    assert (rated == again) is (which == "own")
