"""What contradicts what: whose wishes, of which versions, since when; what is replayed of them."""

from __future__ import annotations

import pytest
from django.utils import timezone

from clawweb.models import AdapterState, ChatSession, JobState, SampleState
from clawweb.selectors.hints import MOST_CHARACTERS, hints_to_prompt
from clawweb.selectors.learning import receipt
from clawweb.selectors.notes import notes_of
from clawweb.services import feedback, finishing, housekeeping, jobs, retyping
from clawweb.services.notes import take_back_note
from tests.clawweb.test_claims import put_aside as claimed_beside
from tests.factories import (
    claimed_job,
    comment,
    down,
    hint_of,
    in_state,
    make_adapter,
    make_turn,
    up,
)
from training.config import REPLAYED

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def trains(job, role="new"):
    return [sample.turn for sample in jobs.samples_of(job, role)]


def put_aside(user):
    """A rating that a job put aside for a newer one, which counts again."""
    old, new, job = claimed_beside(user)
    jobs.end_job(job, state=JobState.FAILED)
    assert receipt(old)["state"] == "superseded"
    return old, new


def take_back(turn):
    feedback.rate_turn(turn=turn, author=turn.session.user, changes={"value": None})


# Whose


def test_nobody_contradicts_anothers_wish(alice, bob):
    down(hers := make_turn(alice), "too_long")
    down(make_turn(bob), "too_short")
    assert trains(claimed_job(alice)) == [hers]


def test_what_others_say_does_not_keep_aside_what_is_contradicted_no_more(alice, bob):
    old, new = put_aside(alice)
    down(make_turn(bob), "too_short")
    take_back(new)
    assert receipt(old)["state"] == "counted"


def test_what_others_take_back_lets_nothing_count_again(alice, bob):
    old, _ = put_aside(alice)
    take_back(put_aside(bob)[1])
    assert receipt(old)["state"] == "superseded"


def test_what_was_put_aside_does_not_count_again_once_its_chat_is_deleted(alice):
    old, new = put_aside(alice)
    ChatSession.objects.filter(pk=old.session_id).update(deleted_at=timezone.now())
    take_back(new)
    assert receipt(old)["state"] == "superseded"


@pytest.mark.parametrize("goes", ["side", "locked", "deleted"])
def test_a_wish_that_teaches_nothing_any_more_keeps_nothing_aside(alice, goes):
    old, new = put_aside(alice)
    if goes == "side":
        retyping.set_turn_type(turn=new, turn_type="side")
    elif goes == "locked":
        housekeeping.edit_session(new.session, locked=True)
    else:
        housekeeping.delete_session(new.session)
    assert receipt(old)["state"] == "counted"


def test_what_is_back_contradicts_again_what_is_older(alice):
    old, new = put_aside(alice)
    housekeeping.delete_session(new.session)
    housekeeping.restore_session(new.session)
    assert trains(claimed_job(alice)) == [new]
    assert receipt(old)["state"] == "superseded"


def test_a_wish_that_a_version_left_behind_learned_puts_nothing_aside(alice):
    down(old := make_turn(alice), "too_long")
    down(newer := make_turn(alice), "too_short")
    gone = make_adapter(alice, 1, rolled_back_at=timezone.now())
    in_state(newer, SampleState.TRAINED, adapter=gone)
    assert trains(claimed_job(alice)) == [old]


# Since when


def test_a_like_is_as_new_as_the_last_time_that_what_it_followed_was_said(alice):
    followed = make_turn(alice, prompted_hints=[hint_of("too_long")])
    down(make_turn(alice), "too_long")
    down(against := make_turn(alice), "too_short")
    down(make_turn(alice), "too_long")
    up(followed)
    claimed_job(alice)
    assert receipt(followed)["state"] == "in_training"
    assert receipt(against)["state"] == "superseded"


def test_a_like_of_what_followed_more_than_was_contradicted_stays(alice):
    words = "Be brief. My name is Sam."
    in_state(comment(alice, words), SampleState.DROPPED)
    up(followed := make_turn(alice, prompted_hints=[words]))
    down(newer := make_turn(alice), "too_short")
    assert trains(claimed_job(alice)) == [followed, newer]


def mixed(user, reason, words):
    turn = make_turn(user)
    said = {"value": -1, "reasons": [reason], "comment": words}
    feedback.rate_turn(turn=turn, author=user, changes=said)
    return turn


def test_what_is_left_of_a_rating_asks_no_more_for_what_was_contradicted(alice):
    down(oldest := make_turn(alice), "too_short")
    old = mixed(alice, "too_long", "And always mention the sources.")
    down(newest := make_turn(alice), "too_short")
    assert trains(claimed_job(alice)) == [oldest, old, newest]


def test_what_is_left_of_a_rating_contradicts_what_is_older(alice):
    oldest = comment(alice, "Use feet.")
    old = mixed(alice, "too_long", "Use metres. My name is Sam.")
    down(newest := make_turn(alice), "too_short")
    assert trains(claimed_job(alice)) == [old, newest]
    assert receipt(oldest)["state"] == "superseded"


