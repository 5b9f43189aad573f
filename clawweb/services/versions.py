"""Versions: registering what training saved, and moving `live` by compare-and-swap."""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from clawweb.config import config
from clawweb.engine import get_engine, install_id
from clawweb.events import changed
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    Event,
    GateResult,
    JobState,
    TrainingJob,
    Turn,
    TurnState,
    User,
)
from clawweb.selectors.learning import live_adapter, policy_of
from clawweb.services.errors import CannotPromote, EngineDown, LeaseLost, NothingToRollBack
from clawweb.services.jobs import held
from rollouts.errors import AdapterRejected, EngineRefused, EngineUnavailable, RolloutError
from rollouts.types import BASE, Policy

log = logging.getLogger(__name__)

MIN_DIFFERENCE = 1e-3  # mean |Δ log-prob| by which a version must differ from base on its probe
KEEP_NEWEST = 5


class Measure(Protocol):
    """One gate measure, as training.gate gives it."""

    measure: str
    value: float | None
    limit: float | None
    ok: bool | None
    text: str


def next_version(user: User) -> int:
    """Numbers count on and are never used twice. One active job per user keeps this free of
    races."""
    highest = AdapterVersion.objects.filter(user=user).aggregate(Max("version"))["version__max"]
    return (highest or 0) + 1


def folder_for(user: User, version: int, attempt: int) -> Path:
    """Where this attempt at a version is written, relative to var."""
    return Path("adapters") / f"u{user.pk}" / f"v{version}.{attempt}"


def adapter_name(user: User, version: int, sha256: str) -> str:
    return f"{install_id()}-u{user.pk}-v{version}-{sha256[:8]}"


@transaction.atomic
def register(
    job: TrainingJob,
    *,
    version: int,
    path: Path,
    sha256: str,
    size_bytes: int,
    base_hash: str,
    measures: Sequence[Measure],
    accepted: bool,
    note: str,
) -> AdapterVersion:
    """The row of a saved version with its gate results; exactly one per job, under the job's
    lease."""
    if not held(job).filter(child=None).exists():
        raise LeaseLost(job.public_id)
    adapter = AdapterVersion.objects.create(
        user=job.user,
        version=version,
        name=adapter_name(job.user, version, sha256),
        state=AdapterState.CANDIDATE if accepted else AdapterState.REFUSED,
        parent=job.parent,
        path=str(path),
        sha256=sha256,
        size_bytes=size_bytes,
        rank=config().lora_rank,
        base_hash=base_hash,
        note=note,
    )
    GateResult.objects.bulk_create(
        GateResult(
            adapter=adapter,
            measure=m.measure,
            value=m.value,
            limit=m.limit,
            ok=m.ok,
            text=m.text,
        )
        for m in measures
    )
    held(job).update(child=adapter)
    job.child = adapter
    _note(adapter, "accepted" if accepted else "refused", note)
    changed(job.user_id, "adapter", adapter.name)
    return adapter


def claim_deploy(public_id: str) -> TrainingJob | None:
    """A job that waits to be deployed, under a fresh lease; None when another worker has it."""
    now = timezone.now()
    job = TrainingJob.objects.filter(public_id=public_id, state=JobState.DEPLOYING).first()
    if job is None or (job.lease_until is not None and job.lease_until > now):
        return None
    token = str(uuid.uuid4())
    taken = TrainingJob.objects.filter(
        pk=job.pk, state=JobState.DEPLOYING, lease_token=job.lease_token
    ).update(lease_token=token, lease_until=now + timedelta(seconds=config().lease_seconds))
    return TrainingJob.objects.select_related("user", "child").get(pk=job.pk) if taken else None


def release_deploy(job: TrainingJob) -> None:
    """Let go, so that the sweep tries again: the engine did not answer."""
    held(job).update(lease_until=timezone.now(), phase="waiting for the model server")


