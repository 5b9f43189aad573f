"""Of a conversation that is longer than training takes, the newest part trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rollouts.hints import hinted_messages, prompted_messages
from rollouts.types import Message, Sample
from tests.training.conftest import job, make_sample, nothing
from tests.training.test_gate import shake
from training.adapters import attach, detach
from training.advantages import Baseline
from training.base import Base
from training.config import TrainConfig
from training.drift import Wishes
from training.gate import measure
from training.prepare import prepare, shortened

SYSTEM = Message(role="system", content="Be kind.")
TALK = [
    Message(role="user", content="How do I make tea?"),
    Message(role="assistant", content="You pour hot water over the leaves. " * 3),
    Message(role="user", content="And coffee?"),
    Message(role="assistant", content="The same, over ground beans. " * 3),
    Message(role="user", content="And cocoa?"),
]
SAID = "Be brief."
ALL: dict[str, Any] = {"earlier_exchanges": 2}  # TALK's
FEW: dict[str, Any] = {"rated_tokens": 8, "reanswer_tokens": 8}


def rated(base: Base, messages: list[Message], **changes: Any) -> Sample:
    followed = changes.get("prompted_hints", ())
    prompt_ids = base.render(prompted_messages(messages, followed))
    return make_sample(base, 1, messages=messages, prompt_ids=prompt_ids, **changes)


def told_ids(base: Base, messages: list[Message], hint: str) -> int:
    return len(base.render(hinted_messages(messages, hint=hint, correction=None)))


def outcome(base: Base, sample: Sample, config: TrainConfig) -> tuple[int, dict[int, str]]:
    items, dropped = prepare(base, [sample], config, baseline=Baseline())
    return len(items), dropped


def test_the_oldest_exchanges_go_and_what_was_sampled_stays(base: Base) -> None:
    sample = rated(base, [SYSTEM, *TALK], hint=SAID)
    reply = len(sample.response_ids)
    newer = [SYSTEM, *TALK[2:]]
    config = TrainConfig(max_tokens=told_ids(base, newer, SAID) + reply, reanswer_tokens=1)
    assert outcome(base, sample, config) == (0, {1: "too_long"})
    short = shortened(base, sample, config)
    assert short == replace(sample, messages=newer, prompt_ids=base.render(newer))
    assert outcome(base, short, config) == (1, {})

    tight = replace(config, max_tokens=config.max_tokens - 1)  # one less, and an exchange more goes
    assert list(shortened(base, sample, tight).messages) == [SYSTEM, TALK[-1]]


@pytest.mark.parametrize(("earlier", "begins"), [(0, 4), (1, 2), (2, 0), (9, 0)])
def test_of_a_chat_so_many_earlier_exchanges_train(base: Base, earlier: int, begins: int) -> None:
    sample = rated(base, [SYSTEM, *TALK], hint=SAID)
    short = shortened(base, sample, TrainConfig(earlier_exchanges=earlier))
    left = [SYSTEM, *TALK[begins:]]
    assert short == replace(sample, messages=left, prompt_ids=base.render(left))
    assert (short is sample) is (begins == 0)
    other = replace(sample, prompt_ids=(1, 2, 3))  # what it was sampled from is not known
    assert shortened(base, other, TrainConfig(earlier_exchanges=earlier)) is other


def test_another_reply_has_room_too(base: Base) -> None:
    sample = rated(base, TALK, hint=SAID)
    again = len(sample.response_ids) + 9
    room = told_ids(base, TALK, SAID) + again
    config = TrainConfig(max_tokens=room, reanswer_tokens=again, **ALL)
    assert shortened(base, sample, config) is sample
    short = shortened(base, sample, replace(config, max_tokens=room - 1))
    assert list(short.messages) == TALK[2:]


def test_a_prompt_that_fits_is_cut_where_its_hint_does_not(base: Base) -> None:
    sample = rated(base, TALK, hint="Be brief, and " * 9 + "kind.")
    room = len(sample.prompt_ids) + len(sample.response_ids) + 20
    config = TrainConfig(max_tokens=room, reanswer_tokens=1)
    assert outcome(base, sample, config) == (0, {1: "too_long"})
    short = shortened(base, sample, config)
    assert list(short.messages) == TALK[2:]
    assert outcome(base, short, config) == (1, {})


@pytest.mark.parametrize("method", ["combine", "opd", "binary", "kto"])
def test_every_method_trains_on_what_is_left(base: Base, method: str) -> None:
    sample = rated(base, TALK, hint=None, reward=1.0)
    config = TrainConfig(method=method, max_tokens=len(sample.prompt_ids))
    short = shortened(base, sample, config)
    assert short.rollout_logprobs == sample.rollout_logprobs  # it was sampled with these
    assert outcome(base, short, config) == (1, {})


def test_hints_that_stood_in_the_prompt_stand_there_still(base: Base) -> None:
    sample = rated(base, TALK, hint=None, reward=1.0, prompted_hints=[SAID])
    short = shortened(base, sample, TrainConfig(max_tokens=len(sample.prompt_ids)))
    assert list(short.messages) == TALK[2:]
    assert short.prompt_ids == base.render(prompted_messages(TALK[2:], [SAID]))


def test_what_is_left_begins_with_the_user(base: Base) -> None:
    called = [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    looked = [
        Message(role="assistant", content="", tool_calls=called),
        Message(role="tool", content="rain " * 9, tool_call_id="a"),
    ]
    talk = [*TALK[:3], *looked]
    sample = rated(base, talk, hint=SAID)
    short = shortened(base, sample, TrainConfig(max_tokens=len(sample.prompt_ids)))
    assert list(short.messages) == talk[2:]
    alone = rated(base, talk[2:], hint=SAID)  # the user's one message, and what followed
    assert shortened(base, alone, TrainConfig(max_tokens=len(alone.prompt_ids))) is alone


def test_nothing_goes_where_it_would_not_help(base: Base) -> None:
    sample = rated(base, TALK, hint=SAID)
    for config in (TrainConfig(max_tokens=64), TrainConfig(**ALL)):  # the newest is longer; none is
        assert shortened(base, sample, config) is sample
    one = rated(base, TALK[-1:], hint=SAID)
    assert shortened(base, one, TrainConfig(max_tokens=64)) is one
    other = replace(sample, prompt_ids=(1, 2, 3))  # what it was sampled from is not known
    assert shortened(base, other, TrainConfig(max_tokens=200)) is other


def test_what_the_template_takes_as_a_whole_alone_stays_whole(
    refusing: Callable[[str], Base],
) -> None:
    base = refusing("'And co' in messages[0]['content']")
    sample = rated(base, TALK, hint=SAID)
    assert shortened(base, sample, TrainConfig(max_tokens=len(sample.prompt_ids))) is sample


@pytest.fixture
def long_and_short(base: Base) -> tuple[list[Sample], list[Sample], TrainConfig]:
    """Two liked and two disliked replies of long conversations, and what of these should train."""
    talks = [[Message(role="user", content=f"Hello, {n} times"), *TALK[1:]] for n in range(4)]
    long = [
        replace(
            rated(base, talk, hint=None, reward=1.0 - n % 2 * 2),
            id=n,
            response_ids=base.encode(f"answer {n}, at some length"),
        )
        for n, talk in enumerate(talks)
    ]
    config = TrainConfig(rank=8, max_tokens=len(long[0].prompt_ids), gate_tokens=8, **FEW)
    short = [
        replace(sample, messages=TALK[2:], prompt_ids=base.render(TALK[2:])) for sample in long
    ]
    return long, short, config


def test_a_job_trains_on_the_newest_part_and_is_reminded_of_no_more(
    base: Base, long_and_short: tuple[list[Sample], list[Sample], TrainConfig]
) -> None:
    long, short, config = long_and_short
    losses = []
    for given in (long, short):
        model = attach(base, config, None)
        try:
            result, steps = job(base, model, given[2:], config, replay=given[:2])
        finally:
            detach(base, model)
        assert (result.trained, result.dropped) == ((2, 3), {})
        losses.append([step.loss for step in steps])
    assert losses[0] == losses[1]


def test_the_gate_compares_versions_on_the_newest_part(
    base: Base, long_and_short: tuple[list[Sample], list[Sample], TrainConfig]
) -> None:
    long, short, config = long_and_short
    model = attach(base, config, None)
    try:
        shake(model, 0.2)
        ways = (base, model, None), (("hello",), Wishes(), config, nothing)
        found = [measure(*ways[0], held_back, *ways[1])[0] for held_back in (long, short)]
    finally:
        detach(base, model)
    assert found[0].measure == "preference"
    assert found[0].value == found[1].value != 0