def test_what_was_learned_between_two_open_wishes_contradicts_the_older_one(eager):
    down(make_turn(eager), "too_short")
    down(learned := make_turn(eager), "too_long")
    in_state(learned, SampleState.TRAINED, adapter=make_adapter(eager, 1, "live"))
    down(make_turn(eager), "no_lists")
    assert hints_to_prompt(eager) == [hint_of("no_lists")]


def test_hints_may_take_all_the_room_there_is(eager):
    for letter in "ab":
        comment(eager, letter * (MOST_CHARACTERS // 2))
    assert len(hints_to_prompt(eager)) == 2


# Replayed


def learned_by_live(user, *turns):
    live = make_adapter(user, 1, "live")
    for turn in turns:
        in_state(turn, SampleState.TRAINED, adapter=live)


def test_what_was_contradicted_since_takes_no_place_of_what_still_teaches(alice):
    version = make_adapter(alice, 1, AdapterState.LIVE)
    still = [comment(alice, "Say hello.")]
    for _ in range(REPLAYED):
        down(turn := make_turn(alice, version=1), "too_short")
        still.append(turn)
    for turn in still:
        in_state(turn, SampleState.TRAINED, adapter=version)
    for _ in range(2):  # one may be held back for the gate
        down(make_turn(alice, version=1), "too_long")
    assert still[0] in trains(claimed_job(alice, method="opd"), "replay")


def test_what_was_written_instead_is_replayed(alice):
    corrected = make_turn(alice)
    feedback.rate_turn(turn=corrected, author=alice, changes={"correction": "Six metres."})
    assert corrected.samples.get().hint == ""
    up(liked := make_turn(alice))
    learned_by_live(alice, corrected, liked)
    down(make_turn(alice, version=1), "too_long")
    assert trains(claimed_job(alice, method="opd"), "replay") == [corrected, liked]


def test_a_job_of_thumbs_is_reminded_of_hints_where_some_were_learned(alice, monkeypatch):
    monkeypatch.setattr("clawweb.selectors.hints.THUMBS_REPLAYED", 1)
    down(hinted := make_turn(alice), "too_long")
    thumbs = [make_turn(alice) for _ in range(2)]
    for turn in thumbs:
        up(turn)
    learned_by_live(alice, hinted, *thumbs)
    up(make_turn(alice, version=1))
    assert hinted in trains(claimed_job(alice), "replay")


@pytest.mark.parametrize("how", ["taken back", "dropped", "said again"])
def test_what_was_put_aside_in_part_counts_whole_again(alice, how):
    old, new = make_turn(alice), make_turn(alice)
    both = {"reasons": ["too_long"], "comment": "Always mention the sources.", "correction": "Six."}
    feedback.rate_turn(turn=old, author=alice, changes=both)
    down(new, "too_short")
    job = claimed_job(alice)
    assert words_of(old) == ("Always mention the sources.", "")
    if how == "dropped":
        finishing.drop_samples(job, {new.samples.get().pk: "hint_no_effect"})
    jobs.end_job(job, state=JobState.FAILED)
    if how == "taken back":
        assert words_of(old) == ("Always mention the sources.", "")
        take_back(new)
    if how == "said again":
        feedback.rate_turn(turn=old, author=alice, changes=both)
    assert words_of(old) == (f"{hint_of('too_long')} Always mention the sources.", "Six.")
    assert receipt(old)["state"] == "counted"


def words_of(turn):
    return turn.samples.order_by("-id").values_list("hint", "correction")[0]


# Since when, where something of it was taken back


def said_before(user):
    """A rating that says two things and more, and a newer one against one of them."""
    old, new = make_turn(user), make_turn(user)
    said = {"reasons": ["too_long"], "comment": "Use metres.", "correction": "Six metres."}
    feedback.rate_turn(turn=old, author=user, changes=said)
    down(new, "too_short")
    return old, new


def take_back_the_rest(user):
    for text in ("Use metres.", "Six metres."):
        assert take_back_note(user=user, text=text) == 1


def test_what_is_left_of_a_rating_is_no_newer_than_that_was(alice):
    old, new = said_before(alice)
    take_back_the_rest(alice)
    over = {note.text: note.replaced_by for note in notes_of(alice)}
    assert over == {hint_of("too_long"): "Too short", hint_of("too_short"): ""}
    job = claimed_job(alice)
    assert trains(job) == [new]
    jobs.end_job(job, state=JobState.FAILED)
    assert receipt(old)["state"] == "superseded"
    down(old, "too_long")  # said again
    assert trains(claimed_job(alice)) == [old]


def test_nor_where_a_version_has_learned_it(alice):
    old, new = said_before(alice)
    live = make_adapter(alice, 1, "live")
    in_state(old, SampleState.TRAINED, adapter=live)
    take_back_the_rest(alice)
    job = claimed_job(alice)
    assert (trains(job), trains(job, "replay")) == ([new], [])


def test_nor_for_the_prompt_nor_through_a_reply_that_followed_it(eager):
    _, new = said_before(eager)
    in_state(new, SampleState.TRAINED, adapter=make_adapter(eager, 1, "live"))
    take_back_the_rest(eager)
    assert hints_to_prompt(eager) == []
    up(make_turn(eager, version=1, prompted_hints=[hint_of("too_long")]))
    job = claimed_job(eager)
    assert trains(job, "replay") == [new]
    assert trains(job) == []
