"""What a note counts and leaves out, which one replaces which, and which are asked in writing."""

from __future__ import annotations

import pytest
from django.utils import timezone

from clawweb.models import (
    AdapterState,
    ChatSession,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
)
from clawweb.selectors import notes
from clawweb.selectors.notes import notes_of, stubborn_reasons
from clawweb.services import feedback
from clawweb.services.notes import take_back_note
from tests.factories import comment, down, in_state, make_adapter, make_turn, up

pytestmark = pytest.mark.django_db


def say(user, *reasons, by=None, **changes):
    turn = make_turn(user, adapter=by, version=by.version if by else 0)
    said = {"value": -1, "reasons": list(reasons), "final": True, **changes}
    feedback.rate_turn(turn=turn, author=user, changes=said)
    return turn


def learn(turn, adapter, **values):
    in_state(turn, SampleState.TRAINED, adapter=adapter, **values)


def delete(turn):
    ChatSession.objects.filter(pk=turn.session_id).update(deleted_at=timezone.now())


def replaced(user):
    return {note.label or note.text: note.replaced_by for note in notes_of(user)}


# Which are asked to be written


@pytest.fixture
def vain(alice):
    """Too long, as alice said in vain of each reply of the version that learned it."""
    live = make_adapter(alice, 1, AdapterState.LIVE)
    learn(say(alice, "too_long"), live)
    for _ in range(3):
        say(alice, "too_long", by=live)
    assert stubborn_reasons(alice) == {"too_long"}
    return live


def test_who_changed_their_mind_is_not_asked_to_write_what_they_wanted_before(alice, vain):
    say(alice, "too_short", by=vain)  # three of four replies were still too long
    assert stubborn_reasons(alice) == set()


def test_what_thumbs_alone_taught_is_not_asked_for_in_writing(alice, vain):
    TrainingSample.objects.filter(adapter=vain).update(by_thumb=True)
    assert stubborn_reasons(alice) == set()


def test_a_chat_looks_among_the_newest_ratings_alone(alice, vain, monkeypatch):
    monkeypatch.setattr(notes, "RECENT", 3)
    comment(alice, "Use metres.")
    assert stubborn_reasons(alice) == set()


def test_what_a_version_that_stands_aside_has_learned_passed_the_gate(alice):
    for _ in range(3):
        in_state(say(alice, "too_long"), SampleState.DROPPED, drop_reason="refused")
    assert stubborn_reasons(alice) == {"too_long"}
    learn(say(alice, "too_long"), make_adapter(alice, 1))
    assert stubborn_reasons(alice) == set()


# What counts


def test_a_wish_of_a_deleted_chat_is_not_shown_and_can_be_taken_back(alice):
    delete(comment(alice, "Use metres."))
    assert notes_of(alice) == []
    assert take_back_note(user=alice, text="Use metres.") == 1


@pytest.mark.parametrize(("one", "other"), [("Use metres…", "use metres"), ("STRASSE", "Straße")])
def test_free_words_are_one_wish_however_they_are_written(alice, one, other):
    comment(alice, one)
    comment(alice, other)
    assert [note.times for note in notes_of(alice)] == [2]


def test_what_came_of_a_wish_counts_rated_replies_of_ones_own_versions_that_are_there(alice):
    live = make_adapter(alice, 1, AdapterState.LIVE)
    learn(say(alice, "too_long"), live)
    of_live = {"adapter": live, "version": 1}
    up(gone := make_turn(alice, **of_live))
    delete(gone)
    elsewhere = {"adapter": None, "version": 3}
    up(make_turn(alice, **elsewhere))
    down(make_turn(alice, **elsewhere), "too_long")
    (note,) = notes_of(alice)
    assert (note.effect.before, note.effect.rated_before) == (1, 1)
    assert (note.effect.since, note.effect.rated_since) == (0, 0)


def test_what_came_of_a_wish_counts_since_the_first_version_that_learned_it(alice):
    first = make_adapter(alice, 1)
    live = make_adapter(alice, 2, AdapterState.LIVE, parent=first)
    learn(say(alice, "too_long"), first)
    learn(say(alice, "too_long", by=first), live)
    (note,) = notes_of(alice)
    assert (note.effect.before, note.effect.since) == (1, 1)


def test_of_versions_that_were_rolled_back_the_newest_is_named(alice):
    for version in (1, 2):
        learn(
            comment(alice, "Use metres."),
            make_adapter(alice, version, rolled_back_at=timezone.now()),
        )
    (note,) = notes_of(alice)
    assert note.left_version == 2


def test_the_method_left_words_aside_only_where_it_did_so_each_time(alice):
    live = make_adapter(alice, 1, AdapterState.LIVE)
    for method, by_method in (("kto", True), ("combine", False)):
        job = TrainingJob.objects.create(user=alice, state=JobState.DEPLOYED, method=method)
        learn(comment(alice, "Use metres."), live, by_thumb=True, job=job)
        (note,) = notes_of(alice)
        assert (note.by_thumb, note.by_method) == (True, by_method)


def test_a_wish_shows_the_newest_places_alone(alice):
    turns = [comment(alice, "Use metres.") for _ in range(notes.SHOWN + 1)]
    (note,) = notes_of(alice)
    assert note.times == len(turns)
    assert [said.turn for said in note.evidence] == [turn.public_id for turn in reversed(turns[1:])]


# Which replaces which


def test_a_wish_is_as_new_as_its_newest_rating_that_teaches(alice):
    say(alice, "too_long")
    say(alice, "too_short")
    in_state(say(alice, "too_long"), SampleState.DROPPED, drop_reason="stale")
    assert replaced(alice) == {"Too long": "Too short", "Too short": ""}


def test_the_newest_of_those_that_replace_a_wish_is_named_and_not_at_length(alice):
    say(alice, "too_long")
    comment(alice, "More detail, please.")
    say(alice, "too_short")
    assert replaced(alice)["Too long"] == "Too short"
    comment(alice, "More detail! " * 9)
    assert len(replaced(alice)["Too long"]) == 60
