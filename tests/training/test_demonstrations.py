"""Liked replies shown to the teacher: which, where, and what they change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from peft import PeftModel

from rollouts.hints import HINT_MARKER, demonstrated_messages, hinted_messages
from rollouts.types import Demonstration, Message, Sample
from tests.training.conftest import job, make_sample
from tests.training.test_methods import walk_away
from training.advantages import Baseline
from training.base import Base
from training.batching import Item
from training.config import TrainConfig
from training.demonstrations import _mean_logprob, correction_of, with_demonstrations
from training.forward import response_logprobs
from training.prepare import prepare

HINT = "Please answer in one word."


def user(text: str) -> Message:
    return Message(role="user", content=text)


@pytest.fixture
def shows(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(config, demonstrations=2)


def liked(base: Base, number: int, text: str = "a short answer", **changes: Any) -> Sample:
    """A reply that was liked without a word, and ended by itself."""
    ids = (*base.encode(text), base.eos_ids[0])
    fields = {"response_ids": ids, "reward": 1.0, "hint": None, "rollout_logprobs": None}
    return make_sample(base, number, **(fields | changes))


def gap(base: Base, sample: Sample, hint: str) -> float:
    """Mean log p(reply | hint) - log p(reply), from the model's own sequences."""
    hinted = base.render(hinted_messages(sample.messages, hint=hint, correction=None))
    pairs = [(ids, tuple(sample.response_ids)) for ids in (hinted, base.render(sample.messages))]
    under, plain = (float(response_logprobs(base, base.model, pair).mean()) for pair in pairs)
    return under - plain


def test_an_exchange_stands_before_the_question_under_the_same_hint() -> None:
    system = Message(role="system", content="Be kind.")
    hinted = hinted_messages([system, user("And now?")], hint=HINT, correction=None)
    shown = demonstrated_messages(hinted, [Demonstration(question="Why?", answer="So.")], hint=HINT)
    assert shown == [
        system,
        user(f"Why?\n\n{HINT_MARKER}\n{HINT}"),
        Message(role="assistant", content="So."),
        user(f"And now?\n\n{HINT_MARKER}\n{HINT}"),
    ]
    assert demonstrated_messages(hinted, [], hint=HINT) == hinted


def test_those_are_shown_that_the_hint_makes_more_likely(
    base: Base, model: PeftModel, shows: TrainConfig
) -> None:
    texts = ["yes", "a long answer with many words in it", "no no no", "what do you mean?"]
    given = [liked(base, 10 + i, text) for i, text in enumerate(texts)]
    fitting = sorted(given, key=lambda each: -gap(base, each, HINT))
    fitting = [each for each in fitting if gap(base, each, HINT) > 0]
    expected = [each.messages[0]["content"] for each in fitting[:2]]
    (taught,) = with_demonstrations(base, model, [make_sample(base, 1)], given, shows)
    assert [each.question for each in taught.demonstrations] == expected
    assert len(expected) > 0  # or nothing was tested


def fits_by(monkeypatch: pytest.MonkeyPatch, gains: dict[int, float] | None = None) -> None:
    """The hint makes each reply more likely by its gain; without gains all by the same."""

    def mean_logprob(base: Base, model: PeftModel, sample: Sample, hint: str | None) -> float:
        return (gains[sample.id] if gains else 1.0) if hint else 0.0

    monkeypatch.setattr("training.demonstrations._mean_logprob", mean_logprob)


