"""Which judgements are asked for, in what order, and what of a round stays on the row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clawweb import judging, sentences
from clawweb.models import Consent, DropReason, Judgement, TrainingSample, Turn, User
from clawweb.selectors.judging import agreement, judge_is_silent, judge_status
from clawweb.sentences import NOT_JUDGED
from clawweb.services import chat, housekeeping, judgements
from rollouts.judge import Ballot, Verdict
from tests.factories import make_turn, up
from tests.judging import follow, has_judgement, judged, now_due, tool_turn

pytestmark = pytest.mark.django_db
SAID = [{"role": "user", "content": "Shorter, please."}]


def waiting(user: User) -> Judgement:
    """What the next message has made possible, not asked for yet."""
    follow(turn := make_turn(user))
    return Judgement.objects.get(turn=turn)


# Who may be asked about


def test_what_is_kept_nowhere_is_not_shown_to_the_judge(
    alice: User, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}
    monkeypatch.setattr("clawweb.valkey.keep_text", lambda name, text: kept.update({name: text}))
    monkeypatch.setattr("clawweb.valkey.kept_text", lambda _: {"input": SAID})
    turn = make_turn(alice)
    aside = chat.open_turn(session=turn.session, parent=turn, messages=SAID, aside=True)
    assert (list(kept), has_judgement(turn)) == ([aside.public_id], False)


def test_a_chat_that_is_deleted_while_it_waits_is_not_shown_to_the_judge(
    alice: User, judge: Any
) -> None:
    row = waiting(alice)
    housekeeping.delete_session(row.turn.session)
    row = judged(row.turn)
    assert (row.state, row.error, judge.asked) == ("failed", NOT_JUDGED, [])


def test_words_that_are_gone_when_their_time_comes_are_not_asked_about(
    alice: User, judge: Any
) -> None:
    row = waiting(alice)
    Turn.objects.filter(pk=row.next_turn_id).update(input_messages=[])
    assert judgements.claim(row.pk) is None
    row.refresh_from_db()
    assert (row.state, row.error) == ("failed", NOT_JUDGED)


# Tool results that come one by one


def test_more_results_after_another_first_one_are_another_next_state(
    alice: User, judge: Any
) -> None:
    turn = make_turn(alice)
    first = tool_turn(turn, "first")
    tool_turn(turn, "another", "second")
    assert Judgement.objects.get().next_turn == first


def test_a_next_state_that_was_asked_about_in_vain_stays_what_it_was(
    alice: User, judge: Any
) -> None:
    turn = make_turn(alice)
    first = tool_turn(turn, "first")
    assert judgements.awaited(first) == Judgement.objects.get().pk
    judge.say = lambda asked: asked.refuse(503)
    assert judged(turn).state == "waiting"
    assert judgements.awaited(first) is None  # the sweep asks again
    tool_turn(turn, "first", "second")
    assert Judgement.objects.get().next_turn == first


# In which order, and how many at once


def test_who_waits_longest_is_asked_first_and_a_sweep_sends_so_many(
    alice: User, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    young, old = waiting(alice), waiting(alice)
    now_due()
    Judgement.objects.filter(pk=old.pk).update(try_at=timezone.now() - timedelta(hours=1))
    assert judgements.due() == [old.pk, young.pk]
    monkeypatch.setattr(judgements, "AT_ONCE", 1)
    assert judgements.due() == [old.pk]


# What a round leaves


@pytest.mark.parametrize("verdict", [{"again": True}, {"refused": True}, {}], ids=str)
def test_of_a_long_error_the_beginning_is_kept_and_open_pages_look_again(
    alice: User, judge: Any, monkeypatch: pytest.MonkeyPatch, verdict: dict[str, bool]
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(judgements, "changed", lambda *what: told.append(what))
    row = judgements.claim(waiting(alice).pk)
    assert row is not None
    ballots = [Ballot(error="v" * 1001)]
    judgements.record(row, Verdict(error="e" * 1001, **verdict), ballots)
    row.refresh_from_db()
    assert row.error == "e" * 1000
    assert row.votes == [{"score": None, "hint": "", "text": "", "error": "v" * 1000}]
    assert told == [(alice.pk, "receipt", row.turn.public_id)]


def test_who_trains_no_more_while_the_judge_reads_has_nothing_that_counts(
    alice: User, judge: Any
) -> None:
    row = judgements.claim(waiting(alice).pk)
    assert row is not None
    User.objects.filter(pk=alice.pk).update(consent=Consent.KEEP)
    assert judgements.record(row, Verdict(score=-1), []) is None
    assert TrainingSample.objects.get().drop_reason == DropReason.CONSENT


def test_what_waited_for_a_judge_that_is_gone_goes_on_waiting(
    alice: User, judge: Any, setting: Any
) -> None:
    row = waiting(alice)
    setting(judge_url="")
    assert judging.judge_reply(row.pk) is None
    assert (judgements.due(), judgements.awaited(row.next_turn)) == ([], None)
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("waiting", 0)


def test_a_worker_says_that_it_reads_and_when_it_has_read(
    alice: User, judge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(judging, "doing", said.append)
    judged(waiting(alice).turn)
    assert said == [sentences.READS, sentences.IDLE]


# What is said of the judge


def test_a_score_from_elsewhere_says_nothing_of_this_judge(alice: User, judge: Any) -> None:
    row = waiting(alice)
    judged(row.turn)
    up(row.turn)
    assert agreement(alice).of == 1
    Judgement.objects.update(judged_at=None)  # as an import leaves it
    assert agreement(alice).of == 0


def test_a_judge_that_answers_another_is_not_silent_while_the_first_is_asked_again(
    alice: User, judge: Any
) -> None:
    first, other = waiting(alice), waiting(alice)
    judge.say, says = (lambda asked: asked.refuse(503)), judge.say
    judged(first.turn)
    assert judge_is_silent()
    assert "does not answer" in judge_status(None)["words"]
    now_due()
    judgements.claim(first.pk)
    judge.say = says
    judged(other.turn)
    assert not judge_is_silent()


def test_the_judge_refused_only_what_it_was_asked(alice: User, judge: Any) -> None:
    row = waiting(alice)
    User.objects.filter(pk=alice.pk).update(consent=Consent.KEEP)
    assert judged(row.turn).state == "failed"
    assert judge_status(None)["refusal"] == ""
    User.objects.filter(pk=alice.pk).update(consent=Consent.TRAIN)
    judge.say = lambda asked: asked.refuse(401, "no such key")
    judged(waiting(User.objects.get(pk=alice.pk)).turn)
    assert "no such key" in judge_status(None)["refusal"]
    assert "refuses" in judge_status(None)["words"]


def test_a_judge_that_refused_and_is_silent_since_is_said_to_be_silent(
    alice: User, judge: Any
) -> None:
    """Everywhere: the list of what runs, and the pages that show `silent` first."""
    refused, silent = waiting(alice), waiting(alice)
    judge.say = lambda asked: asked.refuse(401, "no such key")
    judged(refused.turn)
    judge.say = lambda asked: asked.refuse(503)
    judged(silent.turn)
    status = judge_status(None)
    assert (status["silent"], "401" in status["refusal"]) == (True, True)
    assert "does not answer" in status["words"]


def test_a_judge_that_was_silent_for_a_day_did_not_refuse(alice: User, judge: Any) -> None:
    turn = waiting(alice).turn
    Judgement.objects.update(created_at=timezone.now() - timedelta(hours=25))
    judge.say = lambda asked: asked.refuse(503)
    row = judged(turn)
    assert (row.state, "503" in row.error) == ("failed", True)
    assert (judge_status(None)["refusal"], judge_status(None)["waiting"]) == ("", 0)
