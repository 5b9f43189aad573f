"""What my agent learned: the numbers, the notes, the pause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clawweb.models import (
    AdapterState,
    ChatSession,
    Event,
    FeedbackReason,
    SampleState,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.agent import (
    LikeRate,
    agent_status,
    funnel,
    like_rates,
    rated_turns,
    verdict,
    wilson,
)
from clawweb.selectors.complaints import complaints_of
from clawweb.selectors.learning import live_adapter, receipt
from clawweb.selectors.notes import notes_of
from clawweb.services import feedback, jobs, retention
from clawweb.services.accounts import pause_learning
from clawweb.services.notes import take_back_note
from tests.factories import claimed_job, down, make_adapter, make_turn, rated, up

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


def hint_of(turn: Turn) -> str:
    return TrainingSample.objects.filter(turn=turn).latest("id").hint


def learn(turns: list[Turn], version: int) -> None:
    """As after a job: these ratings are in a version."""
    adapter = make_adapter(turns[0].session.user, version, AdapterState.LIVE)
    TrainingSample.objects.filter(turn__in=turns).update(state=SampleState.TRAINED, adapter=adapter)


@pytest.mark.parametrize(
    ("liked", "votes", "low", "high"),
    [
        # Worked by hand with z = 1.96: n = 10, p = 0.8 gives 0.4902 to 0.9433
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilsons_interval(liked: int, votes: int, low: float, high: float) -> None:
    assert wilson(liked, votes) == pytest.approx((low, high), abs=1e-4)


def rate(version: int, liked: int, votes: int) -> LikeRate:
    return LikeRate(version=version, liked=liked, votes=votes)


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ([rate(0, 5, 20)], "nothing to compare"),
        ([rate(0, 2, 20), rate(1, 5, 9)], "Too few votes to compare v1 with the base model"),
        ([rate(0, 2, 20), rate(1, 18, 20)], "v1 is liked more than the base model"),
        ([rate(1, 18, 20), rate(2, 2, 20)], "v2 is liked less than v1"),
        ([rate(0, 10, 20), rate(1, 12, 20)], "No clear change from the base model to v1"),
    ],
)
def test_the_verdict_says_no_more_than_the_votes(rates: list[LikeRate], says: str) -> None:
    assert says in verdict(rates, answers=1)


@pytest.mark.parametrize("live", [1, 2])
def test_only_what_answers_now_can_be_rolled_back(alice: User, client: Client, live: int) -> None:
    for version in (1, 2):
        state = AdapterState.LIVE if version == live else AdapterState.STANDBY
        make_adapter(alice, version, state)
        for _ in range(10):
            turn = make_turn(alice, version=version)
            (up if version == 1 else down)(turn)
    client.force_login(alice)
    for said in (client.get("/agent/").text, client.get("/api/agent").json()["verdict"]):
        assert "v2 is liked less than v1." in said
        assert ("You can roll it back" in said) == (live == 2)


def test_the_newest_vote_of_each_reply_counts_for_the_version_that_wrote_it(alice: User) -> None:
    make_adapter(alice, 1, AdapterState.LIVE)
    changed_mind, liked = make_turn(alice), make_turn(alice)
    down(changed_mind)
    up(changed_mind)
    up(liked)
    down(make_turn(alice, version=1))
    up(make_turn(alice, version=1, turn_type="side"))
    up(make_turn(alice, asked="base"))
    feedback.rate_turn(turn=liked, author=alice, changes={"value": None})
    assert like_rates(alice) == [rate(0, 1, 1), rate(1, 0, 1)]


def test_notes_are_gathered_by_what_they_say(alice: User, bob: User) -> None:
    first, second = make_turn(alice), make_turn(alice)
    down(first)
    down(second)
    down(make_turn(bob))
    (note,) = notes_of(alice)
    assert (note.times, note.waits, note.version) == (2, True, None)
    assert note.text == hint_of(first)
    assert [said.turn for said in note.evidence] == [second.public_id, first.public_id]


def test_a_note_says_which_version_learned_it(alice: User) -> None:
    turn = make_turn(alice)
    down(turn)
    learn([turn], 3)
    (note,) = notes_of(alice)
    assert (note.version, note.waits) == (3, False)


def test_a_note_taken_back_leaves_the_thumb(alice: User) -> None:
    turns = [make_turn(alice), make_turn(alice)]
    for turn in turns:
        down(turn)
    kept = make_turn(alice)
    feedback.rate_turn(turn=kept, author=alice, changes={"value": -1, "comment": "Use metres."})
    assert take_back_note(user=alice, text=hint_of(turns[0])) == 2
    assert [note.text for note in notes_of(alice)] == ["Use metres."]
    ready = TrainingSample.objects.filter(turn__in=turns, state=SampleState.READY)
    assert [(sample.reward, sample.hint) for sample in ready] == [(-1, ""), (-1, "")]


def test_a_learned_note_that_is_taken_back_is_not_replayed(alice: User) -> None:
    turns = rated(alice, 1)
    learn(turns, 1)
    before = TrainingSample.objects.get(turn=turns[0])
    take_back_note(user=alice, text=before.hint)
    before.refresh_from_db()
    assert (before.state, before.replaced_by is not None) == (SampleState.TRAINED, True)
    assert notes_of(alice) == []


def test_a_learned_thumb_stands_when_its_words_are_taken_back(alice: User) -> None:
    turn = make_turn(alice)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": -1, "comment": "Use metres."})
    learn([turn], 1)
    assert take_back_note(user=alice, text="Use metres.") == 1
    said = receipt(turn)
    assert said is not None
    assert said["text"] == "learned in v1"
    assert notes_of(alice) == []


def test_taking_a_reason_back_leaves_those_that_are_out_of_use(alice: User) -> None:
    turn = make_turn(alice)
    feedback.rate_turn(
        turn=turn, author=alice, changes={"value": -1, "reasons": ["too_long", "too_formal"]}
    )
    FeedbackReason.objects.filter(slug="too_formal").update(active=False)
    take_back_note(user=alice, text=FeedbackReason.objects.get(slug="too_long").hint)
    assert [note.label for note in notes_of(alice)] == ["Too formal"]


def test_a_note_is_known_whatever_its_line_ends_are(alice: User) -> None:
    words = "Use metres.\r\nAlways."
    feedback.rate_turn(turn=make_turn(alice), author=alice, changes={"value": -1, "comment": words})
    assert take_back_note(user=alice, text=words.replace("\r", "")) == 1


def test_a_wish_that_teaches_nothing_replaces_none(alice: User) -> None:
    down(make_turn(alice), "too_long")
    down(make_turn(alice, asked="base"), "too_short")
    assert {note.label: note.replaced_by for note in notes_of(alice)} == {
        "Too long": "",
        "Too short": "",
    }
    down(make_turn(alice), "too_short")
    assert {note.label: note.replaced_by for note in notes_of(alice)} == {
        "Too long": "Too short",
        "Too short": "",
    }


def test_nobody_takes_back_what_another_said(alice: User, bob: User) -> None:
    turn = make_turn(bob)
    down(turn)
    assert take_back_note(user=alice, text=hint_of(turn)) == 0
    assert hint_of(turn)


def test_a_pause_keeps_ratings_and_starts_no_job(alice: User) -> None:
    pause_learning(user=alice, paused=True)
    rated(alice, 8)
    assert jobs.queue_batch(alice) is None
    assert jobs.users_with_batches() == []
    assert jobs.queue_job(user=alice, trigger="manual").state == "queued"


def test_after_a_pause_the_batch_starts(alice: User) -> None:
    pause_learning(user=alice, paused=True)
    rated(alice, 8)
    pause_learning(user=alice, paused=False)
    assert [user.pk for user in jobs.users_with_batches()] == [alice.pk]
    assert jobs.queue_batch(alice) is not None


def test_the_funnel_counts_what_is_left_at_each_stage(alice: User) -> None:
    turns = rated(alice, 3)
    learn(turns[:1], 1)
    up(make_turn(alice, asked="base"))  # cannot train
    back = make_turn(alice)
    for value in (1, None):  # a rating that was taken back is none
        feedback.rate_turn(turn=back, author=alice, changes={"value": value})
    assert [count for _, count in funnel(alice)] == [4, 3, 1, 1]


def test_unused_ratings_can_be_looked_at_alone(alice: User) -> None:
    rated(alice, 1)
    unused = make_turn(alice, asked="base")
    up(unused)
    assert [turn.pk for turn in rated_turns(alice, unused=True)] == [unused.pk]
    assert rated_turns(alice).count() == 2


def test_what_the_opposite_put_aside_is_among_the_unused_ratings(alice: User) -> None:
    old, new = make_turn(alice), make_turn(alice)
    down(old, "too_long")
    down(new, "too_short")
    assert not rated_turns(alice, unused=True)
    claimed_job(alice)
    assert list(rated_turns(alice, unused=True)) == [old]
    down(old, "too_long")  # said again
    assert not rated_turns(alice, unused=True)


def test_the_page_shows_notes_ranges_and_what_came_of_ratings(client: Client, alice: User) -> None:
    client.force_login(alice)
    assert "it learns from your ratings" in client.get("/agent/").content.decode()
    turn = make_turn(alice)
    feedback.rate_turn(
        turn=turn,
        author=alice,
        changes={"value": -1, "comment": "No <b>tables</b>.", "correction": "A list."},
    )
    page = client.get("/agent/").content.decode()
    assert "No &lt;b&gt;tables&lt;/b&gt;." in page
    assert "waits for the next training" in page
    assert "Wanted instead: A list." in page
    assert 'class="range"' in page
    assert "counted (1 of 8)" in page


def test_the_next_page_of_ratings_opens_at_them(
    client: Client, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand below all else on the page."""
    monkeypatch.setattr("clawweb.views.agent.PER_PAGE", 1)
    rated(alice, 2)
    client.force_login(alice)
    assert 'href="?page=2#ratings" rel="next"' in client.get("/agent/").content.decode()
    other = client.get("/agent/?page=2").content.decode()
    assert 'href="?page=1#ratings" rel="prev"' in other


