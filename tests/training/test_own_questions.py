"""The gate asks the user's own questions, too: which, of whom, and what of it moves a version."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer

from rollouts.types import Message
from tests.training.conftest import make_sample, nothing
from training.adapters import adapter_tensors, round_to_saved, wearing
from training.base import Base
from training.config import TrainConfig
from training.drift import Wishes, asked
from training.gate import (
    OWN_NEEDS,
    OWN_QUESTIONS,
    OWN_TOKENS,
    Measure,
    decide,
    measure,
    question_gains,
    questions_of,
)
from training.sampling import sample_replies
from training.way_back import LEAST_SHARE, step_back

NEUTRAL = ("one?", "two?", "three?")
OWN = tuple(f"own question {number}?" for number in range(OWN_NEEDS))


def own_question(
    base: Base, model: PeftModel, config: TrainConfig, questions: tuple[str, ...] = OWN
) -> Measure:
    wishes = Wishes(questions=questions)
    found = measure(base, model, None, (), NEUTRAL, wishes, config, nothing)
    return next(each for each in found if each.measure == "own_question")


@torch.no_grad()
def shake(model: PeftModel, size: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for tensor in adapter_tensors(model).values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * size)


def size_of(model: PeftModel) -> float:
    """How far it goes from the base: the mean size of what its adapter adds; 0 while it is bare."""
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    if layers[0].disable_adapters:
        return 0.0
    return statistics.fmean(
        float(each.lora_B["default"].weight.detach().abs().mean()) for each in layers
    )


@pytest.fixture
def fading(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies to the user's own questions fit them the less the farther a version goes; those to
    neutral prompts as the base's. In a model of no words no reply fits anything by itself."""
    sampled: dict[int, float] = {}

    def sample(base: Base, model: PeftModel, *args: object, **named: object) -> list[object]:
        replies: list[object] = list(sample_replies(base, model, *args, **named))  # type: ignore[arg-type]
        sampled[len(replies)] = size_of(model)
        return replies

    def fit(base: Base, model: PeftModel, prompts: Sequence[object], *_: object) -> float:
        return 40.0 - (1000.0 * sampled[len(prompts)] if len(prompts) == len(OWN) else 0.0)

    monkeypatch.setattr("training.gate.sample_replies", sample)
    monkeypatch.setattr("training.gate.of_their_question", fit)


def test_the_newest_questions_that_differ_are_asked_again(base: Base) -> None:
    samples = [make_sample(base, number) for number in (9, 8, 8, 7)]
    tool = [Message(role="user", content="the weather?"), Message(role="tool", content="sunny")]
    samples.insert(1, make_sample(base, messages=tool))  # what came last is no question
    samples.insert(1, make_sample(base, messages=asked("  ")))
    assert questions_of(samples) == ("question 9", "question 8", "question 7")
    many = questions_of(make_sample(base, number) for number in range(100))
    assert many == tuple(f"question {number}" for number in range(OWN_QUESTIONS))


def test_replies_to_them_are_held_against_the_bases(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.gate.QUESTION_NEEDS", -100.0)  # this model fits none
    shake(model, 0.3)
    round_to_saved(model)
    found = own_question(base, model, config)

    def fit() -> float:
        prompts = [base.render(asked(question)) for question in OWN]
        replies = sample_replies(
            base, model, prompts, temperature=config.gate_temperature,
            max_new_tokens=config.gate_tokens, seed=config.seed, check=nothing,
        )  # fmt: skip
        with wearing(model, None):
            gains = question_gains(base, model, prompts, [each.ids for each in replies], nothing)
        return statistics.median(gains)

    with wearing(model, None):
        bases = fit()
    assert found.value == pytest.approx(fit() / bases, rel=1e-3)
    assert found.value != pytest.approx(1.0, abs=0.01), "it must be another's replies"
    assert found.limit == config.gate_question_min


def test_of_few_questions_or_vague_ones_nothing_is_judged(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    few = own_question(base, model, config, OWN[1:])
    assert (few.value, few.ok) == (None, None)
    assert few.text == f"not measured: needs {OWN_NEEDS} different questions of yours"
    vague = own_question(base, model, config)
    assert (vague.value, vague.ok) == (None, None)
    assert "the base model's replies to your questions do not tell what was asked" in vague.text


def test_of_a_long_question_the_beginning_is_asked(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def note(base: Base, model: PeftModel, prompts: Sequence[Sequence[int]], **named: object):  # type: ignore[no-untyped-def]
        seen.extend(len(ids) for ids in prompts)
        return sample_replies(base, model, prompts, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("training.gate.sample_replies", note)
    own_question(base, model, config, (*OWN[1:], "why " * 2000))
    around = len(base.render(asked("")))
    assert OWN_TOKENS < max(seen) <= OWN_TOKENS + around


@pytest.mark.usefixtures("fading")
def test_a_version_that_lost_them_is_refused_though_it_keeps_to_neutral_prompts(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    free = replace(config, gate_drift_margin=1e6)
    own = own_question(base, model, free)
    assert (own.value, own.ok) == (1.0, True)
    shake(model, 0.1)
    found = measure(base, model, None, (), NEUTRAL, Wishes(questions=OWN), free, nothing)
    decision = decide(found)
    assert not decision.accepted
    assert [each.measure for each in found if each.ok is False] == ["own_question"]
    assert "to your own questions fit them" in decision.reasons[0]
    assert decide(measure(base, model, None, (), NEUTRAL, Wishes(), free, nothing)).accepted


@pytest.mark.usefixtures("fading")
def test_a_version_is_moved_back_until_it_keeps_to_them(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    free = replace(config, gate_drift_margin=1e6)
    shake(model, 0.055)  # a mean size of about 0.044: 40 - 44 nats, and 40 - 30 pass
    assert step_back(base, model, None, NEUTRAL, Wishes(), free, nothing) == 1.0
    share = step_back(base, model, None, NEUTRAL, Wishes(questions=OWN), free, nothing)
    assert LEAST_SHARE < share == pytest.approx(0.8**2, rel=1e-6)
    assert own_question(base, model, free).ok is True
