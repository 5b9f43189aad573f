"""The inspector's reads: filters, the map, a session in numbers."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from clawweb.models import (
    ChatSession,
    FeedbackReason,
    SampleState,
    SavedView,
    TrainingSample,
    Turn,
    TurnState,
    User,
)
from clawweb.selectors import inspector
from clawweb.selectors.inspector import Filters, sessions_where, stats_of, ticks_of
from clawweb.services import comparisons, feedback, sessions
from clawweb.services.imports import Import
from clawweb.services.saved_views import MOST, save_view
from tests.factories import down, in_state, make_adapter, make_turn, up

pytestmark = pytest.mark.usefixtures("db", "valkey_server", "engine")


@pytest.fixture
def as_alice(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def corrected(turn: Turn) -> None:
    changes = {"value": -1, "correction": "what I wanted"}
    feedback.rate_turn(turn=turn, author=turn.session.user, changes=changes)


def with_sample(user: User, state: str, **values: Any) -> Turn:
    turn = make_turn(user)
    down(turn)
    TrainingSample.objects.filter(turn=turn).update(state=state, **values)
    return turn


def found(user: User, **filters: Any) -> set[int]:
    return set(sessions_where(user, Filters(**filters)).values_list("pk", flat=True))


# Filters


def test_each_filter_finds_the_sessions_it_names(alice: User, bob: User) -> None:
    """One turn for each filter, in a session of its own; the same of Bob's is never found."""
    ids: dict[str, int] = {}
    for user in (bob, alice):
        made = {
            "plain": make_turn(user, "about rain", reply="wet"),
            "liked": make_turn(user),
            "disliked": make_turn(user),
            "corrected": make_turn(user),
            "learned": with_sample(user, SampleState.TRAINED),
            "kept aside": with_sample(user, SampleState.READY, held_back=True),
            "put aside": with_sample(user, SampleState.READY),
            "version": make_turn(user, version=3),
            "api": make_turn(user, source="api"),
        }
        up(made["liked"])
        down(made["disliked"], "too_short")
        corrected(made["corrected"])
        in_state(made["put aside"], SampleState.SUPERSEDED)
        ids = {name: turn.session_id for name, turn in made.items()}
    assert found(alice) == set(ids.values())
    assert found(alice, words="RAIN") == found(alice, words="wet") == {ids["plain"]}
    assert found(alice, vote="liked") == {ids["liked"]}
    rated = ("learned", "kept aside", "put aside")
    bad = {ids[name] for name in ("disliked", "corrected", *rated)}
    assert found(alice, vote="disliked") == bad
    assert found(alice, reason="too_short") == {ids["disliked"]}
    assert found(alice, corrected=True) == {ids["corrected"]}
    assert found(alice, receipt="learned") == {ids["learned"]}
    assert found(alice, receipt="held_back") == {ids["kept aside"]}
    assert found(alice, receipt="superseded") == {ids["put aside"]}
    assert ids["kept aside"] not in found(alice, receipt="counted")
    assert found(alice, version=3) == {ids["version"]}
    assert found(alice, version=0) == set(ids.values()) - {ids["version"]}
    assert found(alice, source="api") == {ids["api"]}


def test_what_was_said_last_counts(alice: User) -> None:
    turn = make_turn(alice)
    down(turn, "too_long")
    up(turn)
    assert found(alice, vote="disliked") == found(alice, reason="too_long") == set()
    assert found(alice, vote="liked") == {turn.session_id}


def test_filters_about_turns_must_fit_one_turn(alice: User) -> None:
    first = make_turn(alice, "about rain")
    up(first)
    down(make_turn(alice, "about snow", session=first.session, parent=first))
    assert found(alice, vote="liked", words="snow") == set()
    assert found(alice, vote="disliked", words="snow") == {first.session_id}