def test_a_comment_alone_is_not_said_to_be_taken_back(client: Client, alice: User) -> None:
    client.force_login(alice)
    turn = make_turn(alice)
    feedback.rate_turn(turn=turn, author=alice, changes={"comment": "Hm, odd."})
    part = client.get("/parts/ratings/").content.decode()
    assert "Hm, odd." in part
    assert "taken back" not in part
    up(turn)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": None})
    assert "taken back" in client.get("/parts/ratings/").content.decode()


def test_the_page_shows_nothing_of_others(client: Client, alice: User, bob: User) -> None:
    client.force_login(alice)
    turn = make_turn(bob, "a question of Bob's")
    feedback.rate_turn(turn=turn, author=bob, changes={"value": -1, "comment": "Bob's note"})
    for path in ("/agent/", "/parts/learned/", "/parts/ratings/", "/api/agent"):
        assert "Bob" not in client.get(path).content.decode()


def test_the_api_pauses_and_takes_back(client: Client, alice: User) -> None:
    client.force_login(alice)
    turn = make_turn(alice)
    down(turn)
    json = "application/json"
    paused = client.post("/api/agent/pause", {"paused": "true"}, content_type=json)
    assert paused.json() == {"paused": True}
    status = client.get("/api/agent").json()
    assert (status["paused"], [note["times"] for note in status["notes"]]) == (True, [1])
    body = {"text": status["notes"][0]["text"]}
    taken = client.post("/api/agent/notes/take-back", body, content_type=json)
    assert taken.json() == {"ratings": 1}
    assert client.get("/api/agent").json()["notes"] == []


