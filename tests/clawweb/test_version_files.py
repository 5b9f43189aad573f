"""What is proven of a version before it is served, and which files are kept, on the server and on
disk."""

from __future__ import annotations

import math

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from clawweb.config import config
from clawweb.engine import install_id
from clawweb.models import AdapterState, AdapterVersion, User
from clawweb.selectors.learning import policy_of
from clawweb.services import serving, versions
from clawweb.services.errors import FileErased
from rollouts.errors import AdapterRejected, EngineUnavailable
from tests.factories import claimed_job, make_adapter, rated

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def files(adapter: AdapterVersion) -> bool:
    return (config().var / adapter.path).exists()


def optimizer(adapter: AdapterVersion):
    return config().var / f"{adapter.path}.optimizer.safetensors"


def load(engine, adapter: AdapterVersion) -> None:
    async_to_sync(engine.load)(policy_of(adapter))


def loaded(engine) -> set[str]:
    return set(async_to_sync(engine.loaded)())


# Proven


def test_what_is_measured_is_the_mean_of_a_token(alice, engine):
    found = serving.load_and_probe(make_adapter(alice, 2))
    assert found == {"disagreement": pytest.approx(0.0), "difference": pytest.approx(0.002)}


@pytest.mark.parametrize(
    ("of_adapter", "of_base", "why"),
    [
        (math.nan, -9.0, "disagree"),
        (None, math.nan, "exactly as the base"),
        (None, None, "exactly as the base"),  # the server answers as base does
    ],
)
def test_a_version_that_is_not_told_from_base_is_refused(
    alice, engine, monkeypatch, of_adapter, of_base, why
):
    adapter = make_adapter(alice, 2)

    async def score(prompt_ids, response_ids, *, policy):
        said = of_adapter if policy.adapter else of_base
        trained = [engine._logprob(token, policy_of(adapter)) for token in response_ids]
        return trained if said is None else [said] * len(response_ids)

    monkeypatch.setattr(engine, "score", score)
    with pytest.raises(AdapterRejected, match=why):
        serving.load_and_probe(adapter)
    assert loaded(engine) == set()


def test_of_several_servers_the_worst_counts_and_one_that_is_down_does_not(alice, monkeypatch):
    found = iter(
        [
            {"disagreement": 0.1, "difference": 0.5},
            EngineUnavailable("no answer"),
            {"disagreement": 0.2, "difference": 0.9},
        ]
    )

    def proven(*_):
        if isinstance(each := next(found), EngineUnavailable):
            raise each
        return each

    monkeypatch.setattr(serving, "get_replicas", lambda: [None] * 3)
    monkeypatch.setattr(serving, "_proven_on", proven)
    assert serving.load_and_probe(make_adapter(alice, 1)) == {
        "disagreement": 0.2, "difference": 0.5,
    }  # fmt: skip


def test_weights_that_cannot_be_read_are_refused(alice, engine):
    adapter = make_adapter(alice, 1)
    weights = config().var / adapter.path / serving.WEIGHTS
    weights.unlink()
    weights.mkdir()
    with pytest.raises(AdapterRejected):
        serving.check_files(adapter)
    weights.rmdir()


# Loaded


def test_what_is_loaded_already_is_not_loaded_again(alice, engine, monkeypatch):
    load(engine, make_adapter(alice, 1, AdapterState.LIVE))
    monkeypatch.setattr(serving, "load_and_probe", lambda _: pytest.fail("it is there"))
    serving.reconcile()


def test_a_version_on_its_way_to_live_is_not_unloaded(alice, engine):
    name = f"{install_id()}-u{alice.pk}-v1-11111111"
    load(engine, coming := make_adapter(alice, 1, AdapterState.CANDIDATE, name=name))
    serving.reconcile()
    assert loaded(engine) == {coming.name}