def test_a_session_is_found_by_any_day_on_which_it_was_in_use(alice: User) -> None:
    """A long one overlaps the days asked for, though it began before and ended after them."""
    now = timezone.now()
    session = make_turn(alice).session
    ChatSession.objects.filter(pk=session.pk).update(
        created_at=now - timedelta(days=20), updated_at=now - timedelta(days=10)
    )

    def day(ago: int) -> Any:
        return (timezone.localtime(now) - timedelta(days=ago)).date()

    assert found(alice, since=day(16), until=day(14)) == {session.pk}
    assert found(alice, since=day(10)) == found(alice, until=day(20)) == {session.pk}
    assert found(alice, since=day(9)) == found(alice, until=day(21)) == set()
    assert found(alice, since=date.min, until=date.max) == {session.pk}  # which no day follows


def test_a_temporary_chat_is_in_no_list(alice: User) -> None:
    turn = make_turn(alice)
    ChatSession.objects.filter(pk=turn.session_id).update(temporary=True)
    assert found(alice) == set()


def test_a_version_that_is_compared_blind_is_not_found_by_its_number(
    alice: User, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawweb.services.serving.serve", lambda _: None)
    make_adapter(alice, 1, "live")
    turn = make_turn(alice, version=1)
    assert found(alice, version=1) == {turn.session_id}
    comparisons.open_comparison(turn=turn, other="base")
    assert found(alice, version=1) == set()


def test_the_strip_counts_the_turns_of_what_is_listed(alice: User, bob: User) -> None:
    up(make_turn(bob))
    up(make_turn(alice))
    corrected(make_turn(alice))
    with_sample(alice, SampleState.TRAINED)
    make_turn(alice, session=make_turn(alice).session, turn_type="side")  # in the background
    assert stats_of(sessions_where(alice, Filters())) == {
        "sessions": 4, "turns": 4, "liked": 1, "disliked": 2, "corrected": 1, "learned": 1,
    }  # fmt: skip
    liked = stats_of(sessions_where(alice, Filters(vote="liked")))
    assert (liked["sessions"], liked["turns"], liked["learned"]) == (1, 1, 0)


def test_the_list_asks_as_much_of_the_database_for_thirty_sessions_as_for_one(
    as_alice: Client, alice: User, django_assert_max_num_queries: Any
) -> None:
    for _ in range(3):
        up(make_turn(alice))
    with django_assert_max_num_queries(20) as few:
        as_alice.get("/sessions/")
    for _ in range(20):
        corrected(make_turn(alice))
    with django_assert_max_num_queries(len(few)):
        html = as_alice.get("/sessions/?vote=disliked&corrected=on").content.decode()
    assert html.count("1 corrected") == 20


@pytest.mark.parametrize(
    "query", ["version=x", "vote=maybe", "since=yesterday", "receipt=%00", "reason=no_such"]
)
def test_what_the_address_says_wrongly_is_said_to_be_wrong(
    as_alice: Client, alice: User, query: str
) -> None:
    make_turn(alice, "about rain")
    html = as_alice.get(f"/sessions/?{query}").content.decode()
    assert "field-error" in html
    assert "about rain" in html  # it asks for nothing then


@pytest.mark.parametrize(
    ("ahead", "query"), [("60", "since=0001-01-01"), ("-300", "until=9999-12-31")]
)
def test_the_ends_of_the_calendar_are_days_wherever_the_browser_is(
    as_alice: Client, alice: User, ahead: str, query: str
) -> None:
    """In UTC it is the year before the first by then, or the one after the last."""
    make_turn(alice, "about rain")
    as_alice.cookies["ahead"] = ahead
    assert "about rain" in as_alice.get(f"/sessions/?{query}").content.decode()


# Saved views


def test_a_view_is_saved_opened_and_deleted(as_alice: Client, alice: User, bob: User) -> None:
    theirs = save_view(user=bob, page="sessions", name="Bob's", query="vote=liked")
    up(make_turn(alice))
    query = "vote=liked&source=ui"
    page = as_alice.post("/sessions/views/", {"name": " Good  ones ", "query": query}, follow=True)
    assert page.redirect_chain[-1][0] == f"/sessions/?{query}"
    html = page.content.decode()
    assert f'href="?{escape(query)}" aria-current="true">Good ones<' in html
    assert "Bob&#x27;s" not in html
    as_alice.post("/sessions/views/", {"drop": theirs.pk})
    mine = SavedView.objects.get(user=alice)
    left = as_alice.post("/sessions/views/", {"drop": mine.pk})
    assert left.url == f"/sessions/?{query}"  # its filters stay, to be saved again
    assert list(SavedView.objects.values_list("name", flat=True)) == ["Bob's"]


def test_a_view_by_a_reason_that_is_out_of_use_shows_what_it_did(
    as_alice: Client, alice: User
) -> None:
    down(make_turn(alice, "about rain"), "too_short")
    up(make_turn(alice, "about snow"))
    FeedbackReason.objects.filter(slug__in=["too_short", "too_long"]).update(active=False)
    html = as_alice.get("/sessions/?reason=too_short").content.decode()
    assert "about rain" in html
    assert "about snow" not in html
    assert 'value="too_short" selected' in html
    assert 'value="too_long"' not in html


def test_a_view_of_the_same_name_is_replaced_and_there_is_an_end_to_them(alice: User) -> None:
    for number in range(MOST):
        save_view(user=alice, page="sessions", name=f"view {number}", query="a=1")
    assert save_view(user=alice, page="sessions", name="view 0", query="b=2").query == "b=2"
    with pytest.raises(Exception, match="Delete one first"):
        save_view(user=alice, page="sessions", name="one more", query="")
    with pytest.raises(Exception, match="a name"):
        save_view(user=alice, page="sessions", name="  ", query="")


# The map and the session in numbers


def test_the_map_has_a_tick_for_each_turn_with_what_is_noted(alice: User) -> None:
    session = sessions.open_session(user=alice)
    turns = [make_turn(alice, session=session) for _ in range(6)]
    up(turns[1])
    corrected(turns[2])
    down(turns[3])
    TrainingSample.objects.filter(turn=turns[3]).update(state="dropped", drop_reason="stale")
    Turn.objects.filter(pk=turns[4].pk).update(state=TurnState.FAILED)
    ticks = ticks_of(session, per_page=4)
    assert [tick.id for tick in ticks] == [turn.public_id for turn in turns]
    assert [tick.page for tick in ticks] == [1, 1, 1, 1, 2, 2]
    assert [tick.marks for tick in ticks] == [
        (), ("liked",), ("corrected", "disliked"), ("disliked", "dropped"), ("error",), (),
    ]  # fmt: skip


def test_a_long_sessions_plain_turns_are_drawn_together_page_by_page(
    alice: User, django_assert_num_queries: Any
) -> None:
    session = sessions.open_session(user=alice)
    Turn.objects.bulk_create(Turn(session=session, state="complete", reply="x") for _ in range(100))
    noted = session.turns.order_by("id")[40]
    up(noted)
    with django_assert_num_queries(4):
        ticks = ticks_of(session, per_page=30)
    assert [(t.page, t.number, t.until, t.mark) for t in ticks] == [
        (1, 1, 30, "plain"), (2, 31, 40, "plain"), (2, 41, 41, "liked"), (2, 42, 60, "plain"),
        (3, 61, 90, "plain"), (4, 91, 100, "plain"),
    ]  # fmt: skip


def test_links_lead_to_the_page_on_which_a_turn_is(as_alice: Client, alice: User) -> None:
    session = sessions.open_session(user=alice)
    Turn.objects.bulk_create(Turn(session=session, state="complete", reply="x") for _ in range(70))
    last = session.turns.order_by("id").last()
    path = f"/sessions/{session.public_id}/"
    html = as_alice.get(path).content.decode()
    assert re.search(r'href="\?page=3#turn-[^"]*" data-turn="[^"]*" title="Turns 61 to 70"', html)
    assert f'id="{last.public_id}"' not in html
    there = as_alice.get(f"{path}?turn={last.public_id}").content.decode()
    assert f'id="{last.public_id}"' in there
    pager = as_alice.get(f"{path}?turn={last.public_id}&page=1").content.decode()
    assert f'id="{last.public_id}"' not in pager  # whoever turns the page leaves the turn
    part = as_alice.get(f"/parts/sessions/{session.public_id}/map/?page=3").content.decode()
    assert f'href="#{session.turns.order_by("id")[60].public_id}"' in part


def test_a_session_in_numbers_leaves_out_what_was_not_counted(alice: User) -> None:
    session = sessions.open_session(user=alice)
    make_turn(alice, session=session, prompt_ids=None, response_ids=None, logprobs=None)
    assert inspector.session_facts(session)["written"] is None
    up(make_turn(alice, session=session, version=2, response_ids=[4, 5, 6]))
    facts = inspector.session_facts(session)
    assert (facts["read"], facts["written"], facts["versions"]) == (3, 3, [0, 2])
    assert (facts["turns"], facts["liked"], facts["disliked"]) == (2, 1, 0)


def test_a_learned_reply_is_told_without_a_dash(client: Client, alice: User) -> None:
    turn = with_sample(alice, SampleState.TRAINED)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": None})
    client.force_login(alice)
    rated = re.search(r'<td class="rated">(.*?)</td>', client.get("/sessions/").content.decode())
    assert rated is not None
    assert "1 learned" in rated[1]
    assert "–" not in rated[1]


def test_a_session_is_downloaded_as_lines_or_as_one_object(
    as_alice: Client, alice: User, bob: User
) -> None:
    turn = make_turn(alice, "what is rain?")
    down(turn)
    path = f"/sessions/{turn.session.public_id}/download"
    lines = as_alice.get(f"{path}.jsonl").content.decode().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["session", "turn"]
    answer = as_alice.get(f"{path}.json")
    whole = json.loads(answer.content)
    assert whole["session"]["id"] == turn.session.public_id
    assert [row["feedback"][0]["value"] for row in whole["turns"]] == [-1]
    assert answer["Content-Disposition"].endswith('.json"')
    reading, taken = Import(bob), Import(bob)
    reading.take_all(enumerate(answer.content.splitlines()))
    taken.take_all(enumerate(line.encode() for line in lines))
    assert (reading.report.sessions, taken.report.sessions) == (0, 1)
    assert "(as JSON it is for reading)" in as_alice.get("/data/").content.decode()
    theirs = make_turn(bob).session.public_id
    assert as_alice.get(f"/sessions/{theirs}/download.json").status_code == 404
    assert as_alice.get(f"/parts/sessions/{theirs}/map/").status_code == 404


def test_what_was_asked_where_an_earlier_turn_stands_leads_to_it(
    as_alice: Client, alice: User
) -> None:
    opening = make_turn(alice, "Tell me of bees.")
    session = opening.session
    make_turn(alice, "A title, please.", session=session, turn_type="side")
    more = make_turn(alice, "More.", session=session, parent=opening)
    again = make_turn(alice, "More.", session=session, parent=opening)
    edited = make_turn(alice, "Less.", session=session, parent=opening)
    after = make_turn(alice, "Thanks.", session=session, parent=edited)
    other = make_turn(alice, "Tell me of ants.", session=session)

    assert inspector.instead_of(session) == {
        again.pk: (3, more.public_id),
        edited.pk: (3, more.public_id),
        other.pk: (1, opening.public_id),
    }
    page = as_alice.get(f"/sessions/{session.public_id}/").content.decode()
    part = as_alice.get(f"/parts/turns/{edited.public_id}/").content.decode()
    chip = f'<a class="chip" href="#{more.public_id}">instead of turn 3</a>'
    assert page.count(chip) == 2
    assert chip in part
    assert "instead of" not in as_alice.get(f"/parts/turns/{after.public_id}/").content.decode()


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en", ["1 token read, 1 written", "1 liked", "1 disliked"]),
        ("de", ["1 Token gelesen, 1 geschrieben", ">1 gefiel<", ">1 gefiel nicht<"]),
    ],
)
def test_one_of_something_is_spoken_of_as_one(
    client: Client, alice: User, language: str, words: list[str]
) -> None:
    liked = make_turn(alice, prompt_ids=[1], response_ids=[2], logprobs=[-0.5])
    up(liked)
    down(make_turn(alice, session=liked.session, prompt_ids=[], response_ids=[], logprobs=[]))
    client.force_login(alice)
    path = f"/sessions/{liked.session.public_id}/"
    page = client.get(path, headers={"accept-language": language}).text
    assert [each for each in words if each not in page] == []
