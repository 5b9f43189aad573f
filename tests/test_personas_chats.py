"""A person who rates all of their turns in one chat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.personas.chats import OneChat
from bench.personas.people import PEOPLE
from bench.personas.recipes import RECIPES
from rollouts.errors import PromptTooLong
from rollouts.types import Message, Policy, Rollout
from tests.test_personas_cells import Stage
from tests.test_personas_cells import base as base  # the fixture
from training.base import Base


class Small(Stage):
    """Takes seven messages, and no more."""

    prompts: list[list[str]]

    def ask(
        self, prompts: Sequence[Sequence[Message]], policy: Policy, *, seed: int
    ) -> list[Rollout]:
        if any(len(prompt) > 7 for prompt in prompts):
            raise PromptTooLong("8 messages")
        self.prompts += [[each["content"] for each in prompt] for prompt in prompts]
        return super().ask(prompts, policy, seed=seed)


@pytest.fixture
def cell(base: Base, tmp_path: Path) -> OneChat:
    stage = Small(engine=None, base=base, folder=tmp_path)  # type: ignore[arg-type]
    stage.prompts = []
    return OneChat(stage, RECIPES["combine-one-chat"], PEOPLE["greets"], seed=0)


def test_each_turn_is_asked_after_what_was_said_as_far_as_there_is_room(cell: OneChat) -> None:
    samples = cell.rate(0, 6)
    asked = cell.turns(0, 6)
    replies = [cell.lab.base.tokenizer.decode(sample.response_ids) for sample in samples]
    said = [text for turn in zip(asked, replies, strict=True) for text in turn]
    # The fifth finds no room: of the four exchanges before it two are left, as in the product.
    heard = [said[:1], said[:3], said[:5], said[:7], said[4:9], said[4:11]]
    assert cell.lab.prompts == heard  # type: ignore[attr-defined]
    for sample, prompt in zip(samples, heard, strict=True):
        assert [each["content"] for each in sample.messages] == prompt
        assert sample.prompt_ids == cell.lab.base.render(sample.messages)


def test_a_question_that_never_fits_ends_it(cell: OneChat, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> list[Rollout]:
        raise PromptTooLong("no room")

    monkeypatch.setattr(cell.lab, "ask", full)
    with pytest.raises(PromptTooLong):
        cell.rate(0, 1)


def test_held_out_questions_are_asked_alone_and_after_the_chat(cell: OneChat) -> None:
    assert "in_chat" not in cell.examine()  # nothing was said yet
    cell.rate(0, 2)
    said = [each["content"] for each in cell.talk]
    prompts = cell.lab.prompts  # type: ignore[attr-defined]
    prompts.clear()
    found = cell.examine()
    held_out = cell.held_out
    assert prompts[: len(held_out)] == [[question] for question in held_out]
    assert prompts[len(held_out) :] == [[*said, question] for question in held_out]
    assert 0 <= found["in_chat"] <= 1
