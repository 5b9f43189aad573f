"""What is compared, to see whether the teacher hears a hint: which replies, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from peft import PeftModel

from rollouts.hints import hinted_messages
from rollouts.types import Message, Sample
from tests.training.conftest import make_sample
from tests.training.test_heard import RECIPES, beyond_note, moved_most
from training.base import Base
from training.config import TrainConfig
from training.heard import t_statistic, without_unheard


def test_of_fewer_than_three_nothing_is_seen(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = replace(config, hint_heard_min=1e-9)
    given, meant, _ = moved_most(base)
    assert without_unheard(base, model, given, settings)[1] == frozenset()
    for part in (meant, {sample.id for sample in given} - meant):
        fewer = [sample for sample in given if sample.id != max(part)]
        assert without_unheard(base, model, fewer, settings)[1] == meant - {max(part)}
    # Nor of a reply that cannot be read, as another template made its prompt.
    other = [replace(s, template_hash="x") if s.id == max(meant) else s for s in given]
    assert without_unheard(base, model, other, settings)[1] == meant


def test_the_newest_that_can_be_read_are_compared(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given, meant, t = moved_most(base)
    liked = [sample for sample in given if sample.id not in meant]
    settings = replace(config, hint_heard_min=t * 0.999)
    # Eight of each side are read, and eight newer ones that cannot be keep out none.
    unreadable = [replace(s, id=s.id + 10 * k, template_hash="x") for k in (1, 2, 3) for s in given]
    assert without_unheard(base, model, [*given, *unreadable], settings)[1] == frozenset()
    newer = [replace(liked[-1], id=100 + k, messages=[*liked[-1].messages]) for k in range(8)]
    effects = {s.id: beyond_note(base, s, RECIPES) for s in given}
    t = t_statistic([effects[n] for n in meant], [effects[liked[-1].id]] * 8)
    settings = replace(config, hint_heard_min=t * 0.999)
    assert without_unheard(base, model, [*given, *newer], settings)[1] == frozenset()
    settings = replace(config, hint_heard_min=t * 1.001)
    assert without_unheard(base, model, [*given, *newer], settings)[1] == meant


def heard_between(
    base: Base, model: PeftModel, given: Sequence[Sample], t: float, config: TrainConfig
) -> None:
    """Student's t is what it is said to be: a little below it they are heard, above it not."""
    assert t > 0
    for least, is_heard in ((t * 0.999, True), (t * 1.001, False)):
        settings = replace(config, hint_heard_min=least)
        assert (without_unheard(base, model, given, settings)[0] == given) is is_heard


def test_of_many_that_were_meant_the_newest_eight_are_compared(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = [make_sample(base, number, hint=RECIPES) for number in range(1, 13)]
    effects = {each.id: beyond_note(base, each, RECIPES) for each in given}
    *less, oldest = sorted(given, key=lambda each: effects[each.id])[:4]
    rest = [each for each in given if each not in (*less, oldest)]
    liked = [replace(each, hint=None, reward=1.0) for each in less]
    t = t_statistic([effects[each.id] for each in rest], [effects[each.id] for each in less])
    heard_between(base, model, [*liked, oldest, *rest], t, config)


def test_likes_are_asked_under_the_hints_in_turn_the_newest_first(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    said = [RECIPES, "Only for numbers.", "No lists unless I ask for a letter."]
    given = [make_sample(base, number, hint=said[number % 3]) for number in range(1, 9)]
    by_effect = sorted(given, key=lambda each: beyond_note(base, each, RECIPES))
    likes = [replace(each, hint=None, reward=1.0) for each in by_effect[:4]]
    meant = by_effect[4:]
    there = [beyond_note(base, each, each.hint or "") for each in meant]
    turns = [each.hint or "" for each in (*reversed(meant), meant[-1])]
    pairs = zip(reversed(likes), turns, strict=False)
    elsewhere = [beyond_note(base, each, hint) for each, hint in pairs]
    heard_between(base, model, [*likes, *meant], t_statistic(there, elsewhere), config)


def test_they_are_compared_on_as_many_tokens_as_train(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given, meant, whole = moved_most(base)
    effects = {each.id: beyond_note(base, each, RECIPES, tokens=6) for each in given}
    sides = [
        [effects[n] for n in effects if (n in meant) is is_meant] for is_meant in (True, False)
    ]
    t = t_statistic(*sides)
    assert abs(t - whole) > 0.1
    heard_between(base, model, given, t, replace(config, rated_tokens=6))


def test_a_reply_without_room_for_the_hint_is_not_compared(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given, meant, _ = moved_most(base)
    hinted = hinted_messages(given[0].messages, hint=RECIPES, correction=None)
    room = len(base.render(hinted)) + 6
    for most, unheard in ((room, frozenset()), (room - 1, meant)):
        settings = replace(config, hint_heard_min=1e-9, rated_tokens=6, max_tokens=most)
        assert without_unheard(base, model, given, settings)[1] == unheard


def test_a_reply_to_nothing_that_a_user_said_is_not_compared(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given, meant, _ = moved_most(base)
    system = [Message(role="system", content="Be kind.")]
    given = [replace(each, messages=system) if each.id == max(meant) else each for each in given]
    settings = replace(config, hint_heard_min=1e-9)
    assert without_unheard(base, model, given, settings)[1] == meant
