"""Versions: exactly one per job, at most one live, and the way back."""

from __future__ import annotations

import io
import shutil
import zipfile
from datetime import timedelta
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import IntegrityError, transaction
from django.utils import timezone

from clawweb.config import config
from clawweb.models import AdapterState, AdapterVersion, JobState, TrainingJob
from clawweb.selectors.learning import adapter_json, live_adapter, policy_of
from clawweb.services import jobs, serving, versions
from clawweb.services.errors import (
    CannotDelete,
    CannotPromote,
    EngineDown,
    LeaseLost,
    NothingToRollBack,
)
from rollouts.errors import EngineUnavailable
from tests.factories import claimed_job, handed_over, make_adapter, make_turn, rated, registered

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def test_a_job_registers_one_version_with_its_gate_results(alice):
    rated(alice, 1)
    job, adapter = registered(alice)
    assert adapter.name.endswith(f"-u{alice.pk}-v1-{adapter.sha256[:8]}")
    gate = adapter_json(adapter)["gate"]
    assert gate == [
        {"measure": "length", "value": 20.0, "limit": 3.0, "ok": True, "text": "20 tokens"}
    ]
    with pytest.raises(LeaseLost):
        versions.register(
            job, version=2, path=Path("x"), sha256="cd" * 32, size_bytes=1, rank=8,
            base_hash="", measures=[], accepted=True, note="",
        )  # fmt: skip
    assert AdapterVersion.objects.count() == 1


def test_the_database_allows_one_live_version_per_user(alice):
    make_adapter(alice, 1, AdapterState.LIVE)
    with pytest.raises(IntegrityError), transaction.atomic():
        make_adapter(alice, 2, AdapterState.LIVE)


def test_rollback_goes_to_the_version_before_and_finally_to_base(alice, engine):
    first = make_adapter(alice, 1)
    second = make_adapter(alice, 2)
    versions.go_live(first, over=None, why="")
    versions.go_live(second, over=first, why="")
    assert versions.rollback(alice) == first
    assert live_adapter(alice) == first
    second.refresh_from_db()
    assert second.rolled_back_at is not None
    assert versions.rollback(alice) is None
    assert live_adapter(alice) is None
    with pytest.raises(NothingToRollBack):
        versions.rollback(alice)


def test_promoting_an_older_version_and_rolling_back_returns_to_the_newer(alice, engine):
    first, second = make_adapter(alice, 1), make_adapter(alice, 2)
    versions.go_live(second, over=None, why="")
    versions.promote(user=alice, adapter=first)
    assert live_adapter(alice) == first
    assert first.name in async_to_sync(engine.loaded)()  # before it answers
    versions.promote(user=alice, adapter=live_adapter(alice))  # it answers already
    assert versions.rollback(alice) == second


def test_rolling_back_again_and_again_ends_at_base(alice, engine):
    """Whatever was promoted in between: each step back is one shorter."""
    first, second, third = (make_adapter(alice, n) for n in (1, 2, 3))
    for adapter in (first, second, third):
        adapter.refresh_from_db()
        versions.go_live(adapter, over=live_adapter(alice), why="")
    first.refresh_from_db()
    versions.promote(user=alice, adapter=first)
    seen = [versions.rollback(alice) for _ in range(4)]
    assert [row.version if row else 0 for row in seen] == [3, 2, 1, 0]


@pytest.mark.parametrize("broken", ["gone", "too large"])
def test_what_cannot_be_served_any_more_blocks_no_way_further_back(alice, engine, broken):
    first, second, third = (make_adapter(alice, n) for n in (1, 2, 3))
    for adapter in (first, second, third):
        adapter.refresh_from_db()
        versions.go_live(adapter, over=live_adapter(alice), why="")
    if broken == "gone":
        shutil.rmtree(config().var / second.path)
    else:
        AdapterVersion.objects.filter(pk=second.pk).update(rank=config().lora_rank * 2)
    assert versions.rollback(alice) == first
    second.refresh_from_db()
    assert second.rolled_back_at is not None
    shutil.rmtree(config().var / third.path)
    assert versions.rollback(alice) is None  # base needs no files