def test_versions_of_another_installation_are_none_of_ours(alice: User) -> None:
    make_adapter(alice, 1, AdapterState.LIVE)
    for _ in range(3):
        down(make_turn(alice, version=1, adapter=None))  # as they are brought in
    assert agent_status(alice)["struggles"] == 0
    assert like_rates(alice) == []
    assert len(complaints_of(alice, live_adapter(alice))) == 3


@pytest.mark.parametrize("address", ["/agent/", "/adapters/"])
def test_a_version_that_does_not_fit_is_not_said_to_answer(
    client: Client, alice: User, address: str
) -> None:
    down(make_turn(alice))
    version = make_adapter(alice, 1, AdapterState.LIVE, base_hash="another")
    Event.objects.create(user=alice, kind="adapter_live", adapter=version)
    client.force_login(alice)
    page = client.get(address).content.decode()
    assert "v1 does not fit the model that is served" in page
    assert "Version 1 answers" not in page
    assert "answers now" not in page.replace("in what answers now", "")


def test_what_the_agents_history_tells_stays(alice: User, setting: Any) -> None:
    version = make_adapter(alice, 1)
    kinds = ["adapter_live", "adapter_rolled_back", "adapter_refused", "adapter_registered"]
    for kind in kinds:
        Event.objects.create(user=alice, kind=kind, adapter=version)
    Event.objects.update(at=timezone.now() - timedelta(days=30))
    setting(keep_events_days=7)
    assert retention.apply()["events"] == 1
    assert list(Event.objects.order_by("id").values_list("kind", flat=True)) == kinds[:3]