@pytest.mark.parametrize("becomes", ["candidate", "on trial"])
def test_what_is_needed_since_the_rows_were_read_is_not_unloaded(
    alice, bob, engine, monkeypatch, becomes
):
    name = f"{install_id()}-u{alice.pk}-v1-11111111"
    load(engine, hers := make_adapter(alice, 1, name=name))
    his = make_adapter(bob, 1, AdapterState.LIVE)
    real = engine.load

    async def slowly(policy):
        if becomes == "candidate":
            await sync_to_async(AdapterVersion.objects.filter(pk=hers.pk).update)(state="candidate")
        else:
            trial = {"trial": hers, "trial_share": 50}
            await sync_to_async(User.objects.filter(pk=alice.pk).update)(**trial)
        await real(policy)

    monkeypatch.setattr(engine, "load", slowly)
    serving.reconcile()
    assert loaded(engine) == {hers.name, his.name}


# On disk


def test_of_what_was_live_before_the_last_one_is_kept(alice, engine):
    first, second, *_ = rows = [make_adapter(alice, n) for n in range(1, 9)]
    row = rows[-1]
    row.state, row.live_before = AdapterState.LIVE, [first.pk, second.pk]
    row.save()
    serving.prune()
    assert (files(first), files(second)) == (False, True)


def test_a_candidate_is_kept_however_many_are_newer(alice, engine):
    coming = make_adapter(alice, 1, AdapterState.CANDIDATE)
    optimizer(coming).touch()
    old, *_ = [make_adapter(alice, n) for n in range(2, 9)]
    serving.prune()
    assert (files(coming), optimizer(coming).exists(), files(old)) == (True, True, False)


def test_adams_state_is_kept_only_where_a_job_may_go_on_from_it(alice, engine):
    idle, live = make_adapter(alice, 1), make_adapter(alice, 2, AdapterState.LIVE)
    for adapter in (idle, live):
        optimizer(adapter).touch()
    serving.prune()
    assert files(idle)
    assert (optimizer(idle).exists(), optimizer(live).exists()) == (False, True)


def test_what_the_server_still_holds_is_not_deleted(alice, engine):
    held, gone, *_ = [make_adapter(alice, n) for n in range(1, 9)]
    load(engine, held)
    serving.prune()
    assert (files(held), files(gone)) == (True, False)


def test_a_live_version_is_not_deleted(alice, engine):
    live = make_adapter(alice, 1, AdapterState.LIVE)
    assert not serving.delete_files(live, why="")
    assert files(live)


def test_files_of_an_erased_version_go_once_the_server_does_not_hold_it(alice, engine):
    load(engine, erased := make_adapter(alice, 1, AdapterState.ERASED))
    serving.prune()
    assert files(erased)
    async_to_sync(engine.unload)(policy_of(erased))
    serving.prune()
    assert not files(erased)


def test_anothers_job_keeps_no_orphan(alice, bob, engine):
    home = config().var / serving.home_of(alice.pk)
    (home / "v7.1").mkdir(parents=True)
    rated(bob, 1)
    claimed_job(bob)
    serving.prune()
    assert not (home / "v7.1").exists()


def test_the_files_of_a_tenth_attempt_are_not_those_of_the_first(alice):
    first = make_adapter(alice, 1)
    tenth = config().var / f"{first.path}0.probe.json"
    tenth.touch()
    serving.remove_files(config().var / first.path)
    assert tenth.exists()
    assert not files(first)
    tenth.unlink()


@pytest.mark.parametrize("gone", ["row", "files"])
def test_what_is_gone_is_not_taken_along(alice, gone):
    adapter = make_adapter(alice, 1, AdapterState.ERASED if gone == "row" else AdapterState.STANDBY)
    if gone == "files":
        serving.remove_files(config().var / adapter.path)
    with pytest.raises(FileErased):
        serving.packed(adapter)


@pytest.mark.parametrize("state", [AdapterState.STANDBY, AdapterState.REFUSED])
def test_what_does_not_answer_can_be_deleted(alice, engine, valkey_server, state):
    versions.delete(adapter=(adapter := make_adapter(alice, 1, state)))
    adapter.refresh_from_db()
    assert (adapter.state, files(adapter)) == (AdapterState.ERASED, False)