def test_a_server_that_does_not_answer_is_no_reason_to_go_further_back(alice, engine, monkeypatch):
    async def down(policy):
        raise EngineUnavailable("no answer")

    first, second = make_adapter(alice, 1), make_adapter(alice, 2)
    versions.go_live(first, over=None, why="")
    versions.go_live(second, over=first, why="")
    monkeypatch.setattr(engine, "load", down)
    with pytest.raises(EngineDown):
        versions.rollback(alice)
    assert live_adapter(alice) == second


def test_an_ancestor_of_what_is_live_is_not_called_rolled_back(alice, engine):
    first = make_adapter(alice, 1)
    second = make_adapter(alice, 2, parent=first)
    versions.go_live(first, over=None, why="")
    versions.rollback(alice)
    versions.promote(user=alice, adapter=second)
    first.refresh_from_db()
    assert first.rolled_back_at is None


def test_a_version_of_another_base_model_is_neither_promoted_nor_loaded(alice, engine):
    adapter = make_adapter(alice, 1, base_hash="another")
    with pytest.raises(CannotPromote, match="another base model"):
        versions.promote(user=alice, adapter=adapter)
    versions.go_live(adapter, over=None, why="")
    serving.reconcile()
    assert engine._adapters == {}


@pytest.mark.parametrize(
    "state", [AdapterState.REFUSED, AdapterState.CANDIDATE, AdapterState.ERASED]
)
def test_only_a_version_that_passed_can_be_promoted(alice, engine, state):
    with pytest.raises(CannotPromote, match="only a version that passed its tests"):
        versions.promote(user=alice, adapter=make_adapter(alice, 1, state))


def test_live_moves_by_compare_and_swap(alice, engine):
    first, second, third = (make_adapter(alice, n) for n in (1, 2, 3))
    versions.go_live(first, over=None, why="")
    versions.go_live(second, over=first, why="")
    with pytest.raises(CannotPromote):
        versions.go_live(third, over=first, why="")
    assert live_adapter(alice) == second
    versions.rollback(alice)
    versions.rollback(alice)  # and not where base answers by now
    with pytest.raises(CannotPromote):
        versions.go_live(third, over=second, why="")


@pytest.mark.parametrize("state", [AdapterState.REFUSED, AdapterState.ERASED, AdapterState.STANDBY])
def test_what_must_not_go_live_leaves_what_answers_where_it_is(alice, state):
    """Refused or deleted meanwhile; or it would be live beside another that went there first."""
    live = make_adapter(alice, 1, AdapterState.LIVE)
    other = make_adapter(alice, 2, state)
    with pytest.raises(CannotPromote):
        versions.go_live(other, over=None if state == AdapterState.STANDBY else live, why="")
    assert live_adapter(alice) == live


def test_only_a_candidate_is_refused(alice):
    live = make_adapter(alice, 1, AdapterState.LIVE)
    versions.refuse(live, "the server cannot take it")
    assert live_adapter(alice) == live


def test_only_what_was_left_behind_is_called_rolled_back(alice, engine):
    first, second, third, live = (make_adapter(alice, n) for n in (1, 2, 3, 4))
    for adapter in (first, second, third, live):
        adapter.refresh_from_db()
        versions.go_live(adapter, over=live_adapter(alice), why="")
    shutil.rmtree(config().var / third.path)
    assert versions.rollback(alice) == second
    marks = AdapterVersion.objects.exclude(rolled_back_at=None)
    assert set(marks) == {third, live}


def test_who_goes_back_from_what_answers_no_more_is_told_so(alice, engine, monkeypatch):
    first = make_adapter(alice, 1)
    live = make_adapter(alice, 2, AdapterState.LIVE, live_before=[first.pk])

    def meanwhile(_):
        AdapterVersion.objects.filter(pk=live.pk).update(state=AdapterState.STANDBY)

    monkeypatch.setattr(serving, "serve", meanwhile)
    with pytest.raises(CannotPromote):
        versions.rollback(alice)
    live.refresh_from_db()
    assert (live.rolled_back_at, live_adapter(alice)) == (None, None)


