"""What follows the hints of a job, with the real base model: KTO on thumbs, and the way back from
where it leads. The bench's short form likes nothing in its one job, and moves nothing back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from peft import PeftModel

from bench.personas.effects import replies_of
from bench.personas.lab import TEMPERATURE
from bench.personas.people import PEOPLE
from bench.personas.questions import all_questions
from rollouts.types import Message, Sample
from tests.realstack import Stack
from tests.trainer_base import trainer_base
from tests.training.conftest import job, make_sample, nothing
from training.adapters import attach, detach, wearing
from training.base import Base
from training.config import TrainConfig
from training.drift import Wishes, drift
from training.forward import replies_logprobs, response_logprobs
from training.gate import neutral_prompts
from training.types import RATED, THUMBS, StepMetrics
from training.way_back import LEAST_SHARE, step_back

EACH = 4  # replies that were told what to change, and replies that were liked since
CONFIG = replace(TrainConfig(), max_steps=1, train_seconds=600.0)  # no re-answers before them


def rated(base: Base) -> list[Sample]:
    """Replies of the base: the first were told a wish, the others liked."""
    questions = all_questions()["train"][: 2 * EACH]
    asked = [[Message(role="user", content=question)] for question in questions]
    replies = replies_of(base, [base.render(messages) for messages in asked])
    told = {"reward": -1.0, "hint": PEOPLE["short"].hint}, {"reward": 1.0, "hint": None}
    samples = []
    for number, (messages, reply) in enumerate(zip(asked, replies, strict=True)):
        pair = base.render(messages), reply
        with torch.no_grad():
            logprobs_T = response_logprobs(base, base.model, pair, temperature=TEMPERATURE)
        samples.append(
            make_sample(
                base, number, messages=messages, prompt_ids=pair[0], response_ids=reply,
                rollout_logprobs=logprobs_T.tolist(), temperature=TEMPERATURE,
                **told[number >= EACH],
            )
        )  # fmt: skip
    return samples


def preference(base: Base, model: PeftModel, samples: Sequence[Sample]) -> float:
    """How much likelier than the base `model` says a liked reply, and a disliked one less, nats."""
    pairs = [(sample.prompt_ids, sample.response_ids) for sample in samples]
    now = replies_logprobs(base, model, pairs)
    with wearing(model, None):
        before = replies_logprobs(base, model, pairs)
    gains = [float((a_T - b_T).sum()) for a_T, b_T in zip(now, before, strict=True)]
    return (sum(gains[EACH:]) - sum(gains[:EACH])) / EACH


@pytest.mark.stack
def test_thumbs_after_hints_part_what_was_liked_and_the_way_back_leaves_it(stack: Stack) -> None:
    base = trainer_base(stack)
    samples, neutral = rated(base), neutral_prompts()[:4]
    model, steps, parted = attach(base, CONFIG, None), [], []

    def on_step(step: StepMetrics) -> None:
        steps.append(step)
        if step.phase == RATED:
            parted.append(preference(base, model, samples))

    try:
        job(base, model, samples, CONFIG, on_step=on_step)
        parted.append(preference(base, model, samples))
        far = drift(base, model, neutral, CONFIG, nothing)
        half = replace(CONFIG, gate_drift_margin=far / 2)
        share = step_back(base, model, None, neutral, Wishes(), half, nothing)
        left = drift(base, model, neutral, CONFIG, nothing)
        kept = preference(base, model, samples)
    finally:
        detach(base, model)
    assert [step.phase for step in steps] == [RATED] * 2 + [THUMBS] * 4
    losses = [step.loss for step in steps if step.phase == THUMBS]
    assert losses == sorted(losses, reverse=True)
    *_, by_hints, by_thumbs = parted
    assert by_thumbs > by_hints + 5, parted
    assert LEAST_SHARE < share < 1
    assert 0 < left <= far / 2
    assert kept > 0
