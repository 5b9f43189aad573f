"""One claimed job: load, train, save, gate. The only door to torch.

The base model stays in this process between jobs. A job's worker renews its lease from a thread;
`check` is called at each micro-batch and sampled token, and ends the run when the lease is lost,
the job is cancelled or the process should stop.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.utils.translation import gettext_noop

from clawweb import disk, logs, sentences
from clawweb.config import config
from clawweb.engine import tokenizer_controls
from clawweb.keeper import Cancelled, Keeper, Stopping
from clawweb.models import AdapterVersion, JobState, TrainingJob, TrainingSample, User
from clawweb.selectors.chat import messages_for
from clawweb.selectors.hints import contradicted_by_newer, learned_samples
from clawweb.selectors.learning import age_of, held_back_samples, policy_of
from clawweb.selectors.usable import chosen_settings
from clawweb.services import finishing, jobs, serving, versions
from clawweb.services.errors import LeaseLost
from clawweb.worker import doing
from rollouts.rendering import defuse, defused, defused_json
from rollouts.types import Sample
from training.adapters import SavedAdapter, attach, check_folder, detach, save_version
from training.advantages import Baseline
from training.base import Base, load_base
from training.config import CANDIDATES, TrainConfig
from training.demonstrations import correction_of
from training.drift import Wishes
from training.errors import NoSignal, TrainingError
from training.gate import decide, measure, neutral_prompts, warm
from training.optimizer import save_optimizer
from training.probe import write_probe
from training.small_talk import AT_ONCE, examples, wish_probe
from training.trainer import train
from training.types import RATED, REANSWER, THUMBS, StepMetrics, TrainResult
from training.way_back import step_back, way_measure

log = logging.getLogger(__name__)

# What a job is at, as people read it
_RATED = gettext_noop("training on the rated replies")
_PHASES = {
    RATED: _RATED,
    REANSWER: gettext_noop("answering your prompts again, to learn from that"),
    THUMBS: gettext_noop("training on all thumbs, earlier ones too"),
}
_GATE = gettext_noop("testing the new version")
_DISK_FULL = gettext_noop("There was no room on the disk for the new version, three times.")


def run(job_id: str) -> bool:
    """Take the job as far as it goes; whether its version waits to be deployed."""
    job = jobs.claim_job(job_id)
    if job is None:
        return False  # another worker has it, or it is over
    doing(sentences.TRAINS % {"job": job.public_id})
    try:
        with logs.about(job=job.public_id, user=job.user_id):
            return _worked_on(job)
    except LeaseLost:
        log.warning("the lease of %s was lost: another worker has it", job)
    finally:
        doing(sentences.IDLE)
    return False


def _worked_on(job: TrainingJob) -> bool:
    """The job's version, or the job's end with the reason why there is none."""
    try:
        with Keeper(job) as keeper:
            return _version(job, keeper)
    except LeaseLost:
        raise
    except Stopping:
        jobs.put_back(job)
    except Cancelled:
        jobs.end_job(job, state=JobState.CANCELLED, reason=sentences.CANCELLED)
    except NoSignal as exc:
        finishing.drop_samples(job, exc.dropped, unheard=exc.unheard)
        jobs.end_job(
            job, state=JobState.NO_SIGNAL, reason=gettext_noop("None of the ratings could train.")
        )
    except TrainingError as exc:
        jobs.end_job(job, state=JobState.FAILED, reason=sentences.FAILED % {"why": exc})
    except Exception as exc:
        log.exception("%s failed", job)
        _end_broken(job, exc)
    return False


def _end_broken(job: TrainingJob, exc: Exception) -> None:
    """A job that found no room on the disk, or no database, is taken up again, three times in all,
    however often its worker was stopped between; any other failure is one."""
    is_full = disk.is_full(exc)
    passes = is_full or isinstance(exc, (OperationalError, InterfaceError))
    full, silent = gettext_noop("the disk was full"), gettext_noop("the database was away")
    before = job.events.filter(kind="put_back", text__in=[full, silent])
    if passes and before.count() + job.crashes + 1 < jobs.MAX_ATTEMPTS:
        jobs.put_back(job, full if is_full else silent)
        return
    why = f"{type(exc).__name__}: {exc}"
    reason = _DISK_FULL if is_full else sentences.BROKE % {"why": why}
    jobs.end_job(job, state=JobState.FAILED, reason=reason)


def _version(job: TrainingJob, keeper: Keeper) -> bool:
    """Train and gate the job's version; True when it is accepted."""
    clock, check = Clock(), keeper.check
    base = loaded_base()
    settings = _train_config(job)
    parent = Path(policy_of(job.parent).path or "") if job.parent else None
    model = _attached(base, settings, parent)
    try:
        clock.took("load")
        jobs.advance(job, state=JobState.TRAINING, phase=_RATED, config=asdict(settings))
        result = _train(job, base, model, settings, parent, keeper)
        clock.took("train")
        jobs.advance(
            job,
            state=JobState.GATING,
            phase=_GATE,
            timings=clock.seconds,
            config=_trained_with(settings, result.config),
        )
        wishes = _wishes(job)
        told = neutral_prompts(), wishes, settings, check
        way = step_back(base, model, parent, *told)
        clock.took("step_back")
        version = versions.next_version(job.user)
        path = versions.folder_for(job.user, version, job.attempt)
        saved = _save(base, model, result, path)
        clock.took("save")
        kept_aside = _kept_aside(job, base)
        measures = measure(base, model, parent, kept_aside, *told)
        measures.append(way_measure(way))
        clock.took("gate")
    finally:
        detach(base, model)
    decision = decide(measures)
    note = " ".join(decision.reasons)
    with transaction.atomic():  # a version is never registered without being handed over
        jobs.advance(job, timings={**clock.seconds, "baseline": asdict(result.baseline)})
        versions.register(
            job,
            version=version,
            path=path,
            sha256=saved.sha256,
            size_bytes=saved.bytes,
            rank=saved.rank,
            base_hash=base.weights_hash,
            measures=measures,
            accepted=decision.accepted,
            note=note,
        )
        return _hand_over(job, accepted=decision.accepted, note=note)


