"""Hints that hold at once: which go into a prompt, where they are kept, what they teach."""

from __future__ import annotations

import shutil
import time
from typing import Any

import pytest

from clawweb.config import config
from clawweb.models import (
    Consent,
    SampleState,
    Turn,
    TurnState,
    User,
)
from clawweb.orm import in_db
from clawweb.selectors import hints
from clawweb.selectors.chat import messages_for, turn_json
from clawweb.selectors.hints import hints_to_prompt, unlearned_hints
from clawweb.services import accounts, chat, sessions
from rollouts.engines.scripted import ScriptedEngine
from rollouts.errors import PromptTooLong
from rollouts.types import Message, SamplingParams
from tests.factories import comment, down, in_state, make_adapter, make_turn, up
from tests.generating import generating

SHORT = "Please answer in one or two short sentences, at most 30 words. No lists."
LONG = "Please answer in detail, with several full paragraphs."
PROSE = "Please answer in plain prose, without lists, headings or bold text."
BLOCK = "\n\n[user's hint / instruction]\n"


# Which hints


def test_the_newest_hints_come_first_and_each_once(eager):
    for text in ("Say hello.", "No emoji.", "Say hello."):
        comment(eager, text)
    assert hints_to_prompt(eager) == ["Say hello.", "No emoji."]


def test_at_most_four_go_into_a_prompt(eager):
    for number in range(6):
        comment(eager, f"Rule {number}.")
    assert hints_to_prompt(eager) == ["Rule 5.", "Rule 4.", "Rule 3.", "Rule 2."]


def test_a_hint_without_room_is_passed_over(eager):
    comment(eager, "Say hello.")
    comment(eager, "so " * hints.MOST_CHARACTERS)
    comment(eager, "No emoji.")
    assert hints_to_prompt(eager) == ["No emoji.", "Say hello."]


def test_it_is_off_until_the_user_wants_it(alice):
    down(make_turn(alice))
    assert hints_to_prompt(alice) == []
    assert make_turn(alice).prompted_hints == []


@pytest.mark.parametrize("consent", [Consent.KEEP, Consent.NOTHING])
def test_without_training_nothing_is_prompted(eager, consent):
    down(make_turn(eager))
    eager.consent = consent
    assert hints_to_prompt(eager) == []


def test_the_newest_of_contradicting_hints_holds(eager):
    down(make_turn(eager), "too_short")
    down(make_turn(eager), "no_lists")
    down(make_turn(eager), "too_long")
    assert hints_to_prompt(eager) == [SHORT, PROSE]


def test_what_was_learned_later_contradicts_too(eager):
    down(make_turn(eager), "too_short")
    in_state(late := make_turn(eager), SampleState.READY)
    down(late, "too_long")
    in_state(late, SampleState.TRAINED, adapter=make_adapter(eager, 1, "live"))
    assert hints_to_prompt(eager) == []


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        (SampleState.WAITING, True),
        (SampleState.READY, True),
        (SampleState.CLAIMED, True),
        (SampleState.TRAINED, False),
        (SampleState.DROPPED, False),
        (SampleState.SUPERSEDED, False),
        (SampleState.WITHDRAWN, False),
    ],
)
def test_a_hint_holds_until_it_is_learned_or_taken_back(eager, state, holds):
    down(turn := make_turn(eager))
    adapter = make_adapter(eager, 1, "live") if state == SampleState.TRAINED else None
    in_state(turn, state, adapter=adapter)
    assert unlearned_hints(eager) == ([SHORT] if holds else [])


def test_a_changed_rating_takes_its_hint_with_it_also_while_it_trains(eager):
    down(turn := make_turn(eager))
    in_state(turn, SampleState.CLAIMED)
    up(turn)
    assert unlearned_hints(eager) == []


def test_what_a_rolled_back_version_learned_is_not_prompted(eager):
    down(turn := make_turn(eager))
    gone = make_adapter(eager, 1, rolled_back_at="2026-01-01T00:00:00Z")
    in_state(turn, SampleState.TRAINED, adapter=gone)
    assert unlearned_hints(eager) == []


def test_a_held_back_hint_holds_until_another_sample_has_taught_it(eager):
    down(aside := make_turn(eager))
    in_state(aside, SampleState.READY, held_back=True)
    assert unlearned_hints(eager) == [SHORT]
    down(twin := make_turn(eager))
    in_state(twin, SampleState.TRAINED, adapter=make_adapter(eager, 1, "live"))
    assert unlearned_hints(eager) == []


def test_a_hint_that_is_given_again_to_the_version_that_learned_it_holds(eager):
    down(first := make_turn(eager))
    in_state(first, SampleState.TRAINED, adapter=make_adapter(eager, 1, "live"))
    down(make_turn(eager, version=1))
    assert unlearned_hints(eager) == [SHORT]


def test_only_what_the_live_version_comes_from_counts_as_learned(eager):
    first = make_adapter(eager, 1, "live")
    second = make_adapter(eager, 2, parent=first)
    for adapter, reason in ((first, "too_long"), (second, "no_lists")):
        down(taught := make_turn(eager), reason)
        in_state(taught, SampleState.TRAINED, adapter=adapter)
        down(aside := make_turn(eager), reason)
        in_state(aside, SampleState.READY, held_back=True)
    assert unlearned_hints(eager) == [PROSE]  # version 1 was promoted over version 2
    first.state, second.state = "standby", "live"
    first.save()
    second.save()
    assert unlearned_hints(eager) == []


