from __future__ import annotations

import pytest

from rollouts.hints import hinted_messages, prompted_messages, unasked_messages
from rollouts.types import Message

TALK = [
    Message(role="system", content="Be kind."),
    Message(role="user", content="First?"),
    Message(role="assistant", content="Yes."),
    Message(role="user", content="Why?"),
]


def test_the_hint_goes_to_the_end_of_the_last_user_message() -> None:
    hinted = hinted_messages(TALK, hint="Be short.", correction=None)
    assert hinted[:3] == TALK[:3]
    assert hinted[3]["content"] == "Why?\n\n[user's hint / instruction]\nBe short."


def test_a_correction_gets_its_own_block_after_the_hint() -> None:
    hinted = hinted_messages(TALK, hint="Be short.", correction="Because.")
    assert hinted[3]["content"] == (
        "Why?\n\n[user's hint / instruction]\nBe short.\n\n[what the user wanted instead]\nBecause."
    )


def test_the_last_user_message_need_not_be_last() -> None:
    talk = [*TALK, Message(role="assistant", content="Look:")]
    hinted = hinted_messages(talk, hint=None, correction="Because.")
    assert hinted[3]["content"] == "Why?\n\n[what the user wanted instead]\nBecause."
    assert hinted[4] == talk[4]


def test_blank_texts_change_nothing_and_the_input_stays_as_it_was() -> None:
    before = [Message(role=m["role"], content=m["content"]) for m in TALK]
    assert hinted_messages(TALK, hint=" \n", correction="") == before
    hinted_messages(TALK, hint="Be short.", correction=None)
    assert before == TALK


def test_without_a_user_message_there_is_no_place() -> None:
    with pytest.raises(ValueError, match="no user message"):
        hinted_messages(TALK[:1], hint="Be short.", correction=None)


def test_nothing_is_asked_where_the_last_user_message_was() -> None:
    talk = [*TALK, Message(role="assistant", content="Look:")]
    assert unasked_messages(talk) == [*TALK[:3], Message(role="user", content=""), talk[4]]
    assert talk[3]["content"] == "Why?"
    with pytest.raises(ValueError, match="no user message"):
        unasked_messages(TALK[:1])


def test_several_hints_are_one_block_and_none_are_no_block() -> None:
    prompted = prompted_messages(TALK, ["Be short.", "Be kind."])
    assert prompted[3]["content"] == "Why?\n\n[user's hint / instruction]\nBe short.\nBe kind."
    assert prompted_messages(TALK[:1], []) == TALK[:1]
