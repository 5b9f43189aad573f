"""Which samples train, and why the others do not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rollouts.hints import prompted_messages, unasked_messages
from rollouts.types import Demonstration, Message, Sample
from tests.training.conftest import make_sample
from training.advantages import Baseline
from training.base import Base, load_base
from training.batching import Item
from training.config import HINT_TOKENS, TrainConfig
from training.prepare import prepare
from training.tiny import TEMPLATE

THUMB_ONLY = {"hint": None}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reward": None, "hint": None}, "no_signal"),
        ({"response_ids": (), "rollout_logprobs": ()}, "no_signal"),
        ({"version_age": 4}, "stale"),
        ({"template_hash": "another"}, "template_changed"),
        ({"prompt_ids": (1, 2, 3)}, "template_changed"),
        ({"messages": [Message(role="user", content="another")]}, "template_changed"),
        ({"response_ids": (5,) * 600}, "too_long"),
        (THUMB_ONLY | {"rollout_logprobs": None}, "no_logprobs"),
        (THUMB_ONLY | {"rollout_logprobs": [-1.0]}, "no_logprobs"),
        (THUMB_ONLY | {"rollout_logprobs": None, "temperature": 0.0}, "greedy"),
    ],
)
def test_a_sample_that_cannot_train_says_why(
    base: Base, changes: dict[str, Any], reason: str
) -> None:
    config = TrainConfig(max_tokens=512)
    items, dropped = prepare(base, [make_sample(base, 3, **changes)], config, baseline=Baseline())
    assert (items, dropped) == ([], {3: reason})


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf])
def test_where_one_log_prob_is_unknown_the_hint_alone_teaches(base: Base, unknown: Any) -> None:
    length = len(make_sample(base, 3).response_ids)
    changes = {"rollout_logprobs": [-1.0] * (length - 1) + [unknown]}
    item = only_item(base, make_sample(base, 3, **changes))
    assert (item.is_hinted, item.advantage, item.rollout_logprobs) == (True, None, None)
    thumb = make_sample(base, 3, **THUMB_ONLY, **changes)
    _, dropped = prepare(base, [thumb], TrainConfig(), baseline=Baseline())
    assert dropped == {3: "no_logprobs"}


def test_a_hint_that_leaves_no_room_is_told_from_its_beginning(base: Base) -> None:
    wish = "Answer in one word. "
    endless = make_sample(base, 1, hint=wish + "long " * 200, correction="No.")
    short = dataclasses.replace(endless, hint=base.beginning(endless.hint or "", HINT_TOKENS))
    begun = only_item(base, short, max_tokens=512)
    assert wish in base.tokenizer.decode(begun.teacher_prompt_ids)
    assert only_item(base, endless, max_tokens=512) == dataclasses.replace(
        begun, said_ids=only_item(base, endless).said_ids
    )
    _, dropped = prepare(base, [endless], TrainConfig(max_tokens=200), baseline=Baseline())
    assert dropped == {1: "too_long"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"version_age": 3},
        {"reward": None},
        {"hint": None, "correction": "No."},
        {"rollout_logprobs": None, "temperature": 0.0},  # distillation needs no log-probs
        THUMB_ONLY,
    ],
)
def test_a_sample_that_can_train_does(base: Base, changes: dict[str, Any]) -> None:
    config = TrainConfig()
    items, dropped = prepare(base, [make_sample(base, 3, **changes)], config, baseline=Baseline())
    assert [item.sample_id for item in items] == [3]
    assert dropped == {}


def test_a_reply_that_just_fits_trains(base: Base) -> None:
    sample = make_sample(base, 1, **THUMB_ONLY)
    whole = len(sample.prompt_ids) + len(sample.response_ids)
    assert only_item(base, sample, max_tokens=whole).response_ids == tuple(sample.response_ids)
    _, dropped = prepare(base, [sample], TrainConfig(max_tokens=whole - 1), baseline=Baseline())
    assert dropped == {1: "too_long"}


def test_a_teachers_prompt_leaves_room_for_what_trains_of_the_reply_and_for_another(
    base: Base,
) -> None:
    shown = Demonstration(question="Why?", answer="So it is, said the fox to the crow.")
    sample = make_sample(base, 1, demonstrations=(shown,))
    reply = len(sample.response_ids)
    prompt = only_item(base, sample).teacher_prompt_ids
    for rated, again, room in ((64, 1, reply), (64, reply + 9, reply + 9), (5, 1, 5)):
        settings = {"rated_tokens": rated, "reanswer_tokens": again}
        fits = only_item(base, sample, max_tokens=len(prompt) + room, **settings)
        assert fits.teacher_prompt_ids == prompt
        tight = only_item(base, sample, max_tokens=len(prompt) + room - 1, **settings)
        assert tight.teacher_prompt_ids == only_item(base, make_sample(base, 1)).teacher_prompt_ids


def test_a_hinted_sample_has_a_teacher_and_its_thumb_counts_beside_it(base: Base) -> None:
    sample = make_sample(base, 1)
    (item,), _ = prepare(base, [sample], TrainConfig(), baseline=Baseline())
    assert item.advantage == -0.5
    (alone,), _ = prepare(base, [sample], TrainConfig(method="opd"), baseline=Baseline())
    assert alone.advantage is None
    assert item.prompt_ids == sample.prompt_ids
    hinted = base.tokenizer.decode(item.teacher_prompt_ids)
    assert (
        "question 1\n\n[user's hint / instruction]\nPlease answer in one word.<|im_end|>" in hinted
    )


def test_what_is_held_to_its_question_has_the_prompt_without_it(base: Base) -> None:
    given = [make_sample(base, 1), make_sample(base, 2, hint=None, reward=1.0)]
    held, liked = prepare(base, given, TrainConfig(question_boost=0.5), baseline=Baseline())[0]
    words = base.tokenizer.decode(held.unasked_prompt_ids)
    assert words == base.tokenizer.decode(held.prompt_ids).replace("question 1", "")
    assert liked.unasked_prompt_ids == ()
    free = prepare(base, given, TrainConfig(question_boost=0.0), baseline=Baseline())[0]
    assert free[0].unasked_prompt_ids == ()


def test_a_bare_thumb_has_an_advantage_and_the_base_as_its_anchor(base: Base) -> None:
    sample = make_sample(base, 1, hint=None, reward=1.0)
    (item,), _ = prepare(base, [sample], TrainConfig(), baseline=Baseline(mean=0.5))
    assert item.advantage == pytest.approx(0.5)  # (1 - 0.5) / 1
    assert item.teacher_prompt_ids == item.prompt_ids
    assert item.rollout_logprobs == tuple(sample.rollout_logprobs or ())


def test_response_ids_are_taken_verbatim_up_to_the_cap(base: Base) -> None:
    said = [*base.encode("é")[:1], *base.encode("a reply")]  # half a character: words cannot say it
    assert base.encode(base.tokenizer.decode(said)) != said
    sample = make_sample(base, 1, hint=None, response_ids=said, rollout_logprobs=[-1.0] * len(said))
    (item,), _ = prepare(base, [sample], TrainConfig(rated_tokens=5), baseline=Baseline())
    assert item.response_ids == tuple(said[:5])
    assert item.rollout_logprobs is not None
    assert len(item.rollout_logprobs) == 5


@pytest.mark.parametrize("method", ["kto", "apo_zero_unpaired", "binary"])
def test_a_hint_without_a_vote_is_no_thumb(base: Base, method: str) -> None:
    given = [make_sample(base, 1, reward=None), make_sample(base, 2)]
    items, dropped = prepare(base, given, TrainConfig(method=method), baseline=Baseline())
    assert ([item.sample_id for item in items], dropped) == ([2], {1: "no_signal"})


def test_a_hint_without_a_user_message_to_hang_on_drops_its_sample_alone(base: Base) -> None:
    said = [Message(role="system", content="Say something.")]
    odd = make_sample(base, 1, messages=said, prompt_ids=base.render(said))
    items, dropped = prepare(base, [odd, make_sample(base, 2)], TrainConfig(), baseline=Baseline())
    assert ([item.sample_id for item in items], dropped) == ([2], {1: "hint_no_effect"})


def test_a_hint_that_the_template_refuses_drops_its_sample_alone(
    refusing: Callable[[str], Base],
) -> None:
    base = refusing("'No lists.' in messages[-1]['content']")
    given = [make_sample(base, 1, hint="No lists."), make_sample(base, 2)]
    items, dropped = prepare(base, given, TrainConfig(), baseline=Baseline())
    assert ([item.sample_id for item in items], dropped) == ([2], {1: "hint_no_effect"})


def test_hints_that_cannot_have_stood_in_the_prompt_drop_their_sample_alone(base: Base) -> None:
    said = [Message(role="system", content="Say something.")]
    odd = make_sample(base, 1, messages=said, prompt_ids=base.render(said), prompted_hints=NOTES)
    items, dropped = prepare(base, [odd, make_sample(base, 2)], TrainConfig(), baseline=Baseline())
    assert ([item.sample_id for item in items], dropped) == ([2], {1: "template_changed"})


def test_what_another_template_took_and_this_one_refuses_is_dropped_alone(
    refusing: Callable[[str], Base],
) -> None:
    base = refusing("messages[0]['role'] == 'system'")
    asked = [Message(role="system", content="Be kind."), Message(role="user", content="Hello")]
    of_the_old = make_sample(base, 1, messages=asked, template_hash="another")
    of_this = make_sample(base, 2, messages=asked)
    samples = [of_the_old, of_this, make_sample(base, 3)]
    items, dropped = prepare(base, samples, TrainConfig(), baseline=Baseline())
    assert [item.sample_id for item in items] == [3]
    assert dropped == {1: "template_changed", 2: "template_changed"}


def dated(tiny_folder: Path, tmp_path: Path, template: str) -> Base:
    """The tiny model, whose template begins with the date."""
    file = tmp_path / "dated.jinja"
    file.write_text("Today is {{ strftime_now('%d %b %Y') }}.\n" + template)
    return load_base(tiny_folder, device="cpu", chat_template=file)


def test_a_template_that_prints_the_date_prints_that_of_the_reply(
    tiny_folder: Path, tmp_path: Path
) -> None:
    base = dated(tiny_folder, tmp_path, TEMPLATE)
    at = datetime(2020, 2, 1, 12, tzinfo=UTC)
    then = make_sample(base, 1, at=at)
    then = dataclasses.replace(then, prompt_ids=base.render(then.messages, at=at))
    item = only_item(base, then)
    assert base.tokenizer.decode(item.prompt_ids).startswith("Today is 01 Feb 2020.")
    assert base.tokenizer.decode(item.teacher_prompt_ids).startswith("Today is 01 Feb 2020.")


# Replies that were sampled with hints in their prompt


NOTES = ("Be short.", "No lists.")


def prompted_sample(base: Base, **changes: Any) -> Sample:
    """A reply to the hinted prompt, as a generator leaves it; without a hint of its own."""
    plain = make_sample(base, 1)
    prompt_ids = base.render(prompted_messages(plain.messages, NOTES))
    return make_sample(
        base, 1, prompt_ids=prompt_ids, prompted_hints=NOTES, **(THUMB_ONLY | changes)
    )


def only_item(base: Base, sample: Sample, **settings: Any) -> Item:
    items, dropped = prepare(base, [sample], TrainConfig(**settings), baseline=Baseline())
    assert dropped == {}
    return items[0]


@pytest.mark.parametrize("changes", [{"prompted_hints": ()}, {"prompted_hints": NOTES[:1]}])
def test_the_template_check_knows_the_hints_in_the_prompt(
    base: Base, changes: dict[str, Any]
) -> None:
    sample = dataclasses.replace(prompted_sample(base), **changes)
    _, dropped = prepare(base, [sample], TrainConfig(), baseline=Baseline())
    assert dropped == {1: "template_changed"}


@pytest.mark.parametrize(
    "changes", [{"reward": 1.0}, {"reward": -1.0}, {"hint": "Say hello."}, {"correction": "No."}]
)
def test_a_prompted_reply_trains_on_the_plain_prompt(base: Base, changes: dict[str, Any]) -> None:
    item = only_item(base, prompted_sample(base, **changes))
    assert item.prompt_ids == make_sample(base, 1).prompt_ids


def test_a_liked_prompted_reply_is_taught_by_the_hints_it_followed(base: Base) -> None:
    sample = prompted_sample(base, reward=1.0)
    item = only_item(base, sample)
    assert (item.is_hinted, item.advantage) == (True, pytest.approx(1.0))
    assert item.teacher_prompt_ids == sample.prompt_ids


def test_a_disliked_prompted_reply_trains_by_reward_against_what_it_was_sampled_from(
    base: Base,
) -> None:
    sample = prompted_sample(base, reward=-1.0)
    item = only_item(base, sample)
    assert (item.is_hinted, item.advantage) == (False, pytest.approx(-0.5))
    assert item.teacher_prompt_ids == item.prompt_ids != sample.prompt_ids
    assert item.rollout_logprobs == tuple(sample.rollout_logprobs or ())


@pytest.mark.parametrize("changes", [{"hint": "Say hello."}, {"correction": "Hello."}])
@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_what_was_said_about_a_prompted_reply_teaches_it_alone(
    base: Base, changes: dict[str, Any], reward: float
) -> None:
    item = only_item(base, prompted_sample(base, reward=reward, **changes))
    hinted = base.tokenizer.decode(item.teacher_prompt_ids)
    assert "ello." in hinted
    assert "Be short." not in hinted


def test_by_reward_alone_a_liked_prompted_reply_is_one_more_thumb(base: Base) -> None:
    item = only_item(base, prompted_sample(base, reward=1.0), method="binary")
    assert (item.is_hinted, item.advantage) == (False, 1.0)
    assert item.teacher_prompt_ids == item.prompt_ids == make_sample(base, 1).prompt_ids


# Replies to prompts with tools


TOOLS = [{"type": "function", "function": {"name": "f", "description": None, "parameters": {}}}]
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.tool_call_id }}"
    "{% for call in m.tool_calls or [] %}{{ call | tojson }}{{ call.function.arguments.a }}"
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.fixture
def tool_base(tiny_folder: Path, tmp_path: Path) -> Base:
    """The base under a template of the installation's own that shows tools."""
    file = tmp_path / "tools.jinja"
    file.write_text(TOOL_TEMPLATE)
    return load_base(tiny_folder, device="cpu", chat_template=file)