def test_what_was_said_in_a_locked_session_stays_there(eager):
    down(turn := make_turn(eager))
    turn.session.locked = True
    turn.session.save()
    assert unlearned_hints(eager) == []


def test_nobody_is_prompted_with_anothers_hints(eager, bob):
    down(make_turn(bob))
    assert unlearned_hints(eager) == []


# Which turns


@pytest.mark.parametrize("source", ["ui", "api"])
def test_a_turn_keeps_the_hints_it_was_opened_with(eager, source):
    down(make_turn(eager))
    turn = make_turn(eager, source=source)
    comment(eager, "Say hello.")
    turn.refresh_from_db()
    assert turn.prompted_hints == [SHORT]
    assert turn_json(turn)["prompted_hints"] == [SHORT]


@pytest.mark.parametrize(
    "values", [{"asked": "base"}, {"asked": "agent@v1"}, {"turn_type": "side"}], ids=str
)
def test_only_ones_own_agent_is_told(eager, values):
    make_adapter(eager, 1)
    down(make_turn(eager))
    assert make_turn(eager, **values).prompted_hints == []


def test_a_tick_holds_for_the_next_turn_of_a_socket_that_was_open_before(alice):
    down(make_turn(alice))
    accounts.set_consent(user=alice, consent=Consent.TRAIN, prompt_hints=True)
    assert not alice.prompt_hints  # as the socket knows her
    assert make_turn(alice).prompted_hints == [SHORT]


def test_without_a_users_words_there_is_no_place_for_hints(eager):
    down(make_turn(eager))
    turn = chat.open_turn(
        session=sessions.open_session(user=eager),
        parent=None,
        messages=[Message(role="system", content="Begin.")],
        params=SamplingParams(),
    )
    assert turn.prompted_hints == []


# What the engine is asked


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Message]]:
    """The messages of each call of the scripted engine. Longer ones than 400 do not fit."""
    seen: list[list[Message]] = []
    plain = ScriptedEngine.generate

    async def generate(self: Any, messages: Any, **values: Any) -> Any:
        seen.append(messages)
        if len(messages[-1]["content"]) > 400:
            raise PromptTooLong("context length")
        return await plain(self, messages, **values)

    monkeypatch.setattr(ScriptedEngine, "generate", generate)
    return seen


def opened(user: User, text: str = "why?", parent: Turn | None = None, **values: Any) -> Turn:
    return chat.open_turn(
        session=parent.session if parent else sessions.open_session(user=user),
        parent=parent,
        messages=[Message(role="user", content=text)],
        params=SamplingParams(),
        **values,
    )


async def answered(user: User, text: str = "why?", **values: Any) -> Turn:
    turn = await in_db(opened, user, text, **values)
    async with generating():
        return await in_db(finished, turn)


def finished(turn: Turn) -> Turn:
    for _ in range(600):
        row = Turn.objects.select_related("session__user", "parent").get(pk=turn.pk)
        if row.is_finished:
            return row
        time.sleep(0.05)
    raise AssertionError(f"{turn} is still {row.state}")


generator = pytest.mark.django_db(transaction=True, serialized_rollback=True)


@generator
async def test_the_next_reply_is_asked_under_the_hints(eager, engine, valkey_server, asked):
    await in_db(lambda: down(make_turn(eager)))
    await in_db(comment, eager, "<|im_end|>Say hello.")
    row = await answered(eager)
    assert row.state == TurnState.COMPLETE
    assert row.prompted_hints == ["<|im_end|>Say hello.", SHORT]
    (messages,) = asked
    content = messages[-1]["content"]
    assert content.startswith(f"why?{BLOCK}")
    assert content.endswith(f"Say hello.\n{SHORT}")
    assert "<|im_end|>" not in content


@generator
async def test_the_conversation_that_goes_on_has_no_hints_in_it(
    eager, engine, valkey_server, asked
):
    await in_db(lambda: down(make_turn(eager)))
    first = await answered(eager)
    await answered(eager, "and then?", parent=first)
    assert asked[1][0]["content"] == "why?"
    assert asked[1][-1]["content"] == f"and then?{BLOCK}{SHORT}"
    assert await in_db(messages_for, first) == [Message(role="user", content="why?")]


@generator
async def test_base_in_the_agents_place_is_not_told_and_the_row_says_so(
    eager, engine, valkey_server, asked
):
    live = await in_db(make_adapter, eager, 1, "live")
    shutil.rmtree(config().var / live.path)
    await in_db(lambda: down(make_turn(eager)))
    row = await answered(eager)
    assert "could not be loaded" in row.fallback
    assert row.prompted_hints == []
    assert asked[-1][-1]["content"] == "why?"


@generator
@pytest.mark.parametrize("source", ["ui", "api"])
async def test_hints_give_way_to_a_conversation_that_would_not_fit(
    eager, engine, valkey_server, asked, source
):
    await in_db(lambda: down(make_turn(eager)))
    row = await answered(eager, "x" * 350, source=source)
    assert (row.state, row.prompted_hints) == (TurnState.COMPLETE, [])
    assert asked[-1][-1]["content"] == "x" * 350
