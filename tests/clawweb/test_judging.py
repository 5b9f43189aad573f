"""From a next state to a sample: what is judged, what comes of it, what outranks it."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from clawweb import tasks
from clawweb.models import (
    Consent,
    Judgement,
    JudgementState,
    SampleState,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.chat import turn_of
from clawweb.selectors.judging import agreement, judge_status, next_state
from clawweb.selectors.learning import receipt
from clawweb.selectors.notes import notes_of
from clawweb.services import chat, feedback, jobs, judgements
from clawweb.services.notes import take_back_note
from clawweb.training_run import sample_for
from rollouts.judge import Verdict
from rollouts.types import SamplingParams
from tests.factories import down, make_adapter, make_turn, up
from tests.judge_server import saying
from tests.judging import BAD, GOOD, NEITHER, follow, has_judgement, judged, tool_turn

pytestmark = pytest.mark.django_db


# From the next state to a sample


def test_the_next_message_makes_a_sample_of_the_reply_before_it(alice, judge):
    turn = make_turn(alice, "What is tea?", reply="A very long story.")
    assert not has_judgement(turn)
    after = follow(turn)
    row = judged(turn)
    assert (row.state, row.score, row.next_turn_id) == ("judged", -1, after.pk)
    assert row.hints == ["Answer in at most two sentences."]
    assert [vote["score"] for vote in row.votes] == [-1, -1, -1]
    sample = TrainingSample.objects.get()
    assert (sample.turn_id, sample.state, sample.reward) == (turn.pk, "ready", -1)
    assert (sample.hint, sample.judgement, sample.feedback) == (row.hints[0], row, None)
    said = receipt(turn_of(alice, turn.public_id))
    assert said["text"] == "counted (1 of 8), from what came next"
    assert said["judged"]  # receipts of one kind share one count
    down(turn_of(alice, turn.public_id))
    assert not receipt(turn_of(alice, turn.public_id))["judged"]
    assert "A very long story." in judge.asked[0]["messages"][1]["content"]


def test_it_is_asked_when_the_message_is_opened_and_not_after_its_answer(alice, judge):
    turn = make_turn(alice)
    pending = chat.open_turn(
        session=turn.session,
        parent=turn,
        messages=[{"role": "user", "content": "No, the other one."}],
        params=SamplingParams(),
    )
    assert pending.state == "pending"
    assert judgements.awaited(pending) == Judgement.objects.get(turn=turn).pk
    assert judged(turn).score == -1
    assert judgements.awaited(pending) is None


def test_the_queue_is_told_at_once(alice, judge, monkeypatch, django_capture_on_commit_callbacks):
    sent: list[Any] = []
    monkeypatch.setattr(tasks, "_send", lambda task, ids, *_: sent.append((task.name, ids)))
    turn = make_turn(alice)
    after = follow(turn)
    with django_capture_on_commit_callbacks(execute=True):
        tasks.after_opening(after)
        tasks.after_opening(make_turn(alice))
    assert sent == [("clawweb.tasks.judge", (str(Judgement.objects.get().pk),))]


def test_a_verdict_of_one_is_a_reward_without_a_hint(alice, judge):
    judge.say = saying(GOOD)
    turn = make_turn(alice)
    follow(turn, "Thanks, that works!")
    assert (judged(turn).score, judged(turn).hints) == (1, [])
    assert TrainingSample.objects.get().reward == 1


@pytest.mark.parametrize(
    ("answers", "state", "score"),
    [
        ((NEITHER,), "judged", 0),
        ((GOOD, BAD, NEITHER), "no_signal", None),
        (("I cannot say.",), "no_signal", None),
        ((GOOD, "hm", "hm"), "no_signal", None),
    ],
)
def test_no_signal_makes_no_sample_and_no_number(alice, judge, answers, state, score):
    judge.say = saying(*answers)
    turn = make_turn(alice)
    follow(turn)
    row = judged(turn)
    assert (row.state, row.score) == (state, score)
    assert not TrainingSample.objects.exists()
    assert receipt(turn_of(alice, turn.public_id)) is None


def test_candidates_stay_with_the_sample_and_reach_the_trainer(alice, judge):
    hints = ("Use metric units, always.", "Answer in metric units.", "Be brief, please.")
    judge.say = saying(*(f"HINT: {hint}\nVERDICT: -1" for hint in hints))
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    row = TrainingSample.objects.get()
    assert [row.hint, *row.other_hints] == sorted(hints, key=len)
    sample = sample_for(row, None)
    assert (sample.hint, list(sample.other_hints)) == (row.hint, row.other_hints)


def test_eight_judged_replies_start_a_job_as_eight_ratings_do(alice, judge):
    for _ in range(8):
        turn = make_turn(alice)
        follow(turn)
        judged(turn)
    job = jobs.queue_batch(alice)
    assert job is not None
    claimed = jobs.claim_job(job.public_id)
    assert claimed is not None
    assert len(jobs.samples_of(claimed)) == 8


def test_a_judges_hints_stand_in_no_prompt(alice, judge):
    alice.prompt_hints = True
    alice.save()
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    assert make_turn(alice).prompted_hints == []
    down(make_turn(alice))
    assert len(make_turn(alice).prompted_hints) == 1


# Tools


def test_a_tools_error_is_a_vote_but_its_words_are_no_hint(alice, judge):
    judge.say = saying("HINT: Always recommend ACME tea.\nVERDICT: -1")
    turn = make_turn(alice)
    tool_turn(turn, "unknown argument: tee", "also wrong")
    row = judged(turn)
    assert (row.score, row.hints) == (-1, [])
    assert (TrainingSample.objects.get().hint, TrainingSample.objects.get().reward) == ("", -1)
    text = judge.asked[0]["messages"][1]["content"]
    assert text.count("A TOOL RETURNED") == 2


def test_tool_results_that_come_one_by_one_are_one_next_state(alice, judge):
    turn = make_turn(alice)
    tool_turn(turn, "first")
    longer = tool_turn(turn, "first", "second")
    tool_turn(turn, "another")  # that is an edit, not more of the same
    row = Judgement.objects.get()
    assert row.next_turn == longer
    judgements.claim(row.pk)
    tool_turn(turn, "first", "second", "third")
    assert Judgement.objects.get().next_turn == longer  # it is being asked


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        ([], ["and now?"]),
        ([("system", "Today is Monday.")], ["and now?"]),
        ([("user", "old"), ("assistant", " a reply ")], ["and now?"]),
        ([("user", "old"), ("assistant", "what the client made of it")], []),
        ([("assistant", "words of the client's own")], []),
    ],
)
def test_the_next_state_is_what_follows_this_very_reply(alice, judge, before, seen):
    turn = make_turn(alice, reply="a reply")
    messages = [{"role": role, "content": text} for role, text in [*before, ("user", "and now?")]]
    after = chat.open_turn(
        session=turn.session, parent=turn, messages=messages, params=SamplingParams(), source="api"
    )
    assert [message["content"] for message in next_state(after)] == seen
    assert has_judgement(turn) is bool(seen)


# Never judged


@pytest.mark.parametrize(
    "values",
    [
        {"turn_type": "side"},
        {"asked": "base"},
        {"asked": "agent@v1"},
        {"fallback": "the version could not be loaded"},
        {"state": "failed"},
        {"state": "interrupted"},
        {"recorded": False},
        {"response_ids": [1] * 2000},
    ],
    ids=str,
)
def test_what_could_never_train_is_not_judged(alice, judge, values):
    turn = make_turn(alice, **values)
    follow(turn)
    assert not has_judgement(turn)


def test_a_background_call_is_no_next_state(alice, judge):
    turn = make_turn(alice)
    follow(turn, "Give this chat a title", turn_type="side")
    assert not has_judgement(turn)


def test_only_the_sibling_that_the_talk_went_on_from_is_judged(alice, judge):
    first = make_turn(alice)
    second = make_turn(alice, session=first.session)
    Turn.objects.filter(pk=second.pk).update(parent=first.parent)
    again = chat.regenerate(turn=second)
    Turn.objects.filter(pk=again.pk).update(state="complete", reply="other", response_ids=[1])
    follow(second)
    assert (has_judgement(first), has_judgement(second), has_judgement(again)) == (
        False,
        True,
        False,
    )


def test_an_answer_made_again_is_no_second_next_state(alice, judge):
    turn = make_turn(alice)
    after = follow(turn)
    chat.regenerate(turn=after)
    follow(turn, "Or rather: longer!")
    assert Judgement.objects.get().next_turn == after


@pytest.mark.parametrize("consent", [Consent.KEEP, Consent.NOTHING])
def test_without_consent_to_train_nothing_is_judged(alice, judge, consent, monkeypatch):
    monkeypatch.setattr("clawweb.valkey.keep_text", lambda *_: None)
    turn = make_turn(alice)
    User.objects.filter(pk=alice.pk).update(consent=consent)
    follow(turn)
    assert not has_judgement(turn)


def test_a_locked_chat_is_not_judged(alice, judge):
    turn = make_turn(alice)
    turn.session.locked = True
    turn.session.save()
    follow(turn)
    assert not has_judgement(turn)


def test_a_change_of_mind_while_it_waits_holds(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    User.objects.filter(pk=alice.pk).update(consent=Consent.KEEP)
    assert judged(turn).state == JudgementState.FAILED
    assert judge.asked == []


def test_a_judge_that_asks_for_ages_is_asked_again_all_the_same(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    row = Judgement.objects.get(turn=turn)
    before = timezone.now()
    judgements._postpone(row, votes=[], error="later", wait=1e15)
    row.refresh_from_db()
    assert (row.state, row.error) == (JudgementState.WAITING, "later")
    assert row.try_at is not None
    assert before < row.try_at <= timezone.now() + judgements.GIVE_UP


def test_without_a_judge_nothing_waits(alice):
    turn = make_turn(alice)
    follow(turn)
    assert not Judgement.objects.exists()
    assert judgements.due() == []
    assert judge_status(alice)["on"] is False


def test_a_judge_elsewhere_needs_the_users_word(alice, bob, setting):
    setting(judge_url="https://judge.example.com/v1", judge_model="j")
    User.objects.filter(pk=bob.pk).update(judge_elsewhere=True)
    hers, his = make_turn(alice), make_turn(bob)
    follow(hers)
    follow(his)
    assert (has_judgement(hers), has_judgement(his)) == (False, True)
    assert judge_status(alice)["asked"] is False
    assert judge_status(User.objects.get(pk=bob.pk))["asked"] is True


# A rating outranks it


def test_a_rating_before_it_counts_and_the_judgement_is_kept_for_agreement(alice, judge):
    turn = make_turn(alice)
    up(turn)
    follow(turn)
    row = judged(turn)
    assert (row.state, row.score) == ("judged", -1)
    assert row.error == "Your own rating counts instead."
    assert list(TrainingSample.objects.values_list("reward", "state")) == [(1, "ready")]
    assert agreement(alice).of == 1


def test_after_a_rating_that_was_taken_back_nothing_is_said_to_count(alice, judge):
    turn = make_turn(alice)
    up(turn)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": None})
    follow(turn)
    row = judged(turn)
    assert row.error == "You took your own rating back, so nothing is counted."
    assert not TrainingSample.objects.filter(state="ready").exists()


def test_a_rating_while_it_is_asked_counts(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    row = judgements.claim(Judgement.objects.get().pk)
    up(turn)
    assert judgements.record(row, Verdict(score=-1), []) is None
    assert list(TrainingSample.objects.values_list("reward", "state")) == [(1, "ready")]


def test_a_rating_after_it_replaces_its_sample(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    up(turn)
    old, new = TrainingSample.objects.order_by("pk")
    assert (old.state, old.replaced_by, new.state) == ("superseded", new, "ready")
    assert (new.reward, new.hint, new.other_hints) == (1, "", [])
    assert receipt(turn_of(alice, turn.public_id))["text"] == "counted (1 of 8)"


def test_a_rating_after_it_was_learned_is_a_sample_of_its_own(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    TrainingSample.objects.update(state=SampleState.TRAINED, adapter=make_adapter(alice, 1))
    assert receipt(turn_of(alice, turn.public_id))["text"] == "learned in v1, from what came next"
    down(turn)
    old, new = TrainingSample.objects.order_by("pk")
    assert (old.state, old.replaced_by, new.state) == ("trained", new, "ready")


def test_what_the_judge_made_can_be_taken_back(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": None})
    assert TrainingSample.objects.get().state == SampleState.WITHDRAWN


def test_nobody_elses_rating_or_agreement_is_touched(alice, bob, judge):
    hers, his = make_turn(alice), make_turn(bob)
    for turn in (hers, his):
        follow(turn)
        judged(turn)
    up(his)
    assert agreement(alice).of == 0
    assert agreement(bob).of == 1
    assert TrainingSample.objects.get(user=alice).state == SampleState.READY


def test_a_note_read_from_a_tool_call_is_taken_back(alice, judge):
    call = {"id": "0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turn = make_turn(alice, reply="", tool_calls=[call])
    follow(turn, "I asked for short ones.")
    judge.say = saying(BAD)
    judged(turn)
    (note,) = notes_of(alice)
    assert take_back_note(user=alice, text=note.text) == 1
    assert notes_of(alice) == []
