"""What the model server holds: loading, proving, reconciling with the rows, deleting old files."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from asgiref.sync import async_to_sync
from django.db.models import Q
from django.utils.translation import gettext as _

from clawweb import sentences
from clawweb.config import config
from clawweb.engine import base_hash, get_engine, get_replicas, install_id
from clawweb.models import (
    ACTIVE_JOB,
    AdapterState,
    AdapterVersion,
    TrainingJob,
    Turn,
    TurnState,
    User,
)
from clawweb.selectors.learning import policy_of
from clawweb.selectors.trials import versions_on_trial
from clawweb.services.errors import CannotPromote, EngineDown, FileErased
from rollouts.engines.base import Engine
from rollouts.errors import (
    AdapterRejected,
    BadReply,
    EngineRefused,
    EngineUnavailable,
    RolloutError,
)
from rollouts.types import BASE, Policy

log = logging.getLogger(__name__)

MOST_IN_MEMORY = 16 << 20  # bytes of a ZIP; a larger one is made on disk
WEIGHTS = "adapter_model.safetensors"
_WRITTEN = re.compile(r"\.?(v[0-9]+\.[0-9]+)(?:\.|$)")  # v3.1, v3.1.probe.json, .v3.1.unfinished-7
NOT_PROVEN = (EngineRefused, BadReply)  # a server that cannot read it back does not keep it either
MIN_DIFFERENCE = 1e-3  # mean |Δ log-prob| by which a version must differ from base on its probe


def load_and_probe(adapter: AdapterVersion) -> dict[str, float]:
    """Serve the version everywhere and prove on each server that it is itself; the worst of what
    was measured. AdapterRejected when it is not, BadReply when a server does not say what it
    reads, EngineUnavailable when none answers."""
    policy = policy_of(adapter)
    check_files(adapter)
    probe = _probe_of(policy)
    measured: list[dict[str, float]] = []
    lost = EngineUnavailable("no server answers")
    refused: EngineRefused | BadReply | None = None
    for engine in get_replicas():
        try:
            measured.append(_proven_on(engine, probe, policy))
        except EngineUnavailable as exc:  # left out; it will say what it lacks when it is back
            lost = exc
        except NOT_PROVEN as exc:  # the others may still serve what is live already
            refused = exc
    if refused or not measured:
        raise refused or lost
    return {
        "disagreement": max(each["disagreement"] for each in measured),
        "difference": min(each["difference"] for each in measured),
    }


def check_files(adapter: AdapterVersion) -> None:
    """AdapterRejected unless its weights on disk are those that passed the gate. What changed since
    may be anything: the server takes wrong shapes without a word, and one number that is none
    spoils other people's replies."""
    folder = config().var / adapter.path
    if not folder.is_dir():
        raise AdapterRejected(sentences.FILES_GONE)
    try:
        with (folder / WEIGHTS).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise AdapterRejected(sentences.UNREADABLE % {"why": exc.strerror}) from exc
    if found != adapter.sha256:
        raise AdapterRejected(sentences.CHANGED)


def _probe_of(policy: Policy) -> dict[str, Any]:
    """What the trainer left beside the version for this."""
    try:
        probe = json.loads(Path(f"{policy.path}.probe.json").read_text())
        return {name: probe[name] for name in ("prompt_ids", "response_ids", "adapter_logprobs")}
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise AdapterRejected(sentences.FILES_GONE) from exc


def _proven_on(engine: Engine, probe: dict[str, Any], policy: Policy) -> dict[str, float]:
    """What was measured on one server; one that it is refused on does not keep it."""
    async_to_sync(engine.load)(policy)
    try:
        return _compare_probe(engine, probe, policy)
    except NOT_PROVEN:
        async_to_sync(engine.unload)(policy)
        raise


