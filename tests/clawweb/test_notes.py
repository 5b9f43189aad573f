"""What it seems to have learned: wishes gathered, with their evidence and what came of them."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from django.test import Client
from django.utils import timezone

from clawweb.models import (
    AdapterState,
    AdapterVersion,
    ChatSession,
    Event,
    SampleState,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.agent import funnel, reigns
from clawweb.selectors.chat import latest_feedback
from clawweb.selectors.hints import learned_samples
from clawweb.selectors.notes import Effect, notes_of, stubborn_reasons
from clawweb.services import feedback
from clawweb.services.notes import take_back_note
from tests.factories import down, make_adapter, make_turn, up
from tests.recorded import brought_in

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


def say(
    user: User,
    comment: str = "",
    *reasons: str,
    correction: str = "",
    by: AdapterVersion | None = None,
) -> Turn:
    turn = make_turn(user, adapter=by, version=by.version if by else 0)
    said = {"value": -1, "comment": comment, "reasons": list(reasons), "correction": correction}
    feedback.rate_turn(turn=turn, author=user, changes=said)
    return turn


def learn(turns: list[Turn], adapter: AdapterVersion) -> None:
    rows = TrainingSample.objects.filter(turn__in=turns)
    rows.update(state=SampleState.TRAINED, adapter=adapter)


def test_a_rating_that_says_two_things_is_evidence_for_both(alice: User) -> None:
    say(alice, "Use metres.", "too_long")
    say(alice, "", "too_long", correction="Six metres.")
    counted = {(note.way, note.label): note.times for note in notes_of(alice)}
    assert counted == {("reason", "Too long"): 2, ("comment", ""): 1, ("correction", ""): 1}


def test_free_words_are_one_wish_in_any_case_and_spacing(alice: User) -> None:
    say(alice, "Use metres.")
    say(alice, "use   METRES!")
    (note,) = notes_of(alice)
    assert (note.text, note.times) == ("use   METRES!", 2)


def test_each_wish_says_how_much_of_it_is_learned_waits_or_is_not_used(alice: User) -> None:
    first, second, gone, _ = (say(alice, "Use metres.") for _ in range(4))
    v1 = make_adapter(alice, 1, AdapterState.STANDBY)
    v2 = make_adapter(alice, 2, AdapterState.LIVE, parent=v1)
    back = make_adapter(alice, 3, AdapterState.STANDBY, rolled_back_at=timezone.now())
    learn([first], v1)  # what a version's parents learned it knows
    learn([second], v2)
    learn([gone], back)
    (note,) = notes_of(alice)
    assert (note.learned, note.waiting, note.left, note.unused, note.version) == (2, 1, 1, 0, 2)
    assert [said.state for said in note.evidence] == ["waiting", "left", "learned", "learned"]


def test_a_wish_that_thumbs_alone_could_teach_says_so(client: Client, alice: User) -> None:
    client.force_login(alice)
    first, second = say(alice, "When I cook, use metres."), say(alice, "When I cook, use metres.")
    learn([first, second], make_adapter(alice, 1, AdapterState.LIVE))
    for count, turns in enumerate([[first], [first, second]], start=1):
        TrainingSample.objects.filter(turn__in=turns).update(by_thumb=True)
        (note,) = notes_of(alice)
        assert note.by_thumb == (count == 2)  # one of them was heard
        page = client.get("/agent/").content.decode()
        assert ("by thumbs alone" in page) == note.by_thumb
        assert "learned in v1" in page
    # What a version had distilled that was rolled back since is gone.
    gone = make_adapter(alice, 2, AdapterState.STANDBY, rolled_back_at=timezone.now())
    learn([say(alice, "When I cook, use metres.")], gone)
    assert notes_of(alice)[0].by_thumb


def test_a_note_does_not_wait_for_a_training_that_it_is_no_part_of(
    client: Client, alice: User
) -> None:
    client.force_login(alice)
    aside, out = say(alice, "Use metres."), say(alice, "Use metres.")
    TrainingSample.objects.filter(turn=aside).update(held_back=True)
    ChatSession.objects.filter(pk=out.session_id).update(locked=True)
    (note,) = notes_of(alice)
    assert (note.waits, note.aside, note.unused) == (False, 2, 0)
    assert [said.state for said in note.evidence] == ["out", "aside"]
    page = client.get("/agent/").content.decode()
    assert "waits for the next training" not in page
    for words in ("2 not in the next training", "its chat is kept out of training"):
        assert words in page
    TrainingSample.objects.filter(turn=out).update(state=SampleState.CLAIMED)  # it trains already
    assert notes_of(alice)[0].waits


def test_what_a_version_learned_that_stands_aside_is_not_in_what_answers(alice: User) -> None:
    turn = say(alice, "Use metres.")
    live = make_adapter(alice, 1, AdapterState.LIVE)
    learn([turn], live)
    assert dict(funnel(alice))["in what answers now"] == 1
    AdapterVersion.objects.filter(pk=live.pk).update(base_hash="another")
    (note,) = notes_of(alice)
    assert (note.learned, note.left, note.version) == (0, 1, 1)
    assert dict(funnel(alice))["in what answers now"] == 0


def test_after_a_rollback_a_wish_was_learned_and_not_unused(client: Client, alice: User) -> None:
    turn, unused = say(alice, "Use metres."), say(alice, "Use metres.")
    learn([turn], make_adapter(alice, 1, AdapterState.STANDBY, rolled_back_at=timezone.now()))
    TrainingSample.objects.filter(turn=unused).update(
        state=SampleState.DROPPED, drop_reason="too_long"
    )
    (note,) = notes_of(alice)
    assert (note.learned, note.left, note.unused, note.left_version) == (0, 1, 1, 1)
    client.force_login(alice)
    page = client.get("/agent/").content.decode()
    assert "learned in v1 (rolled back)</span>" in page
    assert "1 in what does not answer now, 1 not used" in page


def test_the_newest_wish_of_an_axis_replaces_those_of_other_poles(alice: User) -> None:
    say(alice, "", "too_long")
    say(alice, "", "too_short")
    replaced = {note.label: note.replaced_by for note in notes_of(alice)}
    assert replaced == {"Too short": "", "Too long": "Too short"}
    say(alice, "", "too_long")
    replaced = {note.label: note.replaced_by for note in notes_of(alice)}
    assert replaced == {"Too long": "", "Too short": "Too long"}


def test_a_wish_in_ones_own_words_replaces_and_is_replaced(alice: User) -> None:
    say(alice, "Use metres.")
    say(alice, "", "too_long")
    say(alice, "More detail, please.")
    replaced = {note.label or note.text: note.replaced_by for note in notes_of(alice)}
    assert replaced == {
        "More detail, please.": "", "Too long": "More detail, please.", "Use metres.": "",
    }  # fmt: skip
    say(alice, "No, keep it short!")
    replaced = {note.label or note.text: note.replaced_by for note in notes_of(alice)}
    assert replaced.pop("More detail, please.") == "No, keep it short!"
    assert set(replaced.values()) == {""}  # "Too long" holds again


def test_what_is_said_in_one_breath_replaces_nothing(alice: User) -> None:
    say(alice, "More detail, please.", "too_long")
    assert [note.replaced_by for note in notes_of(alice)] == ["", ""]


def test_a_wish_that_a_job_put_aside_for_a_newer_one_is_still_shown(alice: User) -> None:
    turn = say(alice, "", "too_long")
    TrainingSample.objects.filter(turn=turn).update(state=SampleState.SUPERSEDED)
    say(alice, "", "too_short")
    assert [note.label for note in notes_of(alice)] == ["Too short", "Too long"]


def test_one_wish_is_taken_back_and_what_else_was_said_stays(alice: User, bob: User) -> None:
    turn = say(alice, "Use metres.", "too_long")
    say(bob, "Use metres.")
    assert take_back_note(user=alice, text="Use metres.") == 1
    said = latest_feedback(turn)
    assert (said.value, said.comment, [r["slug"] for r in said.reasons]) == (-1, "", ["too_long"])
    (note,) = notes_of(alice)
    assert take_back_note(user=alice, text=note.text) == 1
    assert notes_of(alice) == []
    assert len(notes_of(bob)) == 1


def test_what_is_left_of_a_learned_rating_is_not_learned_again(alice: User) -> None:
    version = make_adapter(alice, 1, AdapterState.LIVE)
    two, one = say(alice, "Use metres.", "too_long"), say(alice, "Use metres.")
    learn([two, one], version)
    assert take_back_note(user=alice, text="Use metres.") == 2
    left = [turn.samples.latest("id") for turn in (two, one)]
    assert [(sample.state, bool(sample.hint)) for sample in left] == [
        (SampleState.TRAINED, True),
        (SampleState.TRAINED, False),  # the thumb
    ]
    assert [sample for sample in learned_samples(version) if sample.teaches] == left[:1]
    assert len(notes_of(alice)) == 1


def test_a_correction_is_taken_back(alice: User) -> None:
    turn = say(alice, correction="Six metres.")
    take_back_note(user=alice, text="Six metres.")
    assert latest_feedback(turn).correction == ""


def test_the_page_shows_the_evidence(client: Client, alice: User) -> None:
    client.force_login(alice)
    say(alice, "", "too_long")
    turn = say(alice, "", "too_short")
    page = client.get("/agent/").content.decode()
    assert f"/sessions/{turn.session.public_id}/#{turn.public_id}" in page
    assert "replaced by your newer “Too short”" in page
    say(alice, "Shorter! <i> </i>")
    assert "“Shorter! &lt;i&gt; &lt;/i&gt;”" in client.get("/agent/").content.decode()


def test_a_wish_shows_how_often_it_was_said_before_it_was_learned_and_since(
    client: Client, alice: User
) -> None:
    v1, v2 = (make_adapter(alice, n, AdapterState.STANDBY) for n in (1, 2))
    v3 = make_adapter(alice, 3, AdapterState.LIVE, parent=v1)  # v2 is of no use to it
    learn([say(alice, "", "too_long"), say(alice, "", "too_long")], v1)
    say(alice, "", "too_short")
    for version in (v1, v2, v3):
        up(make_turn(alice, adapter=version, version=version.version))
    say(alice, "", "too_long", by=v2)
    say(alice, "Use metres.", "too_long", by=v3)
    say(alice, "Use metres.", by=v3)  # nobody has learned that
    found = {note.label or note.text: note.effect for note in notes_of(alice)}
    assert found.pop("Too long") == Effect(
        before=2, rated_before=3, since=1, rated_since=4, written_since=False
    )
    assert set(found.values()) == {None}
    client.force_login(alice)
    page = client.get("/agent/").content.decode()
    assert page.count("you said it of 2 of 3 rated replies, since of 1 of 4.") == 1
    assert "Words alone" not in page


def test_who_says_in_vain_what_was_learned_is_asked_to_write_a_reply(
    client: Client, alice: User
) -> None:
    client.force_login(alice)
    v1 = make_adapter(alice, 1, AdapterState.LIVE)
    learn([say(alice, "Use metres.", "too_long")], v1)
    turns = [say(alice, "Use metres.", "too_long", by=v1) for _ in range(3)]
    chat = f"/chat/{turns[0].session.public_id}/"

    def asks(path: str) -> bool:
        return "what you change is learned word by word" in client.get(path).content.decode()

    assert stubborn_reasons(alice) == {"too_long"}
    assert [note.wants_writing for note in notes_of(alice)] == [True, True]
    assert asks("/agent/")
    assert asks(chat)
    for _ in range(3):  # half of the replies keep it: it is on its way
        up(make_turn(alice, adapter=v1, version=1))
    assert not asks("/agent/")
    assert not asks(chat)
    say(alice, "", "too_long", by=v1)
    assert asks(chat)
    say(alice, "", "too_short", by=v1)  # they changed their mind, and back again
    assert not asks(chat)
    say(alice, "", "too_long", by=v1)
    assert asks(chat)
    say(alice, "", "too_long", correction="Six metres.", by=v1)  # written already
    assert not asks(chat)


def test_who_asks_for_what_no_version_passes_the_gate_with_is_asked_to_write_a_reply(
    client: Client, alice: User
) -> None:
    client.force_login(alice)
    turns = [say(alice, "", "too_long") for _ in range(3)]
    rows = TrainingSample.objects.filter(turn__in=turns)

    def asks() -> list[bool]:
        words = ("did not pass their tests. Under the next reply", "Your agent was told this")
        paths = ("/agent/", f"/chat/{turns[0].session.public_id}/")
        return [
            word in client.get(path).content.decode()
            for word, path in zip(words, paths, strict=True)
        ]

    assert asks() == [False, False]
    rows.filter(turn__in=turns[1:]).update(state="dropped", drop_reason="refused")
    assert asks() == [False, False]
    rows.update(state="dropped", drop_reason="refused")
    assert asks() == [True, True]
    v1 = make_adapter(alice, 1, AdapterState.LIVE)
    learn([more := say(alice, "", "too_long")], v1)  # it passed at last
    assert asks() == [False, False]
    learn([more], make_adapter(alice, 2, AdapterState.STANDBY, rolled_back_at=timezone.now()))
    assert asks() == [True, True]
    say(alice, "", "too_long", correction="Six metres.")  # written already
    assert asks() == [False, False]


# What answered when


def event(adapter: AdapterVersion, kind: str, minute: int) -> None:
    row = Event.objects.create(user=adapter.user, kind=f"adapter_{kind}", adapter=adapter)
    Event.objects.filter(pk=row.pk).update(at=timezone.now() + timedelta(minutes=minute))


def test_reigns_follow_each_other(alice: User) -> None:
    down(make_turn(alice))
    v1, v2 = (make_adapter(alice, n) for n in (1, 2))
    event(v1, "live", 10)
    event(v2, "live", 20)
    event(v2, "rolled_back", 30)
    event(v1, "live", 30)
    event(v1, "rolled_back", 40)
    found = reigns(alice)
    assert [(r.version, r.rolled_back) for r in found] == [
        (0, False),
        (1, False),
        (2, True),
        (1, True),
        (0, False),
    ]
    assert found[-1].until is None
    assert all(a.until <= b.since for a, b in pairwise(found))


def test_what_came_in_from_elsewhere_was_answered_by_nobody_here(alice: User) -> None:
    long_ago = (timezone.now() - timedelta(days=900)).isoformat()
    session = {"type": "session", "version": 1, "id": "s"}
    turn = {"type": "turn", "version": 1, "id": "t", "session": "s", "reply": "an old reply"}
    brought_in(alice, [session, {**turn, "created_at": long_ago, "finished_at": long_ago}])
    first = make_turn(alice)
    event(make_adapter(alice, 1), "live", 10)
    base, _v1 = reigns(alice)
    assert (base.version, base.since) == (0, first.created_at)


def test_without_versions_there_is_no_timeline(alice: User, bob: User) -> None:
    event(make_adapter(bob, 1), "live", 0)
    make_turn(alice)
    assert reigns(alice) == []
