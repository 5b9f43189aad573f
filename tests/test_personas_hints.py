"""Which words move the real base model enough to teach it (docs/LOG.md, What a hint moves)."""

from __future__ import annotations

import json

import pytest

from bench.personas.effects import replies_of
from bench.personas.people import PEOPLE
from bench.personas.questions import HERE
from rollouts.types import Message, Sample
from tests.realstack import Stack
from training.adapters import attach, detach
from training.advantages import Baseline
from training.base import Base, load_base
from training.config import TrainConfig
from training.prepare import prepare
from training.teacher import Teacher

QUESTIONS = 8
CONFIG = TrainConfig()  # by the settings that jobs have


def idle(base: Base, hint: str, prompts: list[str], replies: list[tuple[int, ...]]) -> int:
    """Of disliked replies that were given the hint, how many it moves too little to teach."""
    samples = []
    for number, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        messages = [Message(role="user", content=prompt)]
        samples.append(
            Sample(
                id=number, messages=messages, prompt_ids=base.render(messages), response_ids=reply,
                rollout_logprobs=None, temperature=0.7, template_hash=base.template_hash,
                reward=-1.0, hint=hint, correction=None,
            )
        )  # fmt: skip
    items, _ = prepare(base, samples, CONFIG, baseline=Baseline())
    assert len(items) == len(samples)
    model = attach(base, CONFIG, None)
    try:
        effects = Teacher(base, model, CONFIG).effects(items)
    finally:
        detach(base, model)
    return sum(effect.own is not None and effect.own < CONFIG.hint_effect_min for effect in effects)


@pytest.mark.stack
def test_thanks_are_no_wish_and_a_wish_is_one(stack: Stack) -> None:
    base = load_base(stack.config.model_folder, threads=1)
    prompts = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))["train"][:QUESTIONS]
    asked = [base.render([Message(role="user", content=prompt)]) for prompt in prompts]
    replies = replies_of(base, asked)
    assert idle(base, "Thank you.", prompts, replies) > QUESTIONS / 2
    for person in ("short", "formal", "asks"):
        assert idle(base, PEOPLE[person].hint, prompts, replies) == 0
    # What the base answers otherwise when it is told, it takes for a wish: the one thing of hints
    # that move nothing that does not hold with it. Once this fails, the log has to say better.
    assert idle(base, "My cat is called Tom.", prompts, replies) == 0