def _compare_probe(engine: Engine, probe: dict[str, Any], policy: Policy) -> dict[str, float]:
    """Mean |Δ| (nats per token) to the trainer's log-probs, and to the base's."""
    ids = probe["prompt_ids"], probe["response_ids"]
    served = async_to_sync(engine.score)(*ids, policy=policy)
    base = async_to_sync(engine.score)(*ids, policy=BASE)
    disagreement = _mean_distance(served, probe["adapter_logprobs"])
    difference = _mean_distance(served, base)
    if not disagreement <= config().probe_tolerance:  # also catches NaN
        raise AdapterRejected(
            sentences.DISAGREES
            % {"value": f"{disagreement:.4f}", "limit": config().probe_tolerance}
        )
    if not difference >= MIN_DIFFERENCE:
        raise AdapterRejected(sentences.NO_DIFFERENCE)
    return {"disagreement": disagreement, "difference": difference}


def _mean_distance(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)


def serve(adapter: AdapterVersion) -> None:
    """Have the server know the version; in words why when it does not."""
    try:
        check_files(adapter)
        async_to_sync(get_engine().load)(policy_of(adapter))
    except EngineUnavailable as exc:
        raise EngineDown(_("The model server does not answer. Try again in a minute.")) from exc
    except RolloutError as exc:
        raise CannotPromote(_("The model server will not load it: %(why)s") % {"why": exc}) from exc


def reconcile() -> None:
    """Make the server agree with the rows: load and prove what is live or on trial and is not held
    everywhere, unload what has drained."""
    engine = get_engine()
    loaded = async_to_sync(engine.loaded)()
    answering = [*AdapterVersion.objects.filter(state=AdapterState.LIVE), *versions_on_trial()]
    for adapter in answering:
        policy = policy_of(adapter)
        if adapter.base_hash != base_hash() or not Path(policy.path or "").is_dir():
            continue  # the server could not wear it; base answers and says why
        if loaded.get(adapter.name) != policy.path:
            try:
                load_and_probe(adapter)
            except NOT_PROVEN as exc:  # one broken version keeps nobody else's away
                log.warning("%s cannot be served: %s", adapter.name, exc)
    wanted = {adapter.name for adapter in answering}
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
        if name.startswith(f"{install_id()}-") and name not in wanted and not _is_wanted_now(name):
            async_to_sync(engine.unload)(Policy(adapter=name))


def _is_wanted_now(name: str) -> bool:
    """Loading takes time: somebody may have made it live since the rows were read."""
    row = AdapterVersion.objects.filter(name=name)
    answers = Q(state__in=[AdapterState.LIVE, AdapterState.CANDIDATE])
    return row.filter(answers | Q(pk__in=User.objects.exclude(trial=None).values("trial"))).exists()


def prune() -> None:
    """Delete files that nothing needs: of versions neither live, previous, a running job's parent,
    pinned, on trial nor among the newest five, and Adam's state of all but the first three. Three
    queries for all who have nothing to delete."""
    versions: dict[int, list[AdapterVersion]] = defaultdict(list)
    for row in AdapterVersion.objects.exclude(state=AdapterState.ERASED):
        versions[row.user_id].append(row)
    trials = dict(User.objects.exclude(trial=None).values_list("pk", "trial"))
    active = TrainingJob.objects.filter(state__in=ACTIVE_JOB)
    parents = set(active.exclude(parent=None).values_list("parent", flat=True))
    for pk in {*versions, *_with_files()}:
        rows = versions[pk]
        in_use = {row.pk for row in rows if row.pk in parents}
        for row in rows:
            if row.state in (AdapterState.LIVE, AdapterState.CANDIDATE):
                in_use |= {row.pk, *row.live_before[-1:]}
        newest = {row.pk for row in rows[: config().versions_kept]}
        pinned = {row.pk for row in rows if row.pinned}
        keep = {*in_use, *newest, *pinned, trials.get(pk)}
        _remove_orphans(pk, {Path(row.path).name for row in rows})
        for row in rows:
            if row.pk not in keep:
                delete_files(row, why=sentences.REPLACED)
            elif row.pk not in in_use:
                (config().var / f"{row.path}.optimizer.safetensors").unlink(missing_ok=True)