def tool_sample(base: Base, **changes: Any) -> Sample:
    messages = [
        Message(role="user", content="q"),
        Message(role="assistant", content="", tool_calls=[CALL]),
        Message(role="tool", content="r", tool_call_id="a"),
    ]
    fields = {"messages": messages, "tools": TOOLS, "prompt_ids": base.render(messages, TOOLS)}
    return make_sample(base, 1, **(fields | changes))


def test_tools_and_their_calls_are_rendered_as_the_server_does(tool_base: Base) -> None:
    sample = tool_sample(tool_base)
    text = tool_base.tokenizer.decode(sample.prompt_ids)
    call = (
        '{"id": "a", "function": {"arguments": {"b": 1, "a": 2}, "name": "f"}, "type": "function"}'
    )
    assert call + "2<|im_end|>" in text
    assert '"description": null' in text
    item = only_item(tool_base, sample)
    hinted = tool_base.tokenizer.decode(item.teacher_prompt_ids)
    assert call in hinted
    assert hinted.startswith('{"type"')
    assert "q\n\n[user's hint / instruction]\nPlease answer in one word." in hinted


def test_without_its_hints_or_its_question_a_prompt_keeps_its_tools_and_its_date(
    tiny_folder: Path, tmp_path: Path
) -> None:
    base = dated(tiny_folder, tmp_path, TOOL_TEMPLATE)
    at, asked = datetime(2020, 2, 1, 12, tzinfo=UTC), [Message(role="user", content="q")]
    prompt_ids = base.render(prompted_messages(asked, NOTES), TOOLS, at)
    asked_so = {"messages": asked, "tools": TOOLS, "at": at, "prompt_ids": prompt_ids}
    sample = make_sample(base, 1, prompted_hints=NOTES, **asked_so)
    item = only_item(base, sample, question_boost=0.5)
    assert item.prompt_ids == base.render(asked, TOOLS, at)
    assert item.unasked_prompt_ids == base.render(unasked_messages(asked), TOOLS, at)


