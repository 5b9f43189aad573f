"""Old complaints asked again: which, of whom, and what the user made of the answers."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from clawweb.models import AdapterState, Comparison, Turn, TurnState, User
from clawweb.selectors.complaints import Tally, complaints_of, rechecks_by, tallies
from clawweb.selectors.learning import live_adapter
from clawweb.services import comparisons, housekeeping
from clawweb.services.comparisons import decide, open_comparison
from clawweb.services.complaints import ask_again
from clawweb.services.errors import CannotCompare, EngineDown, QueueFull, QuotaReached
from tests.factories import down, hint_of, make_adapter, make_turn, up

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


@pytest.fixture
def learner(alice: User) -> User:
    """Alice, whose second version answers."""
    make_adapter(alice, 1, AdapterState.STANDBY)
    make_adapter(alice, 2, AdapterState.LIVE)
    return alice


def disliked(user: User, text: str = "", **values: Any) -> Turn:
    turn = make_turn(user, text, **values)
    down(turn)
    return turn


def answer(turn: Turn, **values: Any) -> Comparison:
    """The live version's answer to the complaint has come."""
    row = Comparison.objects.get(first=turn, kind="recheck")
    values = {"state": TurnState.COMPLETE, "reply": "Better.", "version": 2, **values}
    Turn.objects.filter(pk=row.second_id).update(finished_at=turn.finished_at, **values)
    row.refresh_from_db()
    return row


def test_the_newest_disliked_replies_of_other_versions_are_complaints(learner: User) -> None:
    old = disliked(learner)
    newer = disliked(learner, version=1)
    up(make_turn(learner))
    changed_mind = disliked(learner)
    up(changed_mind)
    disliked(learner, version=2)  # by the live version itself
    disliked(learner, turn_type="side")
    disliked(learner, fallback="v2 could not be loaded")
    housekeeping.delete_session(disliked(learner).session)
    live = live_adapter(learner)
    assert list(complaints_of(learner, live)) == [newer, old]


def test_at_most_ten_are_asked(learner: User) -> None:
    for _ in range(12):
        disliked(learner)
    assert ask_again(user=learner) == 10
    assert Comparison.objects.filter(user=learner, kind="recheck").count() == 10
    seconds = Turn.objects.filter(pk__in=Comparison.objects.values("second"))
    assert set(seconds.values_list("asked", "turn_type")) == {("agent@v2", "side")}


def test_a_version_of_another_installation_is_not_the_one_of_its_number(learner: User) -> None:
    elsewhere = disliked(learner, version=2, adapter=None)  # brought in from a file
    own = disliked(learner, version=1)
    assert ask_again(user=learner) == 2
    asked = Comparison.objects.order_by("first").values_list("first", "second__asked")
    assert list(asked) == [(elsewhere.pk, "agent@v2"), (own.pk, "agent@v2")]


@pytest.mark.parametrize("refusal", [QueueFull, QuotaReached, EngineDown])
def test_what_is_on_its_way_is_told_also_when_no_more_can_be_asked(
    learner: User, monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]
) -> None:
    turns = [disliked(learner) for _ in range(3)]
    opened: list[Turn] = []

    def open_two(*, turn: Turn, **values: Any) -> Comparison:
        if len(opened) == 2:
            raise refusal("No more.")
        opened.append(turn)
        return open_comparison(turn=turn, **values)

    monkeypatch.setattr(comparisons, "open_comparison", open_two)
    assert ask_again(user=learner) == 2
    assert opened == turns[:0:-1]
    with pytest.raises(refusal):
        ask_again(user=learner)


def test_what_was_asked_is_not_asked_twice(learner: User) -> None:
    first, other = disliked(learner), disliked(learner)
    assert ask_again(user=learner, turn=first) == 1
    assert ask_again(user=learner) == 1
    assert ask_again(user=learner) == 0
    assert Comparison.objects.filter(first__in=[first, other]).count() == 2


@pytest.mark.parametrize(
    "ended", [{"reply": "", "state": TurnState.FAILED}, {"fallback": "v2 could not be loaded"}]
)
def test_an_answer_that_never_came_is_asked_for_again(learner: User, ended: dict[str, str]) -> None:
    turn = disliked(learner)
    ask_again(user=learner)
    gone = answer(turn, **ended)
    assert rechecks_by(live_adapter(learner), [turn]) == {}
    assert ask_again(user=learner) == 1
    assert Comparison.objects.get(first=turn).pk != gone.pk


def test_while_base_answers_there_is_nothing_to_compare(alice: User) -> None:
    disliked(alice)
    with pytest.raises(CannotCompare):
        ask_again(user=alice)


def test_verdicts_are_counted_by_version(learner: User) -> None:
    turns = [disliked(learner) for _ in range(4)]
    ask_again(user=learner)
    for turn, verdict in zip(turns, ("second", "tie", "neither", "first"), strict=True):
        decide(comparison=answer(turn), verdict=verdict)
    assert tallies(learner) == [Tally(version=2, better=1, same=2, worse=1)]


def test_nobodys_complaints_are_anothers(learner: User, bob: User) -> None:
    theirs = disliked(bob)
    assert list(complaints_of(learner, live_adapter(learner))) == []
    assert ask_again(user=learner, turn=theirs) == 0
    assert tallies(bob) == []


def test_the_page_goes_from_asking_to_a_verdict(client: Client, learner: User, bob: User) -> None:
    turn = disliked(learner, "Why <b>tides</b>?", reply="Because.")
    client.force_login(learner)
    json = "application/json"

    def shown() -> str:
        return client.get("/parts/rechecks/").content.decode()

    assert "Ask v2 the one that is left" in shown()
    assert "Why &lt;b&gt;tides&lt;/b&gt;?" in shown()
    asked = client.post("/api/agent/rechecks", {"turn": turn.public_id}, content_type=json)
    assert (asked.status_code, asked.json()) == (202, {"asked": 1})
    assert "It is answering" in shown()
    row = answer(turn)
    assert "Better." in shown()
    verdict = {"verdict": "second"}
    client.post(f"/api/comparisons/{row.public_id}", verdict, content_type=json)
    assert "better now" in shown()
    assert "better 1 · same 0 · worse 0" in shown()
    assert "Before and after" in client.get("/agent/").content.decode()
    assert "left to ask again" not in shown()
    learner.adapters.filter(version=2).update(state=AdapterState.STANDBY)
    assert "The base model answers now." in shown()  # nobody is there to be asked
    assert "left to ask again" not in shown()  # which is not for want of such replies

    client.force_login(bob)
    other = client.post("/api/agent/rechecks", {"turn": turn.public_id}, content_type=json)
    assert other.status_code == 404
    assert client.post("/api/agent/rechecks", content_type=json).status_code == 409


def test_what_was_said_stands_there_as_it_was_ticked(client: Client, learner: User) -> None:
    """Not as the English hint that a teacher is given."""
    disliked(learner)
    client.force_login(learner)
    page = client.get("/agent/", headers={"Accept-Language": "de"}).content.decode()
    said = page.partition('id="rechecks-h"')[2].partition('class="sides"')[0]
    assert "Zu lang" in said
    assert hint_of("too_long") not in said
