"""Erasing all that an agent has learned: what stays of it, and what a server does about it."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync

from clawweb.config import config
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    Event,
    GateResult,
    JobState,
    SavedView,
    Tombstone,
    User,
)
from clawweb.selectors.learning import policy_of
from clawweb.services import housekeeping, jobs, serving
from clawweb.services.forgetting import erase_learning, train_without
from rollouts.errors import EngineRefused, EngineUnavailable
from tests.factories import claimed_job, make_adapter, make_turn, rated, registered

pytestmark = pytest.mark.usefixtures("valkey_server", "engine", "transfer_files")


def home_of(user):
    return config().var / serving.home_of(user.pk)


def test_an_erased_version_keeps_its_number_and_nothing_else(alice, bob):
    rated(alice, 1)
    rated(bob, 1)
    (job, adapter), (_, theirs) = registered(alice), registered(bob)
    jobs.end_job(job, state=JobState.DEPLOYED, learned=adapter)
    AdapterVersion.objects.filter(pk=adapter.pk).update(
        state=AdapterState.STANDBY,
        note="said about it",
        pinned=True,
        forgot_at="2026-01-01T00:00:00Z",
        rolled_back_at="2026-01-01T00:00:00Z",
    )
    for user in (alice, bob):
        SavedView.objects.create(user=user, page="sessions", name="mine")
        Event.objects.create(user=user, kind="chat_erased")
        known = {"trial": user.adapters.get(), "trial_share": 50, "reward_count": 3}
        User.objects.filter(pk=user.pk).update(**known)

    erase_learning(alice)

    left = AdapterVersion.objects.get(pk=adapter.pk)
    assert (left.version, left.state, left.note, left.pinned) == (1, AdapterState.ERASED, "", False)
    assert (left.forgot_at, left.rolled_back_at) == (None, None)
    assert [row.adapter for row in GateResult.objects.all()] == [theirs]
    assert [row.user for row in SavedView.objects.all()] == [bob]
    assert {row.user for row in Event.objects.all()} == {bob}
    alice.refresh_from_db()
    bob.refresh_from_db()
    assert (alice.trial, alice.trial_share, alice.reward_count) == (None, 0, 0)
    assert (bob.trial, bob.trial_share, bob.reward_count) == (theirs, 50, 3)


def test_deleted_chats_and_versions_erased_before_have_one_tombstone_each(alice):
    turn = make_turn(alice)
    housekeeping.delete_session(turn.session)
    make_adapter(alice, 1)
    erase_learning(alice)
    erase_learning(alice)
    stones = list(Tombstone.objects.values_list("kind", "object_id"))
    assert len(stones) == len(set(stones)) == 2
    assert ("session", turn.session.public_id) in stones


def test_a_server_that_is_down_keeps_no_files(alice, engine, monkeypatch):
    """It comes back with what is live, which is nothing of these."""

    async def down(_):
        raise EngineUnavailable("no answer")

    make_adapter(alice, 1)
    monkeypatch.setattr(engine, "unload", down)
    erase_learning(alice)
    assert not home_of(alice).exists()


def test_files_that_a_server_will_not_let_go_of_stay_until_it_does(alice, engine, monkeypatch):
    adapter = make_adapter(alice, 1)
    async_to_sync(engine.load)(policy_of(adapter))

    async def stubborn(_):
        raise EngineRefused("no")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "unload", stubborn)
        erase_learning(alice)
    assert (config().var / adapter.path).exists()
    async_to_sync(engine.unload)(policy_of(adapter))
    serving.prune()
    assert not (config().var / adapter.path).exists()


def test_anothers_job_is_no_reason_to_wait(alice, bob):
    make_adapter(alice, 1, AdapterState.LIVE, forgot_at="2026-01-01T00:00:00Z")
    rated(bob, 1)
    claimed_job(bob)
    assert train_without(alice)[0] is None
