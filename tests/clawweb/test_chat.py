"""Conversations: opening, placing, remembering and finishing turns."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from clawweb.engine import base_hash
from clawweb.models import ChatSession, Consent, Turn, TurnState, User
from clawweb.selectors.chat import messages_for, turn_json, turns_json
from clawweb.selectors.waiting import next_turns
from clawweb.services import chat, sessions
from rollouts.types import BASE, Message, Rollout, SamplingParams
from tests.factories import make_adapter, make_turn

pytestmark = pytest.mark.django_db

PARAMS = SamplingParams()


def user_says(text):
    return Message(role="user", content=text)


def agent_says(text):
    return Message(role="assistant", content=text)


def open_turn(session, text="hello", **values):
    return chat.open_turn(
        session=session, parent=values.pop("parent", None), messages=[user_says(text)],
        params=PARAMS, **values,
    )  # fmt: skip


def claim_turn():
    """The oldest turn that waits, as a generator takes it."""
    turn, _ = chat.claim_turn(next_turns(room=1)[0], base_hash=base_hash())
    return turn


def rollout(text="done", ids=(4, 5), params=PARAMS):
    return Rollout(
        text=text, prompt_ids=(1, 2, 3), response_ids=ids, logprobs=tuple(-0.5 for _ in ids),
        finish_reason="stop", policy=BASE, params=params,
    )  # fmt: skip


def test_the_first_words_become_the_title(alice):
    session = sessions.open_session(user=alice)
    open_turn(session, "How do\n I make tea?")
    session.refresh_from_db()
    assert session.title == "How do I make tea?"


def test_a_message_sent_twice_at_once_is_one_turn(alice, monkeypatch):
    """The other call comes between the first look and the writing."""
    other = sessions.open_session(user=alice)
    looked = []

    def look(user):
        if not looked:
            looked.append(user)
            looked.append(open_turn(other, client_id="a1"))

    monkeypatch.setattr(chat.waiting.quotas, "check_tokens", look)
    late = open_turn(ChatSession(user=alice), client_id="a1")
    assert late == looked[1]
    assert (Turn.objects.count(), ChatSession.objects.count()) == (1, 1)


def test_the_same_client_id_makes_no_second_turn(alice):
    session = sessions.open_session(user=alice)
    first = open_turn(session, client_id="a1")
    assert open_turn(session, client_id="a1") == first
    assert Turn.objects.count() == 1


def test_a_turn_is_claimed_once(alice):
    turn = open_turn(sessions.open_session(user=alice))
    claimed = claim_turn()
    assert claimed == turn
    assert claimed.state == TurnState.STREAMING
    assert chat.claim_turn(turn.public_id, base_hash="x") is None
    assert next_turns(room=8) == []


def test_what_the_engine_gave_is_stored_verbatim(alice):
    open_turn(sessions.open_session(user=alice))
    turn = claim_turn()
    chat.finish_turn(turn, state=TurnState.COMPLETE, rollout=rollout(), text="done")
    turn.refresh_from_db()
    assert (turn.prompt_ids, turn.response_ids, turn.logprobs) == ([1, 2, 3], [4, 5], [-0.5, -0.5])
    assert turn.template_hash
    assert turn.sampling["temperature"] == 0.7


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(top_p=0.9),
        SamplingParams(top_k=5),
        SamplingParams(presence_penalty=0.5),
        SamplingParams(frequency_penalty=0.5),
        SamplingParams(logit_bias=(("5", 1.0),)),
    ],
)
def test_a_reply_that_was_not_sampled_plainly_carries_no_behaviour_logprobs(alice, params):
    open_turn(sessions.open_session(user=alice))
    turn = claim_turn()
    chat.finish_turn(turn, state=TurnState.COMPLETE, rollout=rollout(params=params), text="x")
    turn.refresh_from_db()
    assert turn.logprobs is None
    assert turn.response_ids == [4, 5]


def test_a_generator_that_lost_its_lease_writes_nothing(alice):
    open_turn(sessions.open_session(user=alice))
    turn = claim_turn()
    Turn.objects.update(lease_token="another's")
    assert not chat.finish_turn(turn, state=TurnState.COMPLETE, rollout=rollout(), text="done")
    assert chat.checkpoint(turn, text="x", ids=[1], prompt_ids=[1]) is True
    turn.refresh_from_db()
    assert (turn.state, turn.reply) == (TurnState.STREAMING, "")


def test_an_abandoned_reply_is_interrupted_and_its_text_kept(alice):
    open_turn(sessions.open_session(user=alice))
    turn = claim_turn()
    chat.checkpoint(turn, text="half a", ids=[4], prompt_ids=[1])
    assert chat.interrupt_abandoned() == []
    Turn.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    assert chat.interrupt_abandoned() == [turn]
    turn.refresh_from_db()
    assert (turn.state, turn.reply) == (TurnState.INTERRUPTED, "half a")


def test_a_turn_says_where_its_memory_begins_at_no_query_of_its_own(
    alice, django_assert_num_queries
):
    first = make_turn(alice)
    second = make_turn(alice, session=first.session, parent=first)
    with CaptureQueriesContext(connection) as seen:
        assert [turn["memory_begins"] for turn in turns_json(first.session)] == [None, None]
    Turn.objects.filter(pk=second.pk).update(context_start=second)
    with django_assert_num_queries(len(seen)):
        assert turns_json(first.session)[1]["memory_begins"] == second.public_id


def test_a_prompt_is_the_branch_and_not_its_siblings(alice):
    first = make_turn(alice, "q1", reply="a1")
    make_turn(alice, "q2", reply="other", session=first.session, parent=first)
    second = make_turn(alice, "q2", reply="a2", session=first.session, parent=first)
    third = open_turn(first.session, "q3", parent=second)
    assert [m["content"] for m in messages_for(third)] == ["q1", "a1", "q2", "a2", "q3"]


def test_regenerating_makes_a_sibling(alice):
    first = make_turn(alice, "q1")
    again = chat.regenerate(turn=first)
    assert (again.parent, again.input_messages) == (first.parent, first.input_messages)
    siblings = [turn["siblings"] for turn in turns_json(first.session)]
    assert siblings == [[first.public_id, again.public_id]] * 2


def test_memory_can_begin_later_but_keeps_the_system_message(alice):
    session = sessions.open_session(user=alice)
    first = chat.open_turn(
        session=session, parent=None, params=PARAMS,
        messages=[Message(role="system", content="be kind"), user_says("q1")],
    )  # fmt: skip
    Turn.objects.update(reply="a1", state="complete")
    second = make_turn(alice, "q2", reply="a2", session=session, parent=first)
    third = open_turn(session, "q3", parent=second)
    claimed = claim_turn()
    assert claimed == third
    assert chat.move_memory(claimed)
    assert [m["content"] for m in messages_for(claimed)] == ["be kind", "q3"]
    assert not chat.move_memory(claimed)


def test_a_session_name_belongs_to_its_user(alice, bob):
    hers = sessions.open_session(user=alice, external_id="work")
    assert sessions.open_session(user=alice, external_id="work") == hers
    assert sessions.open_session(user=alice, external_id=hers.public_id) == hers
    assert sessions.open_session(user=bob, external_id="work") != hers
    assert sessions.open_session(user=bob, external_id=hers.public_id).user == bob
    assert ChatSession.objects.count() == 3


def test_the_live_version_answers_and_the_turn_names_it(alice):
    live = make_adapter(alice, 2, "live")
    open_turn(sessions.open_session(user=alice))
    turn, policy = chat.claim_turn(next_turns(room=1)[0], base_hash=live.base_hash)
    turn.refresh_from_db()
    assert (policy.adapter, turn.fallback, turn.adapter, turn.version) == (live.name, "", live, 2)


def test_a_version_of_another_base_model_that_was_asked_for_does_not_answer_and_it_is_said(alice):
    make_adapter(alice, 1, "live", base_hash="of an older model")
    open_turn(sessions.open_session(user=alice), asked="agent@v1")
    turn, policy = chat.claim_turn(next_turns(room=1)[0], base_hash="of the new model")
    turn.refresh_from_db()
    assert policy == BASE
    assert "base model has changed" in turn.fallback


def test_without_a_version_base_answers_and_that_is_no_fallback(alice):
    open_turn(sessions.open_session(user=alice))
    turn, policy = chat.claim_turn(next_turns(room=1)[0], base_hash="x")
    assert (policy, turn.fallback) == (BASE, "")


def test_asking_for_base_is_answered_by_base_though_a_version_is_live(alice):
    make_adapter(alice, 1, "live")
    open_turn(sessions.open_session(user=alice), asked="base")
    turn, policy = chat.claim_turn(next_turns(room=1)[0], base_hash="x")
    assert (policy, turn.fallback) == (BASE, "")


def test_who_keeps_nothing_leaves_a_stub(alice, valkey_server):
    alice.consent = Consent.NOTHING
    alice.save()
    turn = open_turn(sessions.open_session(user=alice), "my secret")
    claimed = claim_turn()
    assert [m["content"] for m in messages_for(claimed)] == ["my secret"]
    chat.finish_turn(claimed, state=TurnState.COMPLETE, rollout=rollout("told"), text="told")
    turn.refresh_from_db()
    assert (turn.input_messages, turn.reply, turn.prompt_ids, turn.response_ids) == (
        [],
        "",
        None,
        None,
    )
    assert turn.session.title == ""
    assert turn_json(turn)["reply"] == "told"


def test_keeping_nothing_holds_for_a_socket_that_was_open_before(alice, valkey_server):
    User.objects.filter(pk=alice.pk).update(consent=Consent.NOTHING)
    assert alice.consent == Consent.TRAIN  # as the socket knows her
    assert not open_turn(sessions.open_session(user=alice), "my secret").recorded


def test_stop_is_asked_of_a_running_turn_only(alice):
    turn = open_turn(sessions.open_session(user=alice))
    assert chat.request_stop(turn)
    assert not chat.request_stop(make_turn(alice))


def test_a_name_given_while_somebody_speaks_stays(alice):
    session = make_turn(alice, "first words").session
    ChatSession.objects.filter(pk=session.pk).update(title="Breakfast")  # by another request
    make_turn(alice, "more words", session=session)
    session.refresh_from_db()
    assert session.title == "Breakfast"
