"""Notes that are taken back, and chats kept out, while a job has their ratings."""

from __future__ import annotations

import pytest
from django.utils import timezone

from clawweb.models import AdapterVersion, ChatSession, JobState, SampleState, Turn
from clawweb.selectors.learning import adapter_json, ready_samples, receipt
from clawweb.services import feedback, finishing, jobs, retyping, versions
from clawweb.services.accounts import set_consent
from clawweb.services.feedback import HELD_BACK_EVERY
from clawweb.services.notes import take_back_note
from clawweb.views.versions import _learned
from tests.factories import (
    claimed_job,
    comment,
    down,
    hint_of,
    in_state,
    make_adapter,
    make_turn,
    rated,
    up,
)

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def test_a_note_taken_back_before_the_job_trains_is_no_part_of_it(alice):
    turn, kept = make_turn(alice), make_turn(alice)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": -1, "comment": "Use metres."})
    down(kept)
    job = claimed_job(alice)
    take_back_note(user=alice, text="Use metres.")
    finishing.leave_out_withdrawn(job)
    assert [s.turn for s in jobs.samples_of(job)] == [kept]
    assert rows_of(turn) == [("superseded", "Use metres."), ("ready", "")]


def test_a_note_taken_back_while_its_job_trains_counts_no_second_time(alice):
    turn = make_turn(alice)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": -1, "comment": "Use metres."})
    job = claimed_job(alice)
    finishing.leave_out_withdrawn(job)  # it trains
    assert take_back_note(user=alice, text="Use metres.") == 1
    assert receipt(turn)["state"] == "in_training"
    finishing.give_back_untrained(job, [row.pk for row in jobs.samples_of(job)])
    assert [s.turn for s in jobs.samples_of(job)] == [turn]
    live = make_adapter(alice, 1, "live")
    jobs.end_job(job, state=JobState.DEPLOYED, learned=live)
    assert rows_of(turn) == [("trained", "Use metres."), ("trained", "")]
    assert receipt(turn)["text"] == "learned in v1"
    assert adapter_json(live)["samples"] == 1  # one rating, whatever rows it has


@pytest.mark.parametrize("end", ["fails", "not reached", "dropped", "waits for log-probs"])
def test_what_is_left_of_a_rating_that_did_not_train_counts(alice, end):
    turn = make_turn(alice)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": -1, "comment": "Use metres."})
    job = claimed_job(alice)
    (sample,) = jobs.samples_of(job)
    take_back_note(user=alice, text="Use metres.")
    if end == "not reached":
        finishing.give_back_untrained(job, ())
    elif end != "fails":
        why = "hint_no_effect" if end == "dropped" else "no_logprobs"
        finishing.drop_samples(job, {sample.pk: why})
    jobs.end_job(job, state=JobState.FAILED, reason="because")
    first = "dropped" if end == "dropped" else "superseded"
    assert rows_of(turn) == [(first, "Use metres."), ("ready", "")]


@pytest.mark.parametrize("change", ["locked", "deleted_at"])
def test_a_chat_that_is_kept_out_or_deleted_before_the_job_trains_is_no_part_of_it(alice, change):
    gone, kept = make_turn(alice), make_turn(alice)
    for turn in (gone, kept):
        down(turn)
    job = claimed_job(alice)
    value = True if change == "locked" else timezone.now()
    ChatSession.objects.filter(pk=gone.session_id).update(**{change: value})
    finishing.leave_out_withdrawn(job)
    assert [s.turn for s in jobs.samples_of(job)] == [kept]
    assert ready_samples(alice).count() == 0


def rows_of(turn):
    return list(turn.samples.order_by("id").values_list("state", "hint"))