def _kept_aside(job: TrainingJob, base: Base) -> list[Sample]:
    """What the gate compares versions on, as the trainer sees it: not what its user has
    contradicted since, nor what another template rendered."""
    rows = held_back_samples(job.user)
    known = [*rows, *jobs.samples_of(job), *learned_samples(job.parent)[:200]]
    older = contradicted_by_newer(known)
    held = [sample_for(row, job.parent) for row in rows if row.pk not in older]
    return [sample for sample in held if sample.template_hash == base.template_hash]


def _attached(base: Base, settings: TrainConfig, parent: Path | None) -> Any:
    """The base wearing the parent; a base that was left half dressed is not used again."""
    try:
        return attach(base, settings, parent)
    except BaseException:
        _BASE.clear()
        raise


class Clock:
    """Seconds that each phase of a job took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._mark = time.monotonic()

    def took(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase] = round(now - self._mark, 3)
        self._mark = now


def _save(base: Base, model: Any, result: TrainResult, path: Path) -> SavedAdapter:
    """The version's folder, whole and checked; Adam's state and the probe beside it. Or nothing."""
    folder = (config().var / path).resolve()
    _remove_orphan(folder, path)
    try:
        saved = save_version(model, folder)
        save_optimizer(result.optimizer, folder.with_name(f"{folder.name}.optimizer.safetensors"))
        check_folder(folder, base=base, max_rank=config().lora_rank)
        write_probe(base, model, folder.with_name(f"{folder.name}.probe.json"))
    except BaseException:
        _remove_orphan(folder, path)  # a disk that is full gets its room back
        raise
    return saved


def _hand_over(job: TrainingJob, *, accepted: bool, note: str) -> bool:
    """To the deployer, without a lease; or the end, when the gate said no."""
    if accepted:
        jobs.advance(
            job,
            state=JobState.DEPLOYING,
            phase=sentences.GOING_LIVE,
            lease_token="",
            lease_until=None,
        )
    else:
        jobs.end_job(job, state=JobState.REFUSED, reason=note)
    return accepted


def _train(
    job: TrainingJob,
    base: Base,
    model: Any,
    settings: TrainConfig,
    parent: Path | None,
    keeper: Keeper,
) -> TrainResult:
    """The job's samples through the trainer; drops and re-answers onto the rows."""
    optimizer = parent.with_name(f"{parent.name}.optimizer.safetensors") if parent else None
    finishing.leave_out_withdrawn(job)

    def on_step(metrics: StepMetrics) -> None:
        values = asdict(metrics)
        step, steps = values.pop("step"), values.pop("steps")
        jobs.record_step(job, step=step, steps=steps, values=values, phase=_PHASES[metrics.phase])

    result = train(
        base,
        model,
        [sample_for(row, job.parent) for row in jobs.samples_of(job)],
        settings,
        replay=[sample_for(row, job.parent) for row in jobs.samples_of(job, "replay")],
        parent_optimizer=optimizer if optimizer and optimizer.exists() else None,
        baseline=_baseline(job.user),
        on_step=on_step,
        check=keeper.check,
        enough=keeper.enough,
    )
    if result.dropped:
        finishing.drop_samples(job, result.dropped, unheard=result.unheard)
    finishing.give_back_untrained(job, result.trained)
    finishing.note_unheard(job, result.unheard, distils=result.config.distils)
    finishing.note_early_end(job, result.stopped)
    jobs.note_reanswers(job, result.reanswers)
    jobs.note_effects(job, result.effects)
    return result