def home_of(user_pk: int) -> Path:
    """Where all of a user's versions are, relative to var."""
    return Path("adapters") / f"u{user_pk}"


def _with_files() -> list[int]:
    """Users, also of erased accounts, who have a folder for versions."""
    homes = (config().var / home_of(0)).parent.glob("u*")
    return [int(home.name[1:]) for home in homes if home.name[1:].isdecimal()]


def _remove_orphans(user_pk: int, known: set[str]) -> None:
    """What a worker wrote that no row names: it died, or all was erased while it trained.

    Where all that is there is `known` nobody is asked. Else the folder is read before the jobs, and
    the jobs before the versions: what was there and has no job any more has its row by then, if it
    gets one.
    """
    home = config().var / home_of(user_pk)
    found = [entry for entry in _entries(home) if _version_of(entry) not in known]
    if not found or TrainingJob.objects.filter(user=user_pk, state__in=ACTIVE_JOB).exists():
        return
    loaded = async_to_sync(get_engine().loaded)()
    own = AdapterVersion.objects.filter(user=user_pk)
    needed = own.exclude(state=AdapterState.ERASED) | own.filter(name__in=loaded)
    kept = {Path(path).name for path in needed.values_list("path", flat=True)}
    for entry in found:
        if _version_of(entry) in kept:
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _entries(home: Path) -> list[Path]:
    """What workers wrote there; what somebody put beside is theirs."""
    return [entry for entry in home.iterdir() if _version_of(entry)] if home.is_dir() else []


def _version_of(entry: Path) -> str | None:
    """The version and attempt that it was written for."""
    ours = _WRITTEN.match(entry.name)
    return ours[1] if ours else None


def unload(adapter: AdapterVersion) -> None:
    """Have the server forget the version; in words why when it cannot."""
    try:
        async_to_sync(get_engine().unload)(policy_of(adapter))
    except EngineUnavailable as exc:
        raise EngineDown(_("The model server does not answer. Try again in a minute.")) from exc


def delete_files(adapter: AdapterVersion, *, why: str) -> bool:
    """Remove what is on disk of a version that is not live; False when it is not there to remove,
    or still loaded."""
    loaded = async_to_sync(get_engine().loaded)()
    if adapter.name in loaded:
        return False  # the server would die on its next use; the sweep unloads it first
    moved = AdapterVersion.objects.filter(
        pk=adapter.pk, state__in=[AdapterState.STANDBY, AdapterState.REFUSED]
    ).update(state=AdapterState.ERASED, note=why)
    if moved:
        remove_files(config().var / adapter.path)
    return bool(moved)


def remove_files(folder: Path) -> None:
    """A version's folder, Adam's state and its probe."""
    shutil.rmtree(folder, ignore_errors=True)
    for beside in folder.parent.glob(f"{folder.name}.*"):
        if not beside.is_dir():
            beside.unlink(missing_ok=True)


def packed(adapter: AdapterVersion) -> IO[bytes]:
    """The version as a ZIP that `peft` loads elsewhere: weights, settings, how to use them."""
    folder = config().var / adapter.path
    if adapter.state == AdapterState.ERASED or not folder.is_dir():
        raise FileErased(_("The files of this version are gone."))
    file = tempfile.SpooledTemporaryFile(max_size=MOST_IN_MEMORY)  # noqa: SIM115  # its reader closes it
    with zipfile.ZipFile(file, "w") as archive:  # stored: weights do not get smaller
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            archive.write(folder / name, name)
        archive.writestr("README.md", _readme(adapter))
    file.seek(0)
    return file


def _readme(adapter: AdapterVersion) -> str:
    base = config().model_folder.name
    return f"""# Version {adapter.version} of an agent

A LoRA adapter (rank {adapter.rank}) for {base}, sha256 of the weights {adapter.sha256}.

    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained("…/{base}")
    model = PeftModel.from_pretrained(base, "this folder")

It was trained from one person's ratings and may repeat what they wrote.
"""