@pytest.mark.parametrize("changes", [{"tools": ()}, {"tools": [TOOLS[0], TOOLS[0]]}])
def test_other_tools_are_another_prompt(tool_base: Base, changes: dict[str, Any]) -> None:
    _, dropped = prepare(
        tool_base, [tool_sample(tool_base, **changes)], TrainConfig(), baseline=Baseline()
    )
    assert dropped == {1: "template_changed"}


def test_a_model_that_can_think_is_rendered_as_the_server_renders_it(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """It is told not to, unless it shall; what was sampled the other way does not train."""
    file = tmp_path / "thinks.jinja"
    file.write_text(TEMPLATE + "{% if enable_thinking is not false %}<think>{% endif %}")
    asked = [Message(role="user", content="Hello")]
    told, thinks = (
        load_base(tiny_folder, device="cpu", chat_template=file, thinks=thinks)
        for thinks in (False, True)
    )
    prompt = told.render(asked)
    assert prompt == load_base(tiny_folder, device="cpu").render(asked)
    assert thinks.render(asked) == (*prompt, *told.encode("<think>"))
    (between, after), then = told.next_turn_ids, thinks.next_turn_ids
    assert then == (between, (*after, *told.encode("<think>")))
    sample = make_sample(thinks, 1, messages=asked)
    _, dropped = prepare(told, [sample], TrainConfig(), baseline=Baseline())
    assert dropped == {1: "template_changed"}


def test_a_template_in_the_place_of_the_folders_own_has_another_hash(
    base: Base, tool_base: Base
) -> None:
    assert base.template_hash != tool_base.template_hash