def test_what_is_no_example_is_not_shown(
    base: Base, model: PeftModel, shows: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits_by(monkeypatch)
    one = make_sample(base, 1)
    no_examples = [
        liked(base, 2, reward=-1.0),
        liked(base, 3, reward=None),
        liked(base, 4, hint="More of this."),  # liked, with a wish
        liked(base, 5, response_ids=base.encode("it never ended")),
        liked(base, 6, "word " * 120),
        liked(base, 9, ""),  # it ended at once
        liked(base, 7, messages=[user("Look it up."), Message(role="tool", content="found")]),
    ]
    assert with_demonstrations(base, model, [one], no_examples, shows) == [one]
    off = dataclasses.replace(shows, demonstrations=0)
    assert with_demonstrations(base, model, [one], [liked(base, 8)], off) == [one]
    thumbs = dataclasses.replace(shows, method="binary")
    assert with_demonstrations(base, model, [one], [liked(base, 8)], thumbs) == [one]


def test_an_example_may_be_as_long_as_the_job_says(
    base: Base, model: PeftModel, shows: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits_by(monkeypatch)
    example = liked(base, 2)
    for most, shown in ((0, 1), (-1, 0)):
        most += len(example.response_ids)
        settings = dataclasses.replace(shows, demonstration_tokens=most)
        (taught,) = with_demonstrations(base, model, [make_sample(base, 1)], [example], settings)
        assert len(taught.demonstrations) == shown


def test_the_best_of_the_newest_four_are_shown_and_none_that_the_hint_leaves_as_likely(
    base: Base, model: PeftModel, shows: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(gains: dict[int, float]) -> list[str]:
        fits_by(monkeypatch, gains)
        given = [liked(base, number) for number in gains]
        (taught,) = with_demonstrations(base, model, [make_sample(base, 1)], given, shows)
        return [each.question for each in taught.demonstrations]

    assert shown({2: 9.0, 3: 1.0, 4: 2.0, 5: 4.0, 6: 3.0}) == ["question 5", "question 6"]
    assert shown({2: 0.0, 3: -1.0, 4: 2.0}) == ["question 4"]


def test_what_can_be_no_example_takes_no_examples_place(
    base: Base, model: PeftModel, shows: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits_by(monkeypatch)
    disliked = [make_sample(base, number) for number in range(3, 7)]
    given = [liked(base, 2), *disliked]
    (taught,) = with_demonstrations(base, model, [make_sample(base, 1)], given, shows)
    assert [each.question for each in taught.demonstrations] == ["question 2"]


def test_an_example_is_shown_without_the_spaces_around_it(
    base: Base, model: PeftModel, shows: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits_by(monkeypatch)
    given = [liked(base, 2, " So it is.\n")]
    (taught,) = with_demonstrations(base, model, [make_sample(base, 1)], given, shows)
    assert taught.demonstrations == (Demonstration(question="question 2", answer="So it is."),)


def test_each_hint_has_its_own_examples(
    base: Base, model: PeftModel, shows: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a reply that was liked without a word stood in its prompt."""

    def mean_logprob(base: Base, model: PeftModel, sample: Sample, hint: str | None) -> float:
        return float(sample.id == {"One.": 8, "Two.": 9}[hint]) if hint else 0.0

    monkeypatch.setattr("training.demonstrations._mean_logprob", mean_logprob)
    followed = make_sample(base, 3, hint=None, reward=1.0, prompted_hints=("Two.",))
    given = [make_sample(base, 1, hint="One."), make_sample(base, 2, hint="Two."), followed]
    taught = with_demonstrations(base, model, given, [liked(base, 8), liked(base, 9)], shows)
    asked = [[each.question for each in sample.demonstrations] for sample in taught]
    assert asked == [["question 8"], ["question 9"], ["question 9"]]


def test_an_example_is_weighed_as_the_base_reads_the_last_exchange_alone(
    base: Base, model: PeftModel
) -> None:
    said = [user("Hi."), Message(role="assistant", content="Hello."), user("question 2")]
    example = liked(base, 2, messages=said)
    wanted = {}
    for hint in (None, HINT):
        prompt_ids = base.render(hinted_messages(said[2:], hint=hint, correction=None))
        pair = (prompt_ids, tuple(example.response_ids))
        wanted[hint] = float(response_logprobs(base, base.model, pair).mean())
    walk_away(model, far=1.0)
    for hint, mean in wanted.items():
        assert _mean_logprob(base, model, example, hint) == pytest.approx(mean, rel=1e-5)


def test_a_correction_is_shown_as_the_answer_to_what_was_asked(base: Base) -> None:
    said = [user("Hi."), Message(role="assistant", content="Hello."), user("Tea?")]
    sample = make_sample(base, 1, messages=said, correction=" Yes. ")
    assert correction_of(sample) == Demonstration(question="Tea?", answer="Yes.")
    assert correction_of(make_sample(base, 1)) is None
    looked_up = [*said, Message(role="tool", content="found")]
    assert correction_of(make_sample(base, 1, messages=looked_up, correction="Yes.")) is None


def test_a_correction_is_an_example_for_other_replies_only(
    base: Base, model: PeftModel, shows: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.demonstrations._mean_logprob", lambda *a: len(a[3] or ""))
    corrected = make_sample(base, 1, correction="Tea.")
    other = make_sample(base, 2)
    first, second = with_demonstrations(base, model, [corrected, other], [corrected, other], shows)
    assert first.demonstrations == ()
    assert second.demonstrations == (Demonstration(question="question 1", answer="Tea."),)


def test_the_teacher_sees_them_and_the_student_does_not(
    base: Base, model: PeftModel, shows: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.demonstrations._mean_logprob", lambda *a: len(a[3] or ""))
    (taught,) = with_demonstrations(base, model, [make_sample(base, 1)], [liked(base, 9)], shows)
    (item,) = items(base, taught, shows)
    (without,) = items(base, make_sample(base, 1), shows)
    assert item.prompt_ids == without.prompt_ids
    expected = base.render(
        [
            user(f"question 9\n\n{HINT_MARKER}\n{HINT}"),
            Message(role="assistant", content="a short answer"),
            user(f"question 1\n\n{HINT_MARKER}\n{HINT}"),
        ]
    )
    assert item.teacher_prompt_ids == expected
    # Without room for them the reply trains as it would without them.
    room = len(without.teacher_prompt_ids) + len(without.response_ids) + 8
    small = dataclasses.replace(shows, max_tokens=room)
    (cut,) = items(base, taught, small)
    assert cut.teacher_prompt_ids == without.teacher_prompt_ids


def items(base: Base, sample: Sample, config: TrainConfig) -> list[Item]:
    return prepare(base, [sample], config, baseline=Baseline())[0]


def test_a_job_learns_from_what_older_likes_show(
    base: Base, model: PeftModel, shows: TrainConfig
) -> None:
    given, older = [make_sample(base, 2)], [liked(base, 1, "yes")]
    assert gap(base, older[0], HINT) > 0
    shown, _ = job(base, model, given, shows, replay=older)
    plain, _ = job(base, model, given, dataclasses.replace(shows, demonstrations=0), replay=older)
    assert shown.effects[2] != pytest.approx(plain.effects[2], abs=1e-4)
    assert set(shown.reanswers) == {2}  # the liked reply is looked at, and not answered again


def test_a_reply_that_the_job_drops_is_no_example(
    base: Base, model: PeftModel, shows: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []

    def seen(*given: Any) -> list[Sample]:
        shown.extend(sample.id for sample in given[3])
        return with_demonstrations(*given)

    monkeypatch.setattr("training.trainer.with_demonstrations", seen)
    text = "a short answer"
    logprobs = [-1.0] * (len(base.encode(text)) + 1)
    given = [
        make_sample(base, 1),
        liked(base, 2, text, rollout_logprobs=logprobs),
        liked(base, 3, text, rollout_logprobs=logprobs, version_age=shows.max_version_age + 1),
    ]
    older = liked(base, 4, text, version_age=shows.max_version_age + 1)  # trained when it was new
    result, _ = job(base, model, given, shows, replay=[older])
    assert result.dropped == {3: "stale"}
    assert shown == [4, 1, 2]
