"""Two replies to the same words: opening, hiding who wrote which, deciding, counting."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clawweb.models import (
    AdapterState,
    AdapterVersion,
    ChatSession,
    Comparison,
    Consent,
    Turn,
    TurnState,
    User,
)
from clawweb.selectors.chat import turn_json, turn_of, turns_json
from clawweb.selectors.comparisons import WinRate, win_rates
from clawweb.selectors.learning import receipt
from clawweb.services import comparisons, sessions
from clawweb.services.errors import (
    AlreadyDecided,
    CannotCompare,
    EngineDown,
    NothingToRate,
    NotRecorded,
)
from clawweb.views.chat import branch
from rollouts.errors import AdapterRejected, EngineUnavailable
from tests.factories import make_adapter, make_turn, up

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


@pytest.fixture
def versions(alice: User) -> list[AdapterVersion]:
    """v1 was live before v2 is."""
    first = make_adapter(alice, 1)
    return [first, make_adapter(alice, 2, AdapterState.LIVE, live_before=[first.pk])]


@pytest.fixture
def turn(alice: User, versions: list[AdapterVersion]) -> Turn:
    return by(alice, 2)


def by(user: User, version: int, **values: Any) -> Turn:
    """A reply that the version wrote."""
    adapter = user.adapters.filter(version=version).first()
    name = adapter.name if adapter else ""
    return make_turn(user, adapter=adapter, adapter_name=name, version=version, **values)


def answered(comparison: Comparison, *, reply: str = "another reply") -> Comparison:
    """The second reply as a generator leaves it, by the version that was asked for."""
    asked = comparison.second.asked
    version = int(asked[7:]) if asked.startswith("agent@v") else 0
    adapter = comparison.user.adapters.filter(version=version).first()
    Turn.objects.filter(pk=comparison.second_id).update(
        state=TurnState.COMPLETE,
        reply=reply,
        version=version,
        adapter=adapter,
        adapter_name=adapter.name if adapter else "",
        prompt_ids=[1],
        response_ids=[2],
        logprobs=[-1.0],
    )
    return Comparison.objects.get(pk=comparison.pk)


def compared(turn: Turn, other: str = "previous", kind: str = "blind") -> Comparison:
    return answered(comparisons.open_comparison(turn=turn, other=other, kind=kind))


def test_a_second_answer_is_asked_of_another_version(turn) -> None:
    comparison = comparisons.open_comparison(turn=turn, other="previous")
    second = comparison.second
    assert (second.asked, second.turn_type, second.state) == ("agent@v1", "side", "pending")
    assert (second.parent, second.session) == (turn.parent, turn.session)
    assert second.input_messages == turn.input_messages


def test_asked_twice_it_is_the_same_comparison(turn) -> None:
    opened = [comparisons.open_comparison(turn=turn) for _ in range(4)]
    assert len({row.pk for row in opened}) == 1
    assert turn.session.turns.count() == 2


def test_what_is_asked_otherwise_is_another_comparison(alice, turn) -> None:
    blind = compared(turn)
    assert comparisons.open_comparison(turn=turn, other="base") == blind  # whichever it is
    again = [compared(turn, other, "again") for other in ("previous", "base", "base")]
    assert len({blind, *again}) == 3
    low: Any = SimpleNamespace(random=lambda: 0.0)
    for kind in ("blind", "again"):
        opened = comparisons.open_comparison(turn=by(alice, 2), other="base", kind=kind, chance=low)
        assert opened.swapped == (kind == "blind")
    comparisons.decide(comparison=blind, verdict="tie")
    assert compared(turn) != blind
    blind.refresh_from_db()
    assert blind.decided_at is not None
    assert blind.second.turn_type_from == "comparison"


def test_a_version_that_is_of_no_use_is_neither_chosen_nor_live_here(alice, turn) -> None:
    alice.adapters.update(base_hash="another")
    asked = [comparisons.open_comparison(turn=by(alice, 2)).second.asked for _ in range(8)]
    assert set(asked) == {"base"}
    with pytest.raises(CannotCompare, match="no other version"):
        comparisons.open_comparison(turn=by(alice, 0))
    with pytest.raises(CannotCompare, match="another base model"):
        comparisons.open_comparison(turn=by(alice, 0), other="live")


def test_before_the_first_version_there_was_base_and_before_base_nothing(alice, bob) -> None:
    live = make_adapter(alice, 1, AdapterState.LIVE)
    alice.adapters.update(live_before=[live.pk])  # made live again, over one that is erased
    opened = comparisons.open_comparison(turn=by(alice, 1), other="previous")
    assert opened.second.asked == "base"
    with pytest.raises(CannotCompare, match="nothing before it"):
        comparisons.open_comparison(turn=by(bob, 1), other="previous")


@pytest.mark.parametrize(("end", "reply"), [(TurnState.FAILED, "a"), (TurnState.STOPPED, "")])
def test_an_answer_that_never_came_is_asked_for_anew(turn, end, reply) -> None:
    first = comparisons.open_comparison(turn=turn, other="base")
    Turn.objects.filter(pk=first.second_id).update(state=end, reply=reply)
    again = comparisons.open_comparison(turn=turn, other="base")
    assert list(Comparison.objects.all()) == [again]
    assert again.second_id != first.second_id


def test_by_chance_any_version_but_its_own_answers(alice, versions) -> None:
    chances = (random.Random(seed * 1009) for seed in range(16))
    rows = [comparisons.open_comparison(turn=by(alice, 2), chance=each) for each in chances]
    asked = {(row.second.asked, row.swapped) for row in rows}
    assert asked == {(a, s) for a in ("agent@v1", "base") for s in (True, False)}


@pytest.mark.parametrize(
    ("wrote", "other", "words"),
    [
        (2, "live", "by v2 already"),
        (0, "base", "by the base model already"),
        (2, "agent@v3", "did not pass"),
        (2, "agent@v4", "another base model"),
        (2, "agent@v9", "not there"),
        (2, "yours", "Compare with"),
        (2, "agent@v01", "Compare with"),
        (2, "agent@v1234567890", "Compare with"),
    ],
)
def test_a_version_that_cannot_answer_is_refused(alice, versions, wrote, other, words) -> None:
    make_adapter(alice, 3, AdapterState.REFUSED)
    make_adapter(alice, 4, base_hash="another")
    with pytest.raises(CannotCompare, match=words):
        comparisons.open_comparison(turn=by(alice, wrote), other=other)
    assert not Comparison.objects.exists()


def test_others_versions_are_not_there(turn, bob) -> None:
    make_adapter(bob, 7)
    with pytest.raises(CannotCompare):
        comparisons.open_comparison(turn=turn, other="agent@v7")


@pytest.mark.parametrize(
    ("error", "refusal"),
    [(AdapterRejected("no"), CannotCompare), (EngineUnavailable("no"), EngineDown)],
)
def test_a_version_that_the_server_will_not_take_is_refused(
    turn, engine, monkeypatch, error, refusal
) -> None:
    async def load(_: Any) -> None:
        raise error

    monkeypatch.setattr(engine, "load", load)
    with pytest.raises(refusal):
        comparisons.open_comparison(turn=turn, other="previous")
    assert turn.session.turns.count() == 1


def test_only_a_finished_reply_that_is_kept_can_be_compared(alice, versions) -> None:
    with pytest.raises(NothingToRate):
        comparisons.open_comparison(turn=by(alice, 2, state="streaming"))
    with pytest.raises(NothingToRate):
        comparisons.open_comparison(turn=by(alice, 2, state="stopped", reply=""))
    with pytest.raises(NotRecorded):
        comparisons.open_comparison(turn=by(alice, 2, recorded=False))
    temporary = sessions.open_session(user=alice, temporary=True)
    turn = by(alice, 2)
    ChatSession.objects.filter(pk=temporary.pk).update(temporary=True)
    Turn.objects.filter(pk=turn.pk).update(session=temporary)
    with pytest.raises(NotRecorded):
        comparisons.open_comparison(turn=turn_of(alice, turn.public_id))
    User.objects.filter(pk=alice.pk).update(consent=Consent.NOTHING)
    with pytest.raises(NotRecorded):
        comparisons.open_comparison(turn=by(alice, 2, recorded=True))


def test_a_blind_comparison_names_no_version_until_it_is_decided(turn, alice, client) -> None:
    comparison = compared(turn)
    client.force_login(alice)
    pages = [
        f"/api/comparisons/{comparison.public_id}",
        f"/api/turns/{turn.public_id}",
        f"/api/turns/{comparison.second.public_id}",
        f"/api/sessions/{turn.session.public_id}",
    ]
    names = [row.name for row in alice.adapters.all()]
    for page in pages:
        text = client.get(page).content.decode()
        assert "agent@v" not in text
        assert not any(name in text for name in names)
    hidden = turn_json(turn_of(alice, comparison.second.public_id))
    assert (hidden["version"], hidden["model"], hidden["blind"]) == (None, None, True)
    comparisons.decide(comparison=comparison, verdict="tie")
    body = client.get(pages[0]).json()
    assert [body[name]["version"] for name in ("first", "second")] == [2, 1]
    assert body["first"]["blind"] is False


def test_a_comparison_that_is_not_blind_names_both(alice, turn) -> None:
    old = by(alice, 1)
    compared(old, "live", "again")
    assert turn_json(turn_of(alice, old.public_id))["version"] == 1


def test_an_answer_stands_beside_the_conversation_until_it_is_chosen(alice, turn) -> None:
    comparison = compared(turn)
    shown = branch(turns_json(turn.session))
    assert [row["id"] for row in shown] == [turn.public_id]
    comparisons.decide(comparison=comparison, verdict="second")
    shown = branch(turns_json(turn.session))
    assert [row["id"] for row in shown] == [comparison.second.public_id]
    assert shown[0]["siblings"] == [turn.public_id, comparison.second.public_id]


@pytest.mark.parametrize("verdict", ["first", "tie", "neither"])
def test_any_other_verdict_leaves_the_conversation_as_it_is(turn, verdict) -> None:
    comparison = compared(turn)
    comparisons.decide(comparison=comparison, verdict=verdict)
    assert [row["id"] for row in branch(turns_json(turn.session))] == [turn.public_id]
    assert not Turn.objects.filter(feedback__isnull=False).exists()


def test_an_old_complaint_asked_anew_moves_neither_its_chat_nor_the_list(alice, turn) -> None:
    old = by(alice, 1)
    make_turn(alice, session=old.session, parent=old)
    sessions.close_session(old.session)
    before = ChatSession.objects.get(pk=old.session_id)
    comparison = compared(turn_of(alice, old.public_id), "live", "recheck")
    comparisons.decide(comparison=comparison, verdict="second")
    after = ChatSession.objects.get(pk=old.session_id)
    for name in ("updated_at", "closed_at", "done"):
        assert getattr(after, name) == getattr(before, name)
    comparison.second.refresh_from_db()
    assert comparison.second.turn_type == "side"
    assert len(branch(turns_json(after))) == 2


def test_a_chosen_answer_can_be_rated_and_does_not_train(turn) -> None:
    comparison = compared(turn)
    comparisons.decide(comparison=comparison, verdict="second")
    second = Turn.objects.select_related("session__user").get(pk=comparison.second_id)
    up(second)
    assert receipt(second)["drop_reason"] == "base_requested"


def test_a_verdict_is_given_once(turn) -> None:
    comparison = comparisons.open_comparison(turn=turn)
    with pytest.raises(CannotCompare, match="both"):
        comparisons.decide(comparison=comparison, verdict="first")
    with pytest.raises(CannotCompare, match="No other answer came"):
        comparisons.decide(comparison=answered(comparison, reply=""), verdict="first")
    comparison = answered(comparison)
    Turn.objects.filter(pk=comparison.second_id).update(state=TurnState.STREAMING)
    with pytest.raises(CannotCompare, match="both"):
        comparisons.decide(comparison=comparison, verdict="first")
    comparison = answered(comparison)
    comparisons.decide(comparison=comparison, verdict="first")
    comparisons.decide(comparison=comparison, verdict="first")  # a click that was sent twice
    with pytest.raises(AlreadyDecided):
        comparisons.decide(comparison=comparison, verdict="second")
    with pytest.raises(AlreadyDecided):
        comparisons.close(comparison=comparison)
    comparison.refresh_from_db()
    assert comparison.verdict == "first"


def test_closing_leaves_the_conversation_and_stops_the_answer(alice, turn) -> None:
    comparison = comparisons.open_comparison(turn=turn)
    comparisons.close(comparison=comparison)
    comparison.second.refresh_from_db()
    assert comparison.second.stop_requested
    assert turn_json(turn_of(alice, turn.public_id))["version"] == 2
    assert [row["id"] for row in branch(turns_json(turn.session))] == [turn.public_id]


def post(client: Client, path: str, body: dict[str, str]) -> Any:
    return client.post(path, json.dumps(body), content_type="application/json")


def test_comparing_over_the_api(turn, alice, client) -> None:
    client.force_login(alice)
    opened = post(client, f"/api/turns/{turn.public_id}/compare", {"with": "base"})
    assert (opened.status_code, opened.json()["verdict"]) == (202, None)
    path = f"/api/comparisons/{opened.json()['id']}"
    assert post(client, path, {"verdict": "second"}).status_code == 409
    answered(Comparison.objects.get())
    assert sorted(client.get(path).json()["order"]) == ["first", "second"]
    assert post(client, path, {"verdict": "best"}).status_code == 422
    assert post(client, path, {"verdict": "second"}).json()["second"]["version"] == 0
    assert client.delete(path).status_code == 409


def test_others_comparisons_are_not_there(turn, bob, client) -> None:
    comparison = compared(turn)
    client.force_login(bob)
    path = f"/api/comparisons/{comparison.public_id}"
    assert client.get(path).status_code == 404
    assert post(client, path, {"verdict": "first"}).status_code == 404
    assert client.delete(path).status_code == 404
    assert post(client, f"/api/turns/{turn.public_id}/compare", {}).status_code == 404
    comparison.refresh_from_db()
    assert comparison.verdict == ""


def test_wins_are_counted_per_pair_of_versions(alice, bob, versions) -> None:
    for wrote, other, verdict in [
        (2, "previous", "first"),
        (1, "live", "second"),
        (2, "previous", "second"),
        (2, "previous", "tie"),
        (2, "base", "neither"),
    ]:
        comparisons.decide(comparison=compared(by(alice, wrote), other), verdict=verdict)
    compared(by(alice, 2))  # not decided
    not_blind = compared(by(alice, 1), "live", "again")
    comparisons.decide(comparison=not_blind, verdict="second")
    fell_back = compared(by(alice, 2))
    Turn.objects.filter(pk=fell_back.second_id).update(version=0, fallback="gone")
    comparisons.decide(comparison=fell_back, verdict="first")
    came_in = compared(by(alice, 2))
    Turn.objects.filter(pk=came_in.second_id).update(version=3, adapter=None)  # of elsewhere
    comparisons.decide(comparison=came_in, verdict="second")
    assert win_rates(alice) == [
        WinRate(version=2, against=1, won=2, lost=1, even=1),
        WinRate(version=2, against=0, won=0, lost=0, even=1),
    ]
    assert win_rates(bob) == []


def test_nobody_has_won_where_nothing_was_decided() -> None:
    rate = WinRate(version=1, against=0, won=0, lost=0, even=3)
    assert (rate.share, rate.interval) == (None, None)
    low, high = WinRate(version=1, against=0, won=9, lost=1, even=0).interval or (0, 0)
    assert (round(low, 3), round(high, 3)) == (0.596, 0.982)


def chat_page(client: Client, turn: Turn) -> str:
    page: str = client.get(f"/chat/{turn.session.public_id}/").content.decode()
    return page


def test_the_chat_page_offers_to_compare_when_there_is_a_version(alice, bob, turn, client) -> None:
    client.force_login(alice)
    assert "Compare another answer" in chat_page(client, turn)
    client.force_login(bob)
    assert "Compare another answer" not in chat_page(client, make_turn(bob))


def test_the_chat_page_shows_a_comparison_that_waits_and_no_version(alice, turn, client) -> None:
    comparison = compared(turn)
    client.force_login(alice)
    page = chat_page(client, turn)
    assert f'data-comparison="{comparison.public_id}"' in page
    assert '<span class="chip version">v2</span>' not in page
    comparisons.decide(comparison=comparison, verdict="first")
    page = chat_page(client, turn)
    assert 'data-comparison=""' in page
    assert '<span class="chip version">v2</span>' in page


def test_a_new_version_is_offered_for_the_last_question_once(alice, versions, client) -> None:
    old = by(alice, 1)
    client.force_login(alice)
    assert 'data-version=""' in chat_page(client, old)  # v2 had been live when v1 was asked
    AdapterVersion.objects.filter(version=2).update(live_at=timezone.now())
    assert 'data-version="2"' in chat_page(client, old)
    compared(old, "live", "again")
    assert 'data-version=""' in chat_page(client, old)