def jobs_to_deploy() -> list[TrainingJob]:
    rows = TrainingJob.objects.filter(state=JobState.DEPLOYING)
    return list(rows.filter(lease_until=None) | rows.filter(lease_until__lt=timezone.now()))


def load_and_probe(adapter: AdapterVersion) -> dict[str, float]:
    """Serve the version and prove that it is itself; raises AdapterRejected when it is not."""
    policy = policy_of(adapter)
    if policy.path is None or not Path(policy.path).is_dir():
        raise AdapterRejected("its files are gone")
    engine = get_engine()
    async_to_sync(engine.load)(policy)
    probe = json.loads(Path(policy.path + ".probe.json").read_text())
    return _compare_probe(probe, policy)


def _compare_probe(probe: dict[str, Any], policy: Policy) -> dict[str, float]:
    """Mean |Δ| (nats per token) to the trainer's log-probs, and to the base's."""
    engine = get_engine()
    ids = probe["prompt_ids"], probe["response_ids"]
    served = async_to_sync(engine.score)(*ids, policy=policy)
    base = async_to_sync(engine.score)(*ids, policy=BASE)
    disagreement = _mean_distance(served, probe["adapter_logprobs"])
    difference = _mean_distance(served, base)
    if not disagreement <= config().probe_tolerance:  # also catches NaN
        raise AdapterRejected(
            f"trainer and server disagree about it by {disagreement:.4f} nats per token, "
            f"more than {config().probe_tolerance}"
        )
    if not difference >= MIN_DIFFERENCE:
        raise AdapterRejected("the server answers with it exactly as the base model does")
    return {"disagreement": disagreement, "difference": difference}


def _mean_distance(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)


@transaction.atomic
def go_live(adapter: AdapterVersion, *, over: AdapterVersion | None, why: str) -> None:
    """Move the user's `live` from `over` to `adapter`; CannotPromote when it has moved
    meanwhile."""
    now = timezone.now()
    if over is not None:
        if not AdapterVersion.objects.filter(pk=over.pk, state=AdapterState.LIVE).update(
            state=AdapterState.STANDBY
        ):
            raise CannotPromote("Another version went live in the meantime. Look again.")
    elif live_adapter(adapter.user) is not None:
        raise CannotPromote("Another version went live in the meantime. Look again.")
    moved = AdapterVersion.objects.filter(
        pk=adapter.pk, state__in=[AdapterState.CANDIDATE, AdapterState.STANDBY]
    ).update(state=AdapterState.LIVE, live_at=now, replaced=over, rolled_back_at=None)
    if not moved:
        raise CannotPromote(f"Version {adapter.version} is {adapter.state} and cannot go live.")
    _note(adapter, "live", why)
    changed(adapter.user_id, "adapter", adapter.name)


def promote(*, user: User, adapter: AdapterVersion) -> None:
    """Make an accepted version of the user's live again."""
    live = live_adapter(user)
    if live is not None and live.pk == adapter.pk:
        return
    if adapter.state != AdapterState.STANDBY:
        raise CannotPromote(
            f"Version {adapter.version} is {adapter.state}: "
            "only a version that passed the gate can go live."
        )
    _serve(adapter)
    go_live(adapter, over=live, why="promoted by hand")


def rollback(user: User) -> AdapterVersion | None:
    """Move `live` to what it replaced; None = the base model answers now."""
    live = live_adapter(user)
    if live is None:
        raise NothingToRollBack("The base model answers already; there is nothing to roll back.")
    back = live.replaced
    while back is not None and back.state != AdapterState.STANDBY:
        back = back.replaced
    if back is not None:
        _serve(back)
    with transaction.atomic():
        before = back.replaced if back else None
        stepped = AdapterVersion.objects.filter(pk=live.pk, state=AdapterState.LIVE).update(
            state=AdapterState.STANDBY, rolled_back_at=timezone.now()
        )
        if not stepped:
            raise CannotPromote("Another version went live in the meantime. Look again.")
        if back is not None:
            go_live(back, over=None, why=f"rolled back from version {live.version}")
            AdapterVersion.objects.filter(pk=back.pk).update(replaced=before)
        _note(live, "rolled_back", "")
        changed(user.pk, "adapter", live.name)
    return back