def test_reconcile_loads_what_is_live_and_unloads_what_has_drained(alice, engine):
    import asyncio

    from clawweb.engine import install_id
    from rollouts.types import Policy

    ours = f"{install_id()}-u1-v1-00000000"
    asyncio.run(engine.load(Policy(adapter=ours, path="/gone")))
    asyncio.run(engine.load(Policy(adapter="somebody-elses", path="/x")))
    live = make_adapter(alice, 2, AdapterState.LIVE)
    serving.reconcile()
    assert engine._adapters == {"somebody-elses": "/x", live.name: policy_of(live).path}


def test_what_goes_live_while_others_are_loaded_is_not_unloaded(alice, bob, engine, monkeypatch):
    hers, his = make_adapter(alice, 1), make_adapter(bob, 1, AdapterState.LIVE)
    serving.serve(hers)
    load = engine.load

    async def slowly(policy):
        await sync_to_async(AdapterVersion.objects.filter(pk=hers.pk).update)(state="live")
        await load(policy)

    monkeypatch.setattr(engine, "load", slowly)
    serving.reconcile()
    assert set(engine._adapters) == {hers.name, his.name}


def test_an_adapter_that_still_writes_a_reply_is_not_unloaded(alice, engine):
    import asyncio

    from clawweb.engine import install_id

    old = make_adapter(alice, 1, name=f"{install_id()}-u{alice.pk}-v1-11111111")
    asyncio.run(engine.load(policy_of(old)))
    make_turn(alice, state="streaming", adapter_name=old.name)
    serving.reconcile()
    assert old.name in engine._adapters


def test_old_files_are_deleted_only_when_nothing_needs_them(alice, engine):
    rows = [make_adapter(alice, n) for n in range(1, 9)]
    rows[0].pinned = True
    rows[0].save()
    versions.go_live(rows[1], over=None, why="")
    serving.prune()
    kept = [row.version for row in rows if (config().var / row.path).exists()]
    assert kept == [1, 2, 4, 5, 6, 7, 8]
    assert AdapterVersion.objects.get(version=3).state == AdapterState.ERASED


def test_what_a_job_trains_on_from_is_kept_though_it_answers_no_more(alice, engine):
    rows = [make_adapter(alice, n) for n in range(1, 9)]
    state = config().var / f"{rows[0].path}.optimizer.safetensors"
    state.touch()
    rated(alice, 1)
    job = jobs.queue_job(user=alice)
    TrainingJob.objects.filter(pk=job.pk).update(parent=rows[0])
    serving.prune()
    assert (config().var / rows[0].path).exists()
    assert state.exists()
    jobs.cancel_job(job)
    serving.prune()
    assert not (config().var / rows[0].path).exists()


# Deploying: whose it is


def test_a_version_that_one_worker_deploys_is_no_other_workers(alice):
    job, _ = handed_over(alice)
    mine = versions.claim_deploy(job.public_id)
    assert versions.claim_deploy(job.public_id) is None
    assert versions.jobs_to_deploy() == []
    TrainingJob.objects.update(lease_until=timezone.now() - timedelta(seconds=1))  # mine is dead
    assert versions.jobs_to_deploy() == [job]
    his = versions.claim_deploy(job.public_id)
    assert his.lease_token != mine.lease_token
    versions.release_deploy(mine)  # and was not
    assert versions.jobs_to_deploy() == []


@pytest.mark.parametrize("end", ["takes", "ends"])
def test_of_two_workers_that_find_a_version_at_once_one_deploys_it(alice, monkeypatch, end):
    job, _ = handed_over(alice)

    def meanwhile():
        monkeypatch.undo()
        other = versions.claim_deploy(job.public_id)
        if end == "ends":
            jobs.end_job(other, state=JobState.FAILED)
        return config()

    monkeypatch.setattr(versions, "config", meanwhile)
    assert versions.claim_deploy(job.public_id) is None


# Taking a version along, and deleting one


def written(adapter: AdapterVersion) -> Path:
    """The version with files, as the trainer leaves them."""
    folder = config().var / adapter.path
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (folder / name).write_text(name)
    folder.with_name(f"{folder.name}.probe.json").write_text("{}")
    return folder