@pytest.mark.parametrize("first", ["taken back", "noted"])
def test_what_is_left_of_a_rating_is_learned_as_the_rest_of_it_was(alice, first):
    turn = make_turn(alice)
    said = {"value": -1, "reasons": ["too_long"], "comment": "When I cook, use metres."}
    feedback.rate_turn(turn=turn, author=alice, changes=said)
    job = claimed_job(alice)
    (sample,) = jobs.samples_of(job)
    steps = [
        lambda: take_back_note(user=alice, text=hint_of("too_long")),
        lambda: finishing.note_unheard(job, {sample.pk}, distils=True),
    ]
    for step in steps if first == "taken back" else reversed(steps):
        step()
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    assert receipt(turn)["text"] == "learned in v1 by its thumb alone"
    assert _learned(alice)[AdapterVersion.objects.get().pk]["disliked"] == 1


def test_a_thumb_whose_note_was_taken_back_is_no_thumb_alone_later(alice):
    turn = comment(alice, "When I cook, use metres.")
    job = claimed_job(alice)
    finishing.note_unheard(job, [row.pk for row in jobs.samples_of(job)], distils=True)
    take_back_note(user=alice, text="When I cook, use metres.")
    jobs.end_job(job, state=JobState.REFUSED, reason="because")
    again = claimed_job(alice)
    finishing.note_unheard(again, (), distils=True)
    jobs.end_job(again, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    assert receipt(turn)["text"] == "learned in v1"


def test_what_is_left_of_a_taken_rating_is_not_kept_for_the_gate(alice):
    make_adapter(alice, 1, "live")
    for _ in range(HELD_BACK_EVERY - 2):
        up(make_turn(alice, version=1))
    turn = comment(alice, "Use metres.", version=1)
    job = claimed_job(alice)
    take_back_note(user=alice, text="Use metres.")  # the fifth row
    assert list(turn.samples.values_list("state", "held_back")) == [("claimed", False)] * 2
    assert job.job_samples.filter(sample__turn=turn).count() == 1


@pytest.mark.parametrize("trains", [False, True])
def test_a_rating_that_is_changed_and_then_taken_back_is_taken_back(alice, trains):
    turn, kept = rated(alice, 2)
    job = claimed_job(alice)
    if trains:
        finishing.leave_out_withdrawn(job)
    for value in (1, -1, None):
        feedback.rate_turn(turn=turn, author=alice, changes={"value": value})
    if not trains:
        finishing.leave_out_withdrawn(job)
    assert [s.turn for s in jobs.samples_of(job)] == ([turn, kept] if trains else [kept])
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    text = "taken back, but learned in v1" if trains else "taken back"
    assert receipt(turn)["text"] == text  # no newer rating replaces it


def test_what_was_taken_back_too_late_says_what_learned_it_also_once_that_is_left(alice, engine):
    turn = make_turn(alice)
    down(turn)
    job = claimed_job(alice)
    finishing.leave_out_withdrawn(job)  # it trains
    feedback.rate_turn(turn=turn, author=alice, changes={"value": None})
    live = make_adapter(alice, 1, "live", forgot_at=timezone.now())
    jobs.end_job(job, state=JobState.DEPLOYED, learned=live)
    assert versions.leave_behind(alice) is None
    assert receipt(turn)["text"] == "taken back, but learned in v1 (rolled back)"


@pytest.mark.parametrize("since", ["consent", "side"])
def test_what_is_left_stays_learned_though_it_would_train_no_more(alice, since):
    turn = make_turn(alice)
    said = {"value": -1, "reasons": ["too_long"], "comment": "Use metres."}
    feedback.rate_turn(turn=turn, author=alice, changes=said)
    in_state(turn, SampleState.TRAINED, adapter=make_adapter(alice, 1, "live"))
    if since == "consent":
        set_consent(user=alice, consent="keep")
        alice.refresh_from_db()
    else:
        retyping.set_turn_type(turn=turn, turn_type="side")
    turn = Turn.objects.get(pk=turn.pk)
    take_back_note(user=alice, text="Use metres.")
    assert receipt(turn)["text"] == "learned in v1"
    assert receipt(turn)["drop_reason"] is None