def _serve(adapter: AdapterVersion) -> None:
    try:
        async_to_sync(get_engine().load)(policy_of(adapter))
    except EngineUnavailable as exc:
        raise EngineDown("The model server does not answer. Try again in a minute.") from exc
    except RolloutError as exc:
        raise CannotPromote(f"The model server will not load it: {exc}") from exc


def refuse(adapter: AdapterVersion, note: str) -> None:
    """A candidate that cannot be served: live does not move."""
    AdapterVersion.objects.filter(pk=adapter.pk, state=AdapterState.CANDIDATE).update(
        state=AdapterState.REFUSED, note=note
    )
    _note(adapter, "refused", note)
    changed(adapter.user_id, "adapter", adapter.name)


def reconcile() -> None:
    """Make the server agree with the rows: load what is live, unload what has drained."""
    engine = get_engine()
    loaded = async_to_sync(engine.loaded)()
    live = list(AdapterVersion.objects.filter(state=AdapterState.LIVE))
    for adapter in live:
        policy = policy_of(adapter)
        if loaded.get(adapter.name) != policy.path and Path(policy.path or "").is_dir():
            try:
                async_to_sync(engine.load)(policy)
            except EngineRefused as exc:  # one broken version keeps nobody else's away
                log.warning("%s cannot be served: %s", adapter.name, exc)
    wanted = {adapter.name for adapter in live}
    # A version on its way to live, or one that still writes a reply, stays.
    wanted |= set(
        AdapterVersion.objects.filter(state=AdapterState.CANDIDATE).values_list("name", flat=True)
    )
    wanted |= set(
        Turn.objects.filter(state__in=[TurnState.PENDING, TurnState.STREAMING])
        .exclude(adapter_name="")
        .values_list("adapter_name", flat=True)
    )
    for name in loaded:
        if name.startswith(f"{install_id()}-") and name not in wanted:
            async_to_sync(engine.unload)(Policy(adapter=name))


def prune() -> None:
    """Delete files of versions that are neither live, previous, pinned nor among the newest
    five."""
    for user in User.objects.filter(adapters__isnull=False).distinct():
        rows = list(AdapterVersion.objects.filter(user=user).exclude(state=AdapterState.ERASED))
        keep = {row.pk for row in rows[:KEEP_NEWEST]} | {row.pk for row in rows if row.pinned}
        for row in rows:
            if row.state in (AdapterState.LIVE, AdapterState.CANDIDATE):
                keep |= {row.pk, row.replaced_id or 0}
        for row in rows:
            if row.pk not in keep:
                _delete_files(row)


def _delete_files(adapter: AdapterVersion) -> None:
    loaded = async_to_sync(get_engine().loaded)()
    if adapter.name in loaded:
        return  # the server would die on its next use; the sweep unloads it first
    moved = AdapterVersion.objects.filter(
        pk=adapter.pk, state__in=[AdapterState.STANDBY, AdapterState.REFUSED]
    ).update(state=AdapterState.ERASED, note="Its files were removed: newer versions replaced it.")
    if moved:
        folder = config().var / adapter.path
        shutil.rmtree(folder, ignore_errors=True)
        for beside in folder.parent.glob(f"{folder.name}.*"):
            if not beside.is_dir():
                beside.unlink(missing_ok=True)


def _note(adapter: AdapterVersion, kind: str, text: str) -> None:
    Event.objects.create(
        user_id=adapter.user_id,
        kind=f"adapter_{kind}",
        adapter=adapter,
        job=getattr(adapter, "job", None),
        text=text,
    )
