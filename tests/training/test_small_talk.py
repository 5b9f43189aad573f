"""Whether what was said asks for anything: its two likelihoods by hand, and that the limit acts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from peft import PeftModel

from tests.training.conftest import items_of, job, make_sample
from tests.training.test_methods import walk_away
from training.adapters import wearing
from training.base import Base
from training.config import TrainConfig
from training.forward import response_logprobs
from training.small_talk import (
    FEEDBACK,
    SMALL_TALK,
    is_small_talk,
    said_ids,
    sentences,
    wish_nats,
)
from training.teacher import Teacher

ENDED = ("Please answer in one word.", "My cat is called Tom.")
SAID = (*ENDED, "hello", "shorter")


def by_hand(base: Base, model: PeftModel, hint: str) -> float:
    feedback = "Feedback on the answer:\n- " + "\n- ".join(FEEDBACK) + "\n-"
    small_talk = "Small talk:\n- " + "\n- ".join(SMALL_TALK) + "\n-"
    words = base.encode(f" {hint}")
    one, other = (
        float(response_logprobs(base, model, (base.encode(head), words)).sum())
        for head in (feedback, small_talk)
    )
    return one - other


def test_words_are_weighed_after_feedback_and_after_small_talk(
    base: Base, model: PeftModel
) -> None:
    for hint in SAID:
        found = wish_nats(base, model, *said_ids(base, f" {hint}\n"))
        assert found == pytest.approx(by_hand(base, model, hint), abs=1e-4)
        assert abs(found) > 1e-3
    walk_away(model)
    assert wish_nats(base, model, *said_ids(base, SAID[0])) != pytest.approx(
        by_hand(base, model, SAID[0]), abs=1e-3
    )  # it was kept, of the base as it was


def test_what_is_likelier_as_small_talk_by_the_limit_teaches_nothing(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    nats = {hint: wish_nats(base, model, *said_ids(base, hint)) for hint in SAID}
    hint = min(nats, key=lambda said: nats[said])
    assert nats[hint] < 0
    given = [make_sample(base, 1, hint=hint), make_sample(base, 2, hint=hint, correction="No.")]
    walk_away(model)  # the base is asked, whatever the adapter says by now
    for limit, is_none in ((-nats[hint] - 1e-3, True), (-nats[hint] + 1e-3, False), (0.0, False)):
        base.cache.clear()
        settings = replace(config, small_talk_nats=limit, hint_effect_min=1e-9)
        alone, corrected = Teacher(base, model, settings).effects(items_of(base, given, settings))
        assert (alone.own == 0) == is_none
        assert corrected.own is None  # what the user wrote instead teaches, whatever they say
    with wearing(model, None):
        assert wish_nats(base, model, *said_ids(base, hint)) == pytest.approx(nats[hint], abs=1e-4)


def test_one_wish_among_the_sentences_is_enough(base: Base, model: PeftModel) -> None:
    assert sentences("Hi there!  So?\nWell. 短く。はい") == [
        "Hi there!",
        "So?",
        "Well.",
        "短く。",
        "はい",
    ]
    nats = {hint: wish_nats(base, model, *said_ids(base, hint)) for hint in ENDED}
    lowest, highest = sorted(ENDED, key=lambda said: nats[said])
    limit = -(nats[lowest] + nats[highest]) / 2
    for text, is_none in ((lowest, True), (f"{lowest} {highest}", False), (highest, False)):
        assert is_small_talk(base, model, said_ids(base, text), limit) == is_none


def test_a_job_drops_small_talk_with_its_thumb(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    nats = {hint: wish_nats(base, model, *said_ids(base, hint)) for hint in SAID}
    lowest, *_, highest = sorted(SAID, key=lambda said: nats[said])
    limit = -(nats[lowest] + nats[highest]) / 2
    settings = replace(config, small_talk_nats=limit, hint_effect_min=1e-9)
    given = [make_sample(base, 1, hint=lowest), make_sample(base, 2, hint=highest)]
    result, _ = job(base, model, given, settings)
    assert result.dropped == {1: "hint_no_effect"}
    assert result.trained == (2,)
