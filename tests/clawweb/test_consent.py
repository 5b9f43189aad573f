"""What may happen to a user's chats: train, keep, nothing; and a change of mind."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from clawweb import valkey
from clawweb.models import Consent, DropReason, JobState, TrainingJob, Turn, TurnState, User
from clawweb.selectors.chat import messages_for, reply_message, turn_of
from clawweb.selectors.hints import hints_to_prompt
from clawweb.selectors.learning import receipt
from clawweb.services import accounts, chat, feedback, housekeeping, jobs, retyping, sessions
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
    assert receipt(later)["text"] == "saved; its chat is kept out of training"
    with pytest.raises(NothingReady):
        jobs.queue_job(user=alice)
    housekeeping.edit_session(turn.session, locked=False)
    job = jobs.claim_job(jobs.queue_job(user=alice).public_id)
    assert job is not None
    assert [sample.turn for sample in jobs.samples_of(job)] == [turn, later]


def test_nothing_that_could_count_again_is_left_when_training_ends(alice: User) -> None:
    old, new, aside, taken = (make_turn(alice) for _ in range(4))
    down(old, "too_long")
    down(new, "too_short")
    job = claimed_job(alice)
    down(taken)
    down(aside)
    retyping.set_turn_type(turn=aside, turn_type="side")
    choose(alice, Consent.KEEP)
    choose(alice, Consent.TRAIN)
    jobs.end_job(job, state=JobState.CANCELLED)
    retyping.set_turn_type(turn=aside, turn_type="main")
    feedback.rate_turn(turn=make_turn(alice), author=alice, changes={"value": 1})
    for turn in (old, new, aside, taken):
        assert turn.samples.get().drop_reason == DropReason.CONSENT


def test_ratings_of_a_locked_chat_wait_until_it_may_train(alice: User, setting: Any) -> None:
    """Also when the lock comes after the job was queued: no rating is lost by it."""
    setting(batch=1)
    turn = make_turn(alice)
    down(turn)
    job = jobs.queue_job(user=alice)
    housekeeping.edit_session(turn.session, locked=True)
    claimed = jobs.claim_job(job.public_id)
    assert claimed is not None
    assert jobs.samples_of(claimed) == []
    jobs.end_job(claimed, state=JobState.CANCELLED)
    assert jobs.queue_batch(alice) is None
    assert jobs.users_with_batches() == []
    told = receipt(turn_of(alice, turn.public_id))
    assert told is not None
    assert told["state"] == "saved"
    assert told["text"] == "saved; its chat is kept out of training"
    assert told["count"]["have"] == 0
    housekeeping.edit_session(turn.session, locked=False)
    assert states(alice) == {("ready", "")}
    told = receipt(turn_of(alice, turn.public_id))
    assert told is not None
    assert told["state"] == "counted"
    down(make_turn(alice))
    assert jobs.queue_batch(alice) is not None


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


def being_written(user: User) -> Turn:
    """A turn that nothing is kept of, claimed by a generator."""
    choose(user, Consent.NOTHING)
    opened = chat.open_turn(
        session=sessions.open_session(user=user),
        parent=None,
        messages=[Message(role="user", content="a secret question")],
    )
    found = chat.claim_turn(opened.public_id, base_hash="x")
    assert found is not None
    return found[0]


def test_a_reply_that_ends_after_its_chat_was_erased_is_not_kept_aside(alice: User) -> None:
    turn = being_written(alice)
    Turn.objects.all().delete()
    valkey.forget_texts([turn.public_id])
    ended = chat.finish_turn(turn, state=TurnState.STOPPED, rollout=None, text="a secret")
    assert (ended, valkey.kept_text(turn.public_id)) == (False, {})


def test_a_reply_that_nothing_can_hold_has_failed_and_is_no_empty_one(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = being_written(alice)

    def down(*_: Any) -> None:
        raise valkey.ValkeyError("down")

    monkeypatch.setattr(valkey, "keep_text", down)
    ended = chat.finish_turn(turn, state=TurnState.COMPLETE, rollout=None, text="a secret")
    turn.refresh_from_db()
    assert (ended, turn.state, turn.reply) == (False, TurnState.FAILED, "")
    assert turn.error.endswith("Try again soon.")


def said(user: User, text: str, parent: Turn | None = None) -> Turn:
    """A finished turn, opened, claimed and ended as a generator does it."""
    opened = chat.open_turn(
        session=parent.session if parent else sessions.open_session(user=user),
        parent=parent,
        messages=[Message(role="user", content=text)],
        params=SamplingParams(),
    )
    return answered(opened)


def answered(opened: Turn) -> Turn:
    found = chat.claim_turn(opened.public_id, base_hash="x")
    assert found is not None
    told = Rollout(
        text="a reply",
        prompt_ids=(1,),
        response_ids=(2,),
        logprobs=(-0.5,),
        finish_reason="stop",
        policy=BASE,
        params=SamplingParams(),
    )
    chat.finish_turn(found[0], state=TurnState.COMPLETE, rollout=told, text="a reply")
    return Turn.objects.select_related("session__user", "parent").get(pk=opened.pk)


def prompt(turn: Turn) -> list[str]:
    return [message["content"] for message in messages_for(turn)]


def test_what_was_not_to_be_kept_is_in_no_prompt_that_is(alice: User) -> None:
    kept = said(alice, "kept")
    choose(alice, Consent.NOTHING)
    secret = said(alice, "a secret", kept)
    assert prompt(secret) == ["kept", "a reply", "a secret"]
    choose(alice, Consent.TRAIN)
    after = said(alice, "and more", secret)
    assert after.recorded
    assert prompt(after) == ["and more"]
    assert after.context_start_id == after.pk  # the page shows where memory begins
    assert prompt(said(alice, "and on", after)) == ["and more", "a reply", "and on"]
    # Not by way of its name, nor of a row from before, whose memory begins earlier
    assert after.history_hash == chat._history_after(after, reply_message(after))
    valkey.forget_texts([secret.public_id])
    assert after.history_hash == chat._history_after(after, reply_message(after))
    Turn.objects.update(context_start=None)
    after.refresh_from_db()
    assert prompt(after) == ["kept", "a reply", "and more"]


def test_asked_for_again_it_is_still_not_kept(alice: User) -> None:
    choose(alice, Consent.NOTHING)
    secret = said(alice, "a secret")
    choose(alice, Consent.TRAIN)
    again = answered(chat.regenerate(turn=secret))
    assert prompt(again) == ["a secret"]
    assert not again.recorded
    assert "secret" not in str(Turn.objects.filter(pk=again.pk).values().get())


def test_what_is_gone_after_an_hour_leaves_the_prompt_whole(alice: User) -> None:
    """No empty reply in its place, and user and assistant take turns."""
    choose(alice, Consent.NOTHING)
    first = said(alice, "one")
    second = said(alice, "two", first)
    valkey.forget_texts([first.public_id])
    third = said(alice, "three", second)
    assert prompt(third) == ["two", "a reply", "three"]
    valkey.forget_texts([second.public_id, third.public_id])
    last = said(alice, "four", third)
    assert prompt(last) == ["four"]
    assert last.context_start_id == last.pk


@pytest.mark.parametrize("consent", [Consent.KEEP, Consent.NOTHING])
def test_no_page_promises_training_that_is_off(client: Client, alice: User, consent: str) -> None:
    client.force_login(alice)
    promises = ("one of 8 ratings", "After 8 ratings", "starts at 8", "Training starts by")

    def promised(path: str) -> list[str]:
        page = client.get(path).content.decode()
        return [words for words in promises if words in page]

    paths = ("/chat/", "/agent/", "/jobs/")
    before = [promised(path) for path in paths]
    assert before == [[promises[0]], [promises[1]], [promises[3]]]
    choose(alice, consent)
    assert [promised(path) for path in paths] == [[], [], []]
    why_no_thumbs = "so its replies cannot be rated" in client.get("/chat/").content.decode()
    assert why_no_thumbs is (consent == Consent.NOTHING)
    choose(alice, Consent.TRAIN)
    rated(alice, 1)
    assert promised("/agent/") == [promises[2]]
    choose(alice, consent)
    assert promised("/agent/") == []


def test_training_by_hand_is_offered_only_where_it_is_on(client: Client, alice: User) -> None:
    client.force_login(alice)
    rated(alice, 1)
    for consent, off in ((Consent.TRAIN, 0), (Consent.KEEP, 2)):
        choose(alice, consent)
        assert ("Pause learning" in client.get("/agent/").content.decode()) is (not off)
        page = client.get("/jobs/").content.decode()  # it has two such buttons
        assert len(re.findall(r'disabled[^>]* title="Training is off', page)) == off
