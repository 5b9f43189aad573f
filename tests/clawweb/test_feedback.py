"""Ratings: what is appended, what sample it makes, what the receipt says."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clawweb.models import Consent, Feedback, FeedbackReason, SampleState, TrainingSample, Turn
from clawweb.selectors.chat import latest_feedback, turn_of
from clawweb.selectors.learning import receipt
from clawweb.services import feedback, jobs
from clawweb.services.errors import (
    Contradiction,
    NothingToRate,
    NotRecorded,
    UnknownReason,
)
from rollouts.types import SamplingParams
from tests.factories import down, make_adapter, make_turn, up
from training.heard import names_kind

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def rate(turn: Turn, **changes: Any) -> dict[str, Any] | None:
    feedback.rate_turn(turn=turn, author=turn.session.user, changes=changes)
    return receipt(turn_of(turn.session.user, turn.public_id))


def test_a_thumb_with_a_reason_counts_at_once(alice):
    said = rate(make_turn(alice), value=-1, reasons=["too_long"])
    assert said is not None
    assert (said["state"], said["count"]) == ("counted", {"have": 1, "need": 8})


def test_the_reasons_sentence_is_the_hint_and_a_later_edit_does_not_change_it(alice):
    turn = make_turn(alice)
    rate(turn, value=-1, reasons=["too_long"])
    FeedbackReason.objects.filter(slug="too_long").update(hint="something else")
    sample = TrainingSample.objects.get()
    assert sample.hint.startswith("Please answer in one or two short sentences")
    assert sample.feedback.reasons[0]["hint"] == sample.hint


def test_what_a_reason_asks_for_is_meant_for_all_requests():
    said = FeedbackReason.objects.exclude(hint="").values_list("hint", flat=True)
    assert len(said) > 5
    assert [hint for hint in said if names_kind(hint)] == []


def test_a_bare_thumb_down_settles_only_when_its_time_has_come(alice):
    turn = make_turn(alice)
    assert rate(turn, value=-1)["state"] == "saved"
    assert feedback.settle_due() == []
    TrainingSample.objects.update(settles_at=timezone.now() - timedelta(seconds=1))
    assert feedback.settle_due() == [alice]
    assert receipt(turn_of(alice, turn.public_id))["state"] == "counted"


@pytest.mark.parametrize(
    "changes",
    [
        {"reasons": ["too_long"]},
        {"comment": "shorter"},
        {"correction": "Boil water."},
        {"final": True},
    ],
)
def test_what_explains_a_thumb_down_settles_it_at_once(alice, changes):
    turn = make_turn(alice)
    rate(turn, value=-1)
    assert rate(turn, **changes)["state"] == "counted"
    assert TrainingSample.objects.filter(state=SampleState.READY).count() == 1


def test_the_same_thumb_again_gives_more_time_and_appends_nothing(alice):
    turn = make_turn(alice)
    rate(turn, value=-1)
    TrainingSample.objects.update(settles_at=timezone.now() - timedelta(seconds=1))
    assert rate(turn, value=-1)["state"] == "saved"
    assert feedback.settle_due() == []
    assert (Feedback.objects.count(), TrainingSample.objects.count()) == (1, 1)


def test_what_a_job_claimed_meanwhile_is_not_settled_again(alice, monkeypatch):
    turn = make_turn(alice)
    rate(turn, value=-1)
    settle = feedback.settle

    def overtaken(sample: TrainingSample) -> None:
        settle(sample)
        TrainingSample.objects.update(state=SampleState.CLAIMED)

    monkeypatch.setattr(feedback, "settle", overtaken)
    rate(turn, final=True)
    assert TrainingSample.objects.get().state == SampleState.CLAIMED


def test_a_comment_before_the_vote_explains_it(alice):
    turn = make_turn(alice)
    rate(turn, comment="too long")
    assert rate(turn, value=-1)["state"] == "counted"
    assert TrainingSample.objects.get(state=SampleState.READY).hint == "too long"


def test_a_thumb_up_settles_at_once(alice):
    assert rate(make_turn(alice), value=1)["state"] == "counted"


def test_feedback_is_append_only_and_the_newest_row_counts(alice):
    turn = make_turn(alice, adapter_name="abcdefab-u1-v3-00000003")
    rate(turn, value=1)
    said = rate(turn, value=-1, comment="too dry")
    assert Feedback.objects.count() == 2
    assert said["state"] == "counted"
    states = list(TrainingSample.objects.values_list("state", "reward"))
    assert states == [("superseded", 1), ("ready", -1)]
    about = (turn.adapter_name, hashlib.sha256(b"a reply").hexdigest(), "ui")
    for row in Feedback.objects.all():  # what was rated is known, whatever becomes of the reply
        assert (row.adapter_name, row.content_hash, row.source) == about


def test_fields_left_out_keep_their_last_value(alice):
    turn = make_turn(alice)
    rate(turn, value=-1, reasons=["too_long"])
    rate(turn, comment="really")
    newest = Feedback.objects.order_by("-id")[0]
    assert (newest.value, newest.comment, newest.reasons[0]["slug"]) == (-1, "really", "too_long")


def test_a_vote_the_other_way_clears_what_explained_the_old_one(alice):
    turn = make_turn(alice)
    rate(turn, value=-1, reasons=["too_long"], comment="no")
    rate(turn, value=1)
    newest = Feedback.objects.order_by("-id")[0]
    assert (newest.value, newest.comment, newest.reasons) == (1, "", [])
    assert TrainingSample.objects.order_by("-id")[0].hint == ""


def test_who_says_nothing_of_an_unrated_reply_has_not_rated_it(alice):
    turn = make_turn(alice)
    for said in ({}, {"value": None}, {"reasons": [], "comment": " "}, {"final": True}):
        assert rate(turn, **said) is None
    assert not turn.feedback.exists()
    rate(turn, value=1)
    rate(turn)
    assert latest_feedback(turn).value == 1


def test_who_writes_the_reply_itself_corrects_nothing(alice):
    turn = make_turn(alice, reply="Boil it. \n")
    said = feedback.rate_turn(turn=turn, author=alice, changes={"correction": " Boil it."})
    assert said is None
    assert not turn.samples.exists()
    liked = feedback.rate_turn(
        turn=turn, author=alice, changes={"value": 1, "correction": "Boil it."}
    )
    assert (liked.value, turn.samples.get().reward) == (1, 1)
    endless = make_turn(alice, reply="word " * 1000)
    said = feedback.rate_turn(
        turn=endless, author=alice, changes={"value": 1, "correction": endless.reply}
    )
    assert said.correction == ""


def test_what_was_wanted_instead_of_a_call_stays_when_more_is_said(alice):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turn = make_turn(alice, reply="", tool_calls=[call])
    rate(turn, correction="Which of the two do you mean?")
    rate(turn, reasons=["too_long"])
    assert latest_feedback(turn).correction == "Which of the two do you mean?"
    rate(turn, correction="")
    assert latest_feedback(turn).correction == ""


def test_a_correction_without_a_vote_is_a_vote_down(alice):
    rate(make_turn(alice), correction="Boil water, add tea.")
    sample = TrainingSample.objects.get()
    assert (sample.reward, sample.correction) == (-1, "Boil water, add tea.")


@pytest.mark.usefixtures("valkey_server", "engine")
def test_a_long_reply_can_be_corrected(client, alice):
    turn = make_turn(alice, reply="word " * 1000)
    client.force_login(alice)
    body = {"value": -1, "correction": f"First: {turn.reply}"}
    path = f"/api/turns/{turn.public_id}/feedback"
    assert client.post(path, body, content_type="application/json").status_code == 200
    assert TrainingSample.objects.get().correction == body["correction"].strip()


def test_saying_the_same_again_makes_no_second_sample(alice):
    turn = make_turn(alice)
    rate(turn, value=-1, reasons=["too_long"])
    jobs.claim_job(jobs.queue_job(user=alice).public_id)
    rate(turn, final=True)
    rate(turn, value=-1, reasons=["too_long"])
    assert TrainingSample.objects.count() == 1
    assert Feedback.objects.count() == 3


def test_praise_is_no_instruction(alice):
    rate(make_turn(alice), value=1, comment="great, thanks")
    assert TrainingSample.objects.get().hint == ""


@pytest.mark.parametrize("changes", [{"reasons": ["too_long"]}, {"correction": "x"}])
def test_a_thumb_up_with_a_complaint_is_a_contradiction(alice, changes):
    with pytest.raises(Contradiction):
        rate(make_turn(alice), value=1, **changes)


def test_a_complaint_after_a_thumb_up_is_a_thumb_down(alice):
    turn = make_turn(alice)
    rate(turn, value=1)
    rate(turn, reasons=["too_long"])
    assert TrainingSample.objects.order_by("-id")[0].reward == -1


@pytest.mark.parametrize("changes", [{"reasons": ["too_long"]}, {"correction": "Tea."}])
def test_a_complaint_after_a_thumb_up_leaves_its_praise_behind(alice, changes):
    turn = make_turn(alice)
    rate(turn, value=1, comment="Great answer, thank you!")
    rate(turn, **changes)
    newest = TrainingSample.objects.latest("id")
    assert (newest.reward, newest.feedback.comment) == (-1, "")
    assert "Great" not in newest.hint
    rate(said_with_it := make_turn(alice), value=1, comment="Great!")
    rate(said_with_it, comment="No, wrong.", **changes)
    assert "No, wrong." in TrainingSample.objects.latest("id").hint


def test_a_comment_without_a_vote_is_kept_by_a_complaint(alice):
    rate(turn := make_turn(alice), comment="Say it in metres.")
    rate(turn, reasons=["too_long"])
    assert TrainingSample.objects.latest("id").hint.endswith("Say it in metres.")


def test_taking_a_rating_back_withdraws_its_sample(alice):
    turn = make_turn(alice)
    rate(turn, value=-1, reasons=["too_long"])
    assert rate(turn, value=None)["state"] == "withdrawn"
    assert not TrainingSample.objects.filter(state=SampleState.READY).exists()


def test_an_unknown_reason_is_refused_with_the_known_ones_named(alice):
    with pytest.raises(UnknownReason, match="too_long"):
        rate(make_turn(alice), value=-1, reasons=["too_purple"])
    assert Feedback.objects.count() == 0


def test_an_unfinished_reply_cannot_be_rated(alice):
    with pytest.raises(NothingToRate):
        rate(make_turn(alice, state="streaming"), value=1)


def test_a_turn_that_was_not_recorded_cannot_be_rated(alice):
    turn = make_turn(alice)
    turn.recorded = False
    with pytest.raises(NotRecorded):
        rate(turn, value=1)


GREEDY = {"sampling": {"temperature": 0.0}, "logprobs": None}


@pytest.mark.parametrize(
    ("values", "changes", "reason"),
    [
        ({}, {"value": 1}, ""),
        ({"asked": "base"}, {"value": 1}, "base_requested"),
        ({"asked": "agent@v1"}, {"value": 1}, "base_requested"),
        ({"turn_type": "side"}, {"value": 1}, "side_turn"),
        ({"fallback": "v1 could not be loaded"}, {"value": 1}, "fallback"),
        ({"logprobs": None}, {"value": 1}, "no_logprobs"),
        ({"logprobs": [-0.5]}, {"value": 1}, "no_logprobs"),
        ({"state": "interrupted"}, {"value": 1}, "no_logprobs"),
        ({"prompt_ids": [1] * 1023}, {"value": 1}, "too_long"),
        ({"prompt_ids": [1] * 1022}, {"value": 1}, ""),
        (GREEDY, {"value": 1}, "greedy"),
        (GREEDY, {"value": -1, "reasons": ["too_long"]}, ""),
        ({"state": "stopped"}, {"value": 1}, ""),
        ({}, {"comment": "hm"}, "no_signal"),
    ],
)
def test_what_does_not_train_says_why(alice, values, changes, reason):
    said = rate(make_turn(alice, **values), **changes)
    assert (said["state"], said["drop_reason"]) == (
        ("not_used", reason) if reason else ("counted", None)
    )


def test_top_p_below_one_has_no_behaviour_logprobs_and_needs_a_hint(alice):
    turn = make_turn(alice, params=SamplingParams(top_p=0.9), logprobs=None)
    assert rate(turn, value=1)["drop_reason"] == "greedy"


@pytest.mark.parametrize("consent", [Consent.KEEP, Consent.NOTHING])
def test_without_consent_nothing_trains(alice, consent):
    turn = make_turn(alice)
    alice.consent = consent
    alice.save()
    assert rate(turn_of(alice, turn.public_id), value=1)["drop_reason"] == "consent"


@pytest.mark.parametrize("why", [{"correction": "Six metres."}, {"reasons": ["too_long"]}])
def test_a_complaint_that_names_no_vote_is_a_thumb_down(alice, why):
    said = rate(turn := make_turn(alice), value=None, comment="", **why)
    assert said["state"] == "counted"
    assert turn.samples.get().reward == -1


def test_of_two_reasons_that_contradict_each_other_the_newer_one_holds(alice):
    turn = make_turn(alice)
    kept = []
    for slugs in (
        ["too_long", "too_formal"],
        ["too_short", "too_formal", "too_long"],  # as the page shows them, in its order
        ["too_casual", "too_short", "too_formal"],
        ["no_lists", "wrong", "use_lists"],  # said at once: the last
        [],
    ):
        rate(turn, value=-1, reasons=slugs)
        kept.append([reason["slug"] for reason in latest_feedback(turn).reasons])
    assert kept == [
        ["too_long", "too_formal"],
        ["too_short", "too_formal"],
        ["too_casual", "too_short"],
        ["wrong", "use_lists"],
        [],
    ]


def test_a_reason_that_is_not_in_use_any_more_stays_where_it_was_ticked(alice):
    turn = make_turn(alice)
    feedback.rate_turn(
        turn=turn, author=alice, changes={"value": -1, "reasons": ["too_long", "too_formal"]}
    )
    FeedbackReason.objects.filter(slug="too_formal").update(active=False)
    FeedbackReason.objects.filter(slug="too_long").update(hint="Other words.")
    before = latest_feedback(turn).reasons
    rate(turn, reasons=["too_long", "too_formal", "no_lists"])
    assert latest_feedback(turn).reasons[:2] == before
    rate(turn, value=1)  # clears them; "Undo" has them back
    rate(turn, value=-1, reasons=["too_long", "too_formal"])
    assert latest_feedback(turn).reasons == [
        {"slug": "too_long", "hint": "Other words."},
        before[1],
    ]
    with pytest.raises(UnknownReason, match="too_formal"):
        rate(make_turn(alice), reasons=["too_formal"])


def test_nothing_is_held_back_before_the_first_version(alice):
    for _ in range(10):
        up(make_turn(alice))
    assert not TrainingSample.objects.filter(held_back=True).exists()


def test_then_every_fifth_is_held_back_in_a_window_of_eight(alice):
    make_adapter(alice, 1, "live")
    for _ in range(50):
        down(make_turn(alice, version=1))
    held = list(TrainingSample.objects.filter(held_back=True).values_list("id", flat=True))
    first = TrainingSample.objects.order_by("id")[0].pk
    assert held == [first + place - 1 for place in range(15, 51, 5)]
    released = TrainingSample.objects.get(pk=first + 4)
    assert receipt(released.turn)["state"] == "counted"
    assert released.was_held_back
    assert receipt(TrainingSample.objects.get(pk=held[0]).turn)["state"] == "held_back"