def sample_for(row: TrainingSample, parent: AdapterVersion | None) -> Sample:
    """The row as the trainer sees it: sampled ids verbatim, texts defused as they were for
    sampling."""
    turn = row.turn
    controls = tokenizer_controls()
    followed = row.followed
    taken_back = [hint for hint in turn.prompted_hints if hint not in followed]
    return Sample(
        id=row.pk,
        messages=defused(messages_for(turn), controls),
        prompt_ids=turn.prompt_ids or (),
        response_ids=turn.response_ids or (),
        rollout_logprobs=turn.logprobs,
        temperature=float(turn.sampling["temperature"]),
        template_hash=turn.template_hash,
        reward=row.reward,
        hint=defuse(row.hint, controls) or None,
        correction=defuse(row.correction, controls) or None,
        other_hints=tuple(defuse(hint, controls) for hint in row.other_hints),
        prompted_hints=tuple(defuse(hint, controls) for hint in turn.prompted_hints),
        taken_back=tuple(defuse(hint, controls) for hint in taken_back),
        tools=defused_json(turn.tools, controls),
        at=turn.started_at,
        version_age=age_of(row, parent),
    )


def _wishes(job: TrainingJob) -> Wishes:
    """What the versions so far were asked to become, newest first: what the user has contradicted
    since is no wish of theirs."""
    controls = tokenizer_controls()
    rows = [*reversed(jobs.samples_of(job)), *learned_samples(job.parent)[:200]]
    older = contradicted_by_newer(rows)
    rows = [row for row in rows if row.pk not in older]
    hints = dict.fromkeys(defuse(hint, controls) for row in rows for hint in row.lessons)
    shown = (correction_of(sample_for(row, job.parent)) for row in rows if row.correction)
    examples = islice((each for each in shown if each), CANDIDATES)
    return Wishes(hints=tuple(hints), examples=tuple(examples))


def _train_config(job: TrainingJob) -> TrainConfig:
    settings = config()
    return TrainConfig(
        **chosen_settings(job.config),
        method=job.method,
        rank=settings.lora_rank,
        train_seconds=settings.train_seconds,
        max_tokens=settings.train_tokens,
        earlier_exchanges=settings.train_exchanges,
    )


def _trained_with(asked: TrainConfig, trained: TrainConfig) -> dict[str, Any]:
    """The settings of a job's row; what thumbs alone changed of them is in `trained_as`, so that
    another attempt begins with what was asked for."""
    before, after = asdict(asked), asdict(trained)
    changed = {name: value for name, value in after.items() if value != before[name]}
    return {**before, "trained_as": changed} if changed else before


def _baseline(user: User) -> Baseline:
    return Baseline(mean=user.reward_mean, variance=user.reward_variance, count=user.reward_count)


def _remove_orphan(folder: Path, path: Path) -> None:
    """What no row names is left from a worker that died before it could register it."""
    if not AdapterVersion.objects.filter(path=str(path)).exists():
        serving.remove_files(folder)


_BASE: list[Base] = []


def loaded_base() -> Base:
    """The base model of this process, loaded on first use and kept. One job runs at a time."""
    if not _BASE:
        settings = config()
        _BASE.append(
            load_base(
                settings.model_folder,
                threads=settings.train_threads,
                chat_template=settings.template_file,
                thinks=settings.thinks,
                kept=settings.var / "small-talk",
            )
        )
    return _BASE[0]


def warm_up() -> None:
    """Load the base and measure what every gate and every hint asks of it, before a job waits. What
    is wrong with the base is said at once, where the worker's work is shown."""
    doing(sentences.LOADS)
    try:
        base = loaded_base()
        warm(base, neutral_prompts(), TrainConfig(rank=config().lora_rank))
        wish_probe(base, base.model, _reading())
    except Exception as exc:
        says_all = isinstance(exc, TrainingError)
        log.error("no job can train: %s", exc, exc_info=None if says_all else exc)
        why = str(exc) if says_all else f"{type(exc).__name__}, see the worker's log"
        doing(sentences.CANNOT_TRAIN % {"why": why})
    else:
        doing(sentences.IDLE)


def _reading() -> Callable[[], None]:
    """Called before each part of the examples: says which one it is."""
    parts, begun = math.ceil(len(examples()) / AT_ONCE), count(1)
    return lambda: doing(sentences.READS_EXAMPLES % {"n": next(begun), "of": parts})