async def body(answer):
    return b"".join([block async for block in answer.streaming_content])


def test_a_version_is_taken_along_as_a_zip(alice, bob, client, engine, valkey_server):
    adapter = make_adapter(alice, 1)
    written(adapter)
    client.force_login(alice)
    answer = client.get(f"/api/adapters/{adapter.name}/download")
    archive = zipfile.ZipFile(io.BytesIO(async_to_sync(body)(answer)))
    names = {"adapter_model.safetensors", "adapter_config.json", "README.md"}
    assert set(archive.namelist()) == names
    assert archive.read("adapter_model.safetensors") == b"adapter_model.safetensors"
    assert adapter.sha256 in archive.read("README.md").decode()
    client.force_login(bob)
    assert client.get(f"/api/adapters/{adapter.name}/download").status_code == 404


def test_a_deleted_version_leaves_its_row_and_no_file(alice, client, engine, valkey_server):
    adapter = make_adapter(alice, 1)
    folder = written(adapter)
    client.force_login(alice)
    assert client.delete(f"/api/adapters/{adapter.name}").status_code == 204
    adapter.refresh_from_db()
    assert (adapter.state, list(folder.parent.glob("v1.1*"))) == (AdapterState.ERASED, [])
    assert client.get(f"/api/adapters/{adapter.name}/download").status_code == 410
    assert client.delete(f"/api/adapters/{adapter.name}").status_code == 409


def test_what_is_in_use_is_not_deleted(alice, engine, valkey_server):
    live = make_adapter(alice, 1, AdapterState.LIVE)
    parent = make_adapter(alice, 2)
    rated(alice, 1)
    job = jobs.queue_job(user=alice, trigger="manual")
    TrainingJob.objects.filter(pk=job.pk).update(parent=parent)
    writing = make_adapter(alice, 3)
    make_turn(alice, adapter=writing, state="streaming")
    for adapter in (live, parent, writing):
        serving.serve(adapter)
        with pytest.raises(CannotDelete):
            versions.delete(adapter=adapter)
        assert adapter.name in async_to_sync(engine.loaded)()
    assert not AdapterVersion.objects.filter(state=AdapterState.ERASED).exists()


def test_what_no_row_names_is_removed_and_what_somebody_put_there_stays(alice, engine):
    kept = config().var / make_adapter(alice, 1, AdapterState.LIVE).path
    for name in ("v2.1", ".v2.2.unfinished-7", "away", "notes"):
        (kept.parent / name).mkdir(exist_ok=True)
    (kept.parent / "v2.1.probe.json").touch()
    (kept.parent / "v1.1.probe.json").touch()
    serving.prune()
    left = {path.name for path in kept.parent.iterdir()}
    assert left >= {"v1.1", "v1.1.probe.json", "away", "notes"}
    assert not left & {"v2.1", "v2.1.probe.json", ".v2.2.unfinished-7"}


def test_files_of_who_has_no_version_any_more_are_removed(alice, bob, engine):
    """All was erased while a worker was about to save."""
    for pk in (alice.pk, 10**9):  # and of an account that is gone
        (config().var / serving.home_of(pk) / "v1.1").mkdir(parents=True, exist_ok=True)
    serving.prune()
    for pk in (alice.pk, 10**9):
        assert not (config().var / serving.home_of(pk) / "v1.1").exists()


def test_nothing_is_taken_for_an_orphan_while_a_job_runs(alice, engine):
    kept = config().var / make_adapter(alice, 1, AdapterState.LIVE).path
    rated(alice, 8)
    claimed_job(alice)
    (kept.parent / "v2.1").mkdir(exist_ok=True)
    serving.prune()
    assert (kept.parent / "v2.1").is_dir()


def test_where_nothing_is_to_be_deleted_users_cost_no_query_each(
    alice, bob, engine, django_assert_num_queries
):
    for user in (alice, bob):
        for number in (1, 2):
            make_adapter(user, number)
    serving.prune()  # of what earlier tests left there
    with django_assert_num_queries(3):
        serving.prune()
