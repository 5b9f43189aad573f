"""What may happen to a user's chats: train, keep, nothing; and a change of mind."""

from __future__ import annotations

from typing import Any

import pytest

from clawweb.models import Consent, DropReason, JobState, TrainingJob, Turn, TurnState, User
from clawweb.selectors.hints import hints_to_prompt
from clawweb.services import accounts, chat, feedback, jobs, sessions
from clawweb.services.errors import NothingReady, NotRecorded
from rollouts.types import BASE, Message, Rollout, SamplingParams
from tests.factories import claimed_job, down, make_turn, rated, up

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")

DROPPED = ("dropped", DropReason.CONSENT)


def states(user: User) -> set[tuple[str, str]]:
    return set(user.samples.values_list("state", "drop_reason"))


def choose(user: User, consent: str) -> None:
    accounts.set_consent(user=user, consent=consent)


@pytest.mark.parametrize("consent", [Consent.KEEP, Consent.NOTHING])
def test_what_counted_counts_no_more(alice: User, bob: User, consent: str) -> None:
    rated(alice, 2)
    feedback.rate_turn(turn=make_turn(alice), author=alice, changes={"value": -1})  # waits
    rated(bob, 1)
    choose(alice, consent)
    assert states(alice) == {DROPPED}
    assert states(bob) == {("ready", "")}
    choose(alice, Consent.TRAIN)
    with pytest.raises(NothingReady):
        jobs.queue_job(user=alice)


@pytest.mark.parametrize("consent", [Consent.KEEP, Consent.NOTHING])
def test_a_job_that_trains_on_them_ends_and_gives_nothing_back(alice: User, consent: str) -> None:
    rated(alice, 2)
    job = claimed_job(alice)
    choose(alice, consent)
    assert jobs.cancel_wanted(job)
    jobs.end_job(job, state=JobState.CANCELLED)
    assert states(alice) == {DROPPED}


def test_a_job_that_waits_ends_at_once(alice: User) -> None:
    rated(alice, 1)
    jobs.queue_job(user=alice)
    choose(alice, Consent.KEEP)
    assert TrainingJob.objects.get(user=alice).state == JobState.CANCELLED


def test_what_is_learned_stays_as_it_is(alice: User) -> None:
    rated(alice, 1)
    alice.samples.update(state="trained")
    choose(alice, Consent.KEEP)
    assert states(alice) == {("trained", "")}


def test_going_on_to_train_changes_nothing_that_counts(alice: User) -> None:
    rated(alice, 1)
    choose(alice, Consent.TRAIN)
    assert states(alice) == {("ready", "")}


def test_kept_chats_are_rated_and_not_trained_on(alice: User) -> None:
    choose(alice, Consent.KEEP)
    turn = make_turn(User.objects.get(pk=alice.pk), "Why?")
    down(turn)
    up(make_turn(alice))
    assert turn.recorded
    assert turn.input_messages == [{"role": "user", "content": "Why?"}]
    assert states(alice) == {DROPPED}


def test_a_locked_chat_trains_nothing_and_prompts_nothing(alice: User) -> None:
    accounts.set_consent(user=alice, consent=Consent.TRAIN, prompt_hints=True)
    alice.refresh_from_db()
    turn = make_turn(alice)
    down(turn)
    assert hints_to_prompt(alice)
    turn.session.locked = True
    turn.session.save()
    assert hints_to_prompt(alice) == []
    later = make_turn(alice, session=turn.session, parent=turn)
    down(later)
    assert later.samples.get().drop_reason == DropReason.CONSENT
    claimed_job(alice)
    assert turn.samples.get().drop_reason == DropReason.CONSENT


def test_of_who_keeps_nothing_no_word_is_in_any_column(alice: User) -> None:
    """Also what a reply brought beside its text: whatever columns a turn has or will have."""
    choose(alice, Consent.NOTHING)
    messages = [Message(role="user", content="a secret question")]
    opened = chat.open_turn(
        session=sessions.open_session(user=alice),
        parent=None,
        messages=messages,
        params=SamplingParams(),
    )
    found = chat.claim_turn(opened.public_id, base_hash="x")
    assert found is not None
    turn, _ = found
    chat.checkpoint(turn, text="a secret", ids=[71077345], prompt_ids=[71077345])
    told = Rollout(
        text="a secret reply",
        prompt_ids=(71077345,),
        response_ids=(71077345,),
        logprobs=(-0.71077345,),
        finish_reason="stop",
        policy=BASE,
        params=SamplingParams(),
    )
    chat.finish_turn(turn, state=TurnState.COMPLETE, rollout=told, text="a secret reply")
    columns: Any = Turn.objects.filter(pk=opened.pk).values().get()
    assert "secret" not in str(columns)
    assert "71077345" not in str(columns)
    assert not columns["history_hash"]
    assert not columns["request_hash"]
    assert "secret" not in opened.session.title
    with pytest.raises(NotRecorded):
        feedback.rate_turn(turn=Turn.objects.get(), author=alice, changes={"value": 1})
