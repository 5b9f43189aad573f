"""Which words move the real base model enough to teach it (docs/LOG.md, What a hint moves)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.personas.effects import replies_of
from bench.personas.people import PEOPLE
from bench.personas.questions import HERE, all_questions
from rollouts.types import Message
from tests.realstack import Stack
from tests.trainer_base import trainer_base
from tests.training.conftest import make_sample
from training.adapters import attach, detach
from training.advantages import Baseline
from training.base import Base
from training.config import TrainConfig
from training.prepare import prepare
from training.small_talk import is_small_talk, said_ids
from training.teacher import Teacher

QUESTIONS = 8
CONFIG = TrainConfig()  # by the settings that jobs have


@pytest.fixture(scope="module")
def base(stack: Stack) -> Base:
    return trainer_base(stack)


def idle(
    base: Base,
    hint: str,
    asked: list[list[Message]],
    replies: list[tuple[int, ...]],
    config: TrainConfig = CONFIG,
) -> int:
    """Of disliked replies that were given the hint, how many it moves too little to teach."""
    samples = [
        make_sample(
            base, number, messages=messages, prompt_ids=base.render(messages), response_ids=reply,
            rollout_logprobs=None, hint=hint,
        )
        for number, (messages, reply) in enumerate(zip(asked, replies, strict=True))
    ]  # fmt: skip
    items, _ = prepare(base, samples, config, baseline=Baseline())
    assert len(items) == len(samples)
    model = attach(base, config, None)
    try:
        effects = Teacher(base, model, config).effects(items)
    finally:
        detach(base, model)
    return sum(effect.own is not None and effect.own < config.hint_effect_min for effect in effects)


@pytest.mark.stack
def test_thanks_are_no_wish_and_a_wish_is_one(base: Base) -> None:
    questions = all_questions()["train"][:QUESTIONS]
    asked = [[Message(role="user", content=question)] for question in questions]
    replies = replies_of(base, [base.render(messages) for messages in asked])
    assert idle(base, "Thank you.", asked, replies) > QUESTIONS / 2
    for person in ("short", "formal", "asks"):
        assert idle(base, PEOPLE[person].hint, asked, replies) == 0
    # The base answers otherwise when it is told these, too; but they are small talk.
    for remark in ("My horse is called Star.", "Vienna is nice in spring."):
        assert idle(base, remark, asked, replies) == QUESTIONS
        assert idle(base, remark, asked, replies, replace(CONFIG, small_talk_nats=0.0)) == 0
    assert idle(base, "My horse is called Star. Use metric units.", asked, replies) == 0


@pytest.mark.stack
def test_a_fact_is_a_hint_after_the_reply_that_it_speaks_of(base: Base) -> None:
    reply = base.answer_ids("I am not sure about that.")
    deaf = replace(CONFIG, of_talk_nats=100.0)
    for question, fact in (
        ("Write a short text for a wedding invitation.", "The wedding is on 12 June."),
        ("Suggest a name for my bakery.", "The bakery is by the sea."),
    ):
        own, other = (
            [[Message(role="user", content=each)]] for each in (question, "Why is the sky blue?")
        )
        assert idle(base, fact, own, [reply]) == 0
        assert idle(base, fact, own, [reply], deaf) == 1  # by its words it is small talk
        assert idle(base, fact, other, [reply]) == 1


@pytest.mark.stack
def test_most_of_what_the_probe_never_saw_is_told_apart(base: Base) -> None:
    """docs/LOG.md, Small talk, has 3 of 150 wishes lost and 113 of 150 remarks found."""
    unseen = json.loads((HERE / "small_talk.json").read_text(encoding="utf-8"))
    lost, found = (
        sum(
            is_small_talk(base, base.model, said_ids(base, text), CONFIG.small_talk_nats)
            for text in texts
        )
        for texts in (unseen["a fourth's wishes"], unseen["a fourth's small talk"])
    )
    assert lost <= 7, lost
    assert found >= 103, found