def test_more_ratings_than_a_training_needs_are_not_so_many_of_those(
    client: Client, alice: User
) -> None:
    """On a phone, too, where there is room for few words."""
    rated(alice, 9)
    client.force_login(alice)
    page = client.get("/parts/agent/").text
    assert "9 ratings are ready for the next training" in page
    assert ("9 ready" in page, "9 of 8" in page) == (True, False)


def test_one_rating_is_not_spoken_of_as_several(client: Client, alice: User) -> None:
    client.force_login(alice)
    up(make_turn(alice))
    pages = {path: client.get(path).text for path in ("/jobs/", "/adapters/", "/agent/")}
    assert "Training starts by itself at 8 ratings; there is 1." in pages["/jobs/"]
    assert "trained after 8 ratings; there is 1." in pages["/adapters/"]
    assert "The next training starts at 8 ratings; there is 1." in pages["/agent/"]
    pause_learning(user=alice, paused=True)
    assert "Learning is paused; 1 rating waits" in client.get("/chat/").text


@pytest.mark.parametrize(
    ("ahead", "day"), [("-420", "Today"), ("0", "Yesterday"), ("x", "Yesterday")]
)
def test_today_is_the_day_where_the_browser_is(
    client: Client, alice: User, monkeypatch: pytest.MonkeyPatch, ahead: str, day: str
) -> None:
    client.force_login(alice)
    session = make_turn(alice).session
    used = datetime(2026, 3, 9, 20, tzinfo=UTC)  # 13 o'clock in Los Angeles
    ChatSession.objects.filter(pk=session.pk).update(updated_at=used)
    monkeypatch.setattr(timezone, "now", lambda: used + timedelta(hours=6))
    client.cookies["ahead"] = ahead
    assert f'<h2 class="day">{day}</h2>' in client.get("/parts/sessions/").text


@pytest.mark.parametrize(("count", "more"), [(20, False), (21, True)])
def test_the_page_leads_to_the_chats_that_it_does_not_show(
    alice: User, client: Client, count: int, more: bool
) -> None:
    client.force_login(alice)
    learn(rated(alice, count), 1)
    page = client.get("/parts/forget/").content.decode()
    assert (page.count('aria-label="Forget '), "?receipt=learned" in page) == (20, more)
