"""A version on trial: which turns it answers, what they are worth, when it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from django.test import Client

from clawweb.engine import base_hash, install_id
from clawweb.models import AdapterState, AdapterVersion, Turn, User
from clawweb.selectors.chat import turn_json
from clawweb.selectors.learning import policy_of, receipt
from clawweb.selectors.trials import percentile, trial_of
from clawweb.services import chat, serving, trials, versions
from clawweb.services.errors import CannotTry
from tests.factories import make_adapter, make_turn, up

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


@pytest.fixture
def live(alice: User) -> AdapterVersion:
    return make_adapter(alice, 1, AdapterState.LIVE)


@pytest.fixture
def tried(alice: User, live: AdapterVersion) -> AdapterVersion:
    """v2 answers half of Alice's chat."""
    adapter = make_adapter(alice, 2)
    trials.start_trial(adapter=adapter, share=50)
    return adapter


def asked(user: User, *, falls: int, **values: Any) -> Turn:
    """A question whose turn falls into that percentile."""
    turn = make_turn(user, **values)
    names = (f"turn-{turn.pk}-{n}" for n in range(10_000))
    name = next(name for name in names if percentile(name) == falls)
    Turn.objects.filter(pk=turn.pk).update(public_id=name)
    return Turn.objects.select_related("session__user").get(pk=turn.pk)


def answers(turn: Turn) -> int | None:
    """Which version a generator has answer it."""
    Turn.objects.filter(pk=turn.pk).update(state="pending")
    found = chat.claim_turn(turn.public_id, base_hash=base_hash())
    assert found is not None
    Turn.objects.filter(pk=turn.pk).update(state="complete")
    return found[1].version


def test_a_share_of_the_chat_is_answered_by_the_version_on_trial(alice, tried) -> None:
    inside, outside = asked(alice, falls=49), asked(alice, falls=50)
    assert (answers(inside), answers(outside)) == (2, 1)
    inside.refresh_from_db()
    outside.refresh_from_db()
    assert (inside.trial, inside.version) == (True, 2)
    assert (outside.trial, outside.version) == (False, 1)
    assert turn_json(inside)["trial"] is True


def test_turns_fall_evenly() -> None:
    falls = [percentile(f"turn-{n}") for n in range(2000)]
    assert 340 < sum(fall < 20 for fall in falls) < 460


@pytest.mark.parametrize(
    "values",
    [{"source": "api"}, {"asked": "base"}, {"asked": "agent@v1"}, {"turn_type": "side"}],
)
def test_nothing_else_is_on_trial(alice, tried, values) -> None:
    turn = asked(alice, falls=0, **values)
    assert answers(turn) != 2
    turn.refresh_from_db()
    assert turn.trial is False


def test_others_chats_are_not_on_trial(alice, bob, tried) -> None:
    make_adapter(bob, 1, AdapterState.LIVE)
    assert answers(asked(bob, falls=0)) == 1


def test_an_answer_on_trial_can_be_rated_and_does_not_train(alice, tried) -> None:
    turn = asked(alice, falls=0)
    answers(turn)
    turn.refresh_from_db()
    up(turn)
    assert receipt(turn)["drop_reason"] == "base_requested"


def test_what_did_not_pass_cannot_be_tried(alice, live) -> None:
    for adapter in (
        live,
        make_adapter(alice, 3, AdapterState.REFUSED),
        make_adapter(alice, 4, AdapterState.CANDIDATE),
        make_adapter(alice, 5, base_hash="another"),
    ):
        with pytest.raises(CannotTry):
            trials.start_trial(adapter=adapter, share=20)
    alice.refresh_from_db()
    assert trial_of(alice) is None


def test_what_goes_live_while_the_server_loads_it_is_not_on_trial_later(
    alice, live, engine, monkeypatch
) -> None:
    adapter = make_adapter(alice, 2)

    def promoted_elsewhere(_: object) -> None:
        versions.go_live(adapter, over=live, why="")

    with monkeypatch.context() as patched:
        patched.setattr(serving, "serve", promoted_elsewhere)
        with pytest.raises(CannotTry):
            trials.start_trial(adapter=adapter, share=50)
    versions.rollback(alice)
    assert ended(alice)


def ended(user: User) -> bool:
    user.refresh_from_db()
    return trial_of(user) is None and answers(asked(user, falls=0)) != 2


def test_a_trial_ends_when_it_is_stopped(alice, tried) -> None:
    trials.stop_trial(adapter=tried)
    assert ended(alice)


def test_a_trial_ends_when_its_version_goes_live_and_does_not_begin_again(alice, tried) -> None:
    versions.promote(user=alice, adapter=tried)
    assert answers(asked(alice, falls=0)) == 2
    versions.rollback(alice)
    assert ended(alice)


def test_a_trial_ends_when_its_version_is_deleted(alice, tried) -> None:
    versions.delete(adapter=tried)
    assert ended(alice)


def test_the_server_keeps_what_is_on_trial_and_forgets_it_after(alice, live, engine) -> None:
    adapter = make_adapter(alice, 2, name=f"{install_id()}-u{alice.pk}-v2-22222222")
    trials.start_trial(adapter=adapter, share=50)
    asyncio.run(engine.unload(policy_of(adapter)))
    serving.reconcile()
    assert set(asyncio.run(engine.loaded())) == {live.name, adapter.name}
    trials.stop_trial(adapter=adapter)
    serving.reconcile()
    assert set(asyncio.run(engine.loaded())) == {live.name}


def test_files_of_what_is_on_trial_are_kept(alice, tried, engine) -> None:
    asyncio.run(engine.unload(policy_of(tried)))  # not for being held by the server
    newer = [make_adapter(alice, n) for n in range(3, 10)]
    serving.prune()
    states = set(AdapterVersion.objects.filter(pk__in=[tried.pk]).values_list("state", flat=True))
    assert states == {"standby"}
    newer[0].refresh_from_db()
    assert newer[0].state == "erased"


def post(client: Client, name: str, body: dict[str, Any]) -> Any:
    path = f"/api/adapters/{name}/trial"
    return client.post(path, json.dumps(body), content_type="application/json")


def test_a_trial_over_the_api(alice, bob, live, client) -> None:
    adapter = make_adapter(alice, 2)
    client.force_login(alice)
    assert post(client, adapter.name, {"share": "30"}).status_code == 200
    alice.refresh_from_db()
    assert (alice.trial, alice.trial_share) == (adapter, 30)
    assert post(client, adapter.name, {"share": 90}).status_code == 422
    assert post(client, live.name, {"share": 10}).status_code == 409
    client.force_login(bob)
    assert post(client, adapter.name, {"share": 10}).status_code == 404
    assert client.delete(f"/api/adapters/{adapter.name}/trial").status_code == 404
    client.force_login(alice)
    assert client.delete(f"/api/adapters/{adapter.name}/trial").status_code == 200
    alice.refresh_from_db()
    assert (alice.trial, alice.trial_share) == (None, 0)
