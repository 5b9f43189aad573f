"""How far beyond the hint the teacher goes, and what holds it to the question."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import PeftModel

from rollouts.hints import NOTE, hinted_messages
from tests.training.conftest import items_of, job, make_sample
from training.adapters import scale, snapshot
from training.base import Base
from training.config import TrainConfig
from training.forward import boosted, held_to_question, kl_between, logits, response_hidden
from training.prepare import said_again
from training.teacher import Teacher, own_share

BRIEF, FORMAL = "Be brief.", "Be formal."


def test_a_hint_is_said_again_if_a_version_has_learned_it(base: Base) -> None:
    now = [make_sample(base, 1, hint=BRIEF), make_sample(base, 2, hint=None, reward=-1.0)]
    learned = [make_sample(base, 3, hint=None, reward=1.0), make_sample(base, 4, hint=BRIEF)]
    assert said_again(now, learned) == {BRIEF}
    of_an_older_version = make_sample(base, 5, hint=BRIEF, version_age=1)
    assert said_again([of_an_older_version], learned) == frozenset()
    assert said_again(now, []) == said_again([], learned) == frozenset()


@pytest.mark.parametrize("where", ["now", "learned"])
def test_of_two_wishes_none_is_said_again(base: Base, where: str) -> None:
    given = {
        "now": [make_sample(base, 1, hint=BRIEF)],
        "learned": [make_sample(base, 2, hint=BRIEF)],
    }
    assert said_again(given["now"], given["learned"]) == {BRIEF}
    given[where].append(make_sample(base, 3, hint=FORMAL))
    assert said_again(given["now"], given["learned"]) == frozenset()


@torch.no_grad()
def test_each_reply_has_its_own_boost(base: Base, model: PeftModel, config: TrainConfig) -> None:
    given = [make_sample(base, 1), make_sample(base, 2, hint=FORMAL)]
    items = [
        replace(item, boost=boost)
        for item, boost in zip(items_of(base, given, config), (0.25, 2.0), strict=True)
    ]
    wanted = [
        boosted(
            response_hidden(base, base.model, [(item.teacher_prompt_ids, item.response_ids)]),
            response_hidden(base, base.model, [(item.prompt_ids, item.response_ids)]),
            boost=item.boost,
        )
        for item in items
    ]
    teacher = Teacher(base, model, config)
    torch.testing.assert_close(teacher.hidden(items), torch.cat(wanted), rtol=1e-4, atol=1e-4)
    teacher.forget()
    effects = teacher.effects(items)
    for item, found, wanted_TH in zip(items, effects, wanted, strict=True):
        plain_TH = response_hidden(base, base.model, [(item.prompt_ids, item.response_ids)])
        torch.testing.assert_close(
            found.kl_T, kl_between(base, plain_TH, wanted_TH), rtol=1e-3, atol=1e-4
        )


def test_the_question_moves_the_teacher_as_it_moved_the_plain_words() -> None:
    taught, plain, unasked = (torch.tensor([row]) for row in ([2.0, 0.0], [1.0, 3.0], [3.0, 1.0]))
    held = held_to_question(taught, plain, unasked, boost=0.5)
    torch.testing.assert_close(held, torch.tensor([[1.0, 1.0]]))  # 2 + (1-3)/2, 0 + (3-1)/2


@torch.no_grad()
def test_a_teacher_is_held_to_the_question_of_hinted_replies_alone(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    config = replace(config, question_boost=0.5, question_tokens=2, hint_boost=0.3)
    given = [make_sample(base, 1), make_sample(base, 2, hint=None, reward=1.0)]
    items = items_of(base, given, config)
    hinted, plain, unasked = (
        logits(base, response_hidden(base, base.model, [(ids, items[0].response_ids)]))
        for ids in (items[0].teacher_prompt_ids, items[0].prompt_ids, items[0].unasked_prompt_ids)
    )
    wanted = hinted + 0.3 * (hinted - plain)
    assert len(wanted) > 2
    wanted[:2] += 0.5 * (plain - unasked)[:2]
    assert not torch.allclose(wanted, hinted + 0.3 * (hinted - plain), atol=1e-3)
    teacher = Teacher(base, model, config)
    found = logits(base, teacher.hidden(items))
    torch.testing.assert_close(found[: len(wanted)], wanted, rtol=1e-4, atol=1e-4)
    liked = response_hidden(base, base.model, [(items[1].prompt_ids, items[1].response_ids)])
    torch.testing.assert_close(found[len(wanted) :], logits(base, liked), rtol=1e-4, atol=1e-4)
    teacher.forget()
    # What a hint does is measured without the question's part; the states that are kept have it.
    free = [replace(items[0], unasked_prompt_ids=())]
    (effect,) = teacher.effects(items[:1])
    kept = logits(base, teacher.hidden(items[:1]))
    torch.testing.assert_close(kept, wanted, rtol=1e-4, atol=1e-4)
    (unheld,) = Teacher(base, model, config).effects(free)
    torch.testing.assert_close(effect.kl_T, unheld.kl_T)


@torch.no_grad()
def test_a_teacher_is_held_to_the_question_without_a_boost_of_the_hint(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    config = replace(config, question_boost=0.5, question_tokens=2, hint_boost=0.0)
    (item,) = items_of(base, [make_sample(base, 1)], config)
    hinted, plain, unasked = (
        logits(base, response_hidden(base, base.model, [(ids, item.response_ids)]))
        for ids in (item.teacher_prompt_ids, item.prompt_ids, item.unasked_prompt_ids)
    )
    wanted = hinted.clone()
    wanted[:2] += 0.5 * (plain - unasked)[:2]
    found = logits(base, Teacher(base, model, config).hidden([item]))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_what_was_forgotten_is_read_anew(base: Base, model: PeftModel, config: TrainConfig) -> None:
    brief, formal = (
        items_of(base, [make_sample(base, 1, hint=hint)], config)[0] for hint in (BRIEF, FORMAL)
    )
    teacher = Teacher(base, model, config)
    first = teacher.hidden([brief])
    teacher.forget()
    again = teacher.hidden([formal])  # the same reply, taught something else by now
    assert not torch.allclose(again, first, atol=1e-2)
    torch.testing.assert_close(again, Teacher(base, model, config).hidden([formal]))


@torch.no_grad()
def test_a_hints_own_share_is_what_no_mere_note_does(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = [make_sample(base, 1), make_sample(base, 2, hint=f"  {NOTE} ")]
    items = items_of(base, given, replace(config, hint_effect_min=0.2))
    wish, mere = Teacher(base, model, config).effects(items)
    ids, messages = items[0].response_ids, given[0].messages
    plain, noted, hinted = (
        response_hidden(base, base.model, [(base.render(said), ids)])
        for said in (
            messages,
            hinted_messages(messages, hint=NOTE, correction=None),
            hinted_messages(messages, hint=given[0].hint, correction=None),
        )
    )
    beyond, moved = (float(kl_between(base, way, hinted).mean()) for way in (noted, plain))
    assert wish.own == pytest.approx(beyond / moved, rel=1e-3)
    assert mere.own == pytest.approx(0.0, abs=1e-6)
    assert float(mere.kl_T.mean()) > 0.01  # although it moves the words as hints do
    assert Teacher(base, model, config).effects(items[:1])[0].own == pytest.approx(wish.own)
    corrected = items_of(base, [make_sample(base, 3, correction="Tea.")], config)
    effects = Teacher(base, model, config).effects([items[0], *corrected])
    assert [each.own for each in effects] == [pytest.approx(wish.own, rel=1e-3), None]
    uncompared = items_of(base, given, replace(config, hint_effect_min=0.0))
    assert [each.own for each in Teacher(base, model, config).effects(uncompared)] == [None, None]


def test_what_moves_nothing_has_no_share() -> None:
    nothing, something = torch.zeros(3), torch.tensor([0.2, 0.4, 0.0])
    assert own_share(nothing, nothing) == own_share(something, nothing) == 0.0
    assert own_share(torch.tensor([0.1, 0.0, 0.05]), something) == pytest.approx(0.25)


@pytest.mark.parametrize(("earlier", "boost"), [(FORMAL, 0.3), (BRIEF, 0.9)])
def test_what_is_said_again_pushes_further(
    base: Base, model: PeftModel, config: TrainConfig, earlier: str, boost: float
) -> None:
    given = [make_sample(base, n, hint=BRIEF) for n in range(1, 4)]
    older = make_sample(base, 9, hint=earlier, version_age=1)
    items = [replace(item, boost=boost) for item in items_of(base, given, config)]
    effects = Teacher(base, model, config).effects(items)
    _, steps = job(base, model, given, config, replay=[older])
    assert steps[0].kl == pytest.approx(
        float(torch.cat([each.kl_T for each in effects]).mean()), rel=1e-3
    )


def test_beside_what_asks_for_nothing_what_is_said_again_pushes_as_far(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = replace(config, hint_effect_min=0.01)
    before = snapshot(model)
    told = [make_sample(base, n, hint=BRIEF) for n in range(1, 4)]
    older = make_sample(base, 9, hint=BRIEF, version_age=1)
    _, alone = job(base, model, told, settings, replay=[older])
    scale(model, before, share=1.0)
    idle = make_sample(base, 4, hint=NOTE)
    result, beside = job(base, model, [*told, idle], settings, replay=[older])
    assert result.dropped == {4: "hint_no_effect"}
    assert beside[0].kl == pytest.approx(alone[0].kl, rel=1e-4)
