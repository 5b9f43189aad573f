"""Erasing all that an agent has learned: what stays of it, and what a server does about it."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync

from clawweb import valkey
from clawweb.config import config
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    AuditEvent,
    ChatSession,
    Event,
    Feedback,
    GateResult,
    JobState,
    SampleState,
    SavedView,
    Tombstone,
    TrainingSample,
    User,
)
from clawweb.selectors.learning import live_adapter, policy_of
from clawweb.services import housekeeping, jobs, serving, transfers, versions
from clawweb.services.errors import LeaseLost
from clawweb.services.forgetting import erase_learning, train_without
from rollouts.errors import EngineRefused, EngineUnavailable
from rollouts.types import Policy
from tests.factories import claimed_job, in_state, make_adapter, make_turn, rated, registered

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


async def _load(engine: Any, adapter: AdapterVersion) -> None:
    await engine.load(Policy(adapter=adapter.name, version=adapter.version, path=adapter.path))


def test_everything_is_erased_and_nothing_of_others(engine: Any, alice: User, bob: User) -> None:
    turns, (kept,) = rated(alice, 3), rated(bob, 1)
    made = [make_adapter(alice, 1), make_adapter(alice, 2)]
    made.append(make_adapter(alice, 3, AdapterState.LIVE))
    theirs = make_adapter(bob, 1, AdapterState.LIVE)
    for turn, adapter in zip([*turns, kept], [*made, theirs], strict=True):
        in_state(turn, SampleState.TRAINED, adapter=adapter)
    for adapter in (*made, theirs):
        async_to_sync(_load)(engine, adapter)
    valkey.keep_text(turns[0].public_id, {"input": []})
    export = transfers.queue_export(user=alice)
    (transfers.folder() / f"{export.public_id}.jsonl").write_text("texts")
    sessions = {turn.session.public_id for turn in turns}

    erase_learning(alice)

    assert not ChatSession.objects.filter(user=alice).exists()
    assert not TrainingSample.objects.filter(user=alice).exists()
    assert not Feedback.objects.filter(author=alice).exists()
    assert not Event.objects.filter(user=alice).exists()
    assert set(alice.adapters.values_list("state", flat=True)) == {AdapterState.ERASED}
    assert not (config().var / serving.home_of(alice.pk)).exists()
    assert not list(transfers.folder().glob(f"{export.public_id}*"))
    assert valkey.kept_text(turns[0].public_id) == {}
    assert set(async_to_sync(engine.loaded)()) == {theirs.name}
    stones = set(Tombstone.objects.values_list("kind", "object_id"))
    assert stones == {("session", name) for name in sessions} | {
        ("version", adapter.name) for adapter in made
    }
    assert AuditEvent.objects.get(action="erase_learning").object_id == "alice"
    assert versions.next_version(alice) == 4  # numbers are not used again
    assert live_adapter(bob) == theirs
    assert TrainingSample.objects.filter(user=bob).count() == 1


def test_after_it_no_rating_is_kept_aside_for_a_version_that_is_gone(alice: User) -> None:
    make_adapter(alice, 1, AdapterState.LIVE)
    erase_learning(alice)
    rated(alice, 8)
    assert not TrainingSample.objects.filter(user=alice, held_back=True).exists()


def test_a_worker_that_still_trains_finds_no_row(alice: User) -> None:
    rated(alice, 1)
    job = claimed_job(alice)
    erase_learning(alice)
    assert not jobs.renew(job)
    with pytest.raises(LeaseLost):
        jobs.advance(job, phase="on and on")
    written = config().var / serving.home_of(alice.pk) / "v1.1"
    written.mkdir(parents=True)
    (written.parent / "v1.1.probe.json").write_text("{}")
    make_adapter(alice, 2)  # a later one, and its folder stays
    serving.prune()
    left = {path.name for path in written.parent.iterdir()}
    assert left == {"v2.1", "v2.1.probe.json"}
