"""What follows what: the loop on one page. Ids in, one service call, then the next task.

The queue only hurries. Everything here can be started again from the rows by `sweep`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery import Task, shared_task
from celery.signals import worker_ready
from django.db import transaction

from clawweb import copies, disk, sentences, transfer_run, valkey
from clawweb.config import config
from clawweb.models import Turn, User
from clawweb.selectors.chat import next_turn
from clawweb.services import (
    browsers,
    chat,
    erasure,
    feedback,
    finishing,
    health,
    housekeeping,
    jobs,
    judgements,
    outage,
    retention,
    serving,
    sessions,
    transfers,
    versions,
    waiting,
)
from rollouts.errors import RolloutError

log = logging.getLogger(__name__)


def enqueue(task: Task, *ids: str) -> None:
    """Queue a task once the rows are committed. A broker that is down costs delay: the sweep
    finds the rows."""
    transaction.on_commit(lambda: _send(task, ids), robust=True)


def _send(task: Task, ids: tuple[str, ...], expires: float | None = None) -> None:
    try:
        task.apply_async(args=ids, retry=False, expires=expires)
    except Exception as exc:  # kombu's errors are many; any of them means "not now"
        log.warning("%s%s is not queued, the sweep will do it: %s", task.name, ids, exc)


def _send_again(task: Task, ids: Sequence[str]) -> None:
    """What is not taken until the next sweep is sent again then: it must not pile up. Who takes it
    drops what is too old; where nobody does, as without a trainer, the queue would grow till its
    server is full, so a long one gets no more."""
    queue = (task.app.conf.task_routes or {}).get(task.name, {}).get("queue", "default")
    if ids and not valkey.is_unread(queue):
        for name in ids:
            _send(task, (name,), config().sweep_seconds)


def after_rating(user: User) -> None:
    """A rating is saved: start a job if its batch is full."""
    job = jobs.queue_batch(user)
    if job is not None:
        enqueue(run_training_job, job.public_id)


def after_opening(turn: Turn) -> None:
    """A message has come in: what it says about the reply before it can be judged at once."""
    judgement_id = judgements.awaited(turn)
    if judgement_id is not None:
        enqueue(judge, str(judgement_id))


def after_retyping(turn: Turn) -> None:
    """A turn is main or side from now on: what is said in it, or after it, may be judged after
    all, and its rating may fill a batch."""
    for row in (turn, next_turn(turn)):
        if row is not None and judgements.expect(row) is not None:
            after_opening(row)
    after_rating(turn.session.user)


@shared_task
def judge(judgement_id: str) -> None:
    """One round of votes, on the queue `judge`. What counts may fill a batch."""
    from clawweb import judging

    user = judging.judge_reply(int(judgement_id))
    if user is not None:
        after_rating(user)


@shared_task
def settle() -> None:
    """Bare thumbs down whose time has come are counted now."""
    for user in feedback.settle_due():
        after_rating(user)


@shared_task
def run_training_job(job_id: str) -> None:
    """One claimed job, on the queue `gpu`: load, train, save, gate. Then deploy."""
    from clawweb import training_run  # torch: never in the web process

    if training_run.run(job_id):
        enqueue(deploy, job_id)


@worker_ready.connect
def _prepare(sender: Any, **_: Any) -> None:
    """A new training worker loads its model at once, not when the first job waits for it."""
    if str(sender.hostname).startswith("worker-gpu"):
        _send(warm_up, ())


@shared_task
def warm_up() -> None:
    """On the queue `gpu`: the base model into memory, with what each gate measures of it."""
    from clawweb import training_run  # torch: never in the web process

    if not jobs.forgotten_jobs():  # who waits already comes first
        training_run.warm_up()


@shared_task
def deploy(job_id: str) -> None:
    """An accepted version: load, probe, move live, and let the old one drain."""
    from clawweb import deployment

    deployment.deploy(job_id)


@shared_task
def run_transfer(transfer_id: str) -> None:
    """One export or import. Then the one that waited for it, if any."""
    if transfer_run.run(transfer_id):
        for row in transfers.forgotten()[:1]:
            enqueue(run_transfer, row.public_id)


@shared_task
def let_go() -> None:
    """What is older than the settings say, browsers that are signed in nowhere any more, and what
    a killed backup left. The day's copy of the database comes after it."""
    for step in (retention.apply, browsers.forget_ended, disk.remove_scratch, _copy_of_the_day):
        with _alone(step.__name__):
            step()


def _copy_of_the_day() -> None:
    copies.daily(config().var)


@shared_task
def sweep() -> None:
    """Find what crashes, lost messages and restarts left behind, from the rows alone."""
    health.beat("beat", "beat", sentences.SWEPT)
    steps = (
        _sweep_turns,
        _sweep_jobs,
        _sweep_judgements,
        _sweep_files,
        _sweep_erased,
        _sweep_engine,
    )
    for step in (*steps, health.forget_dead):
        with _alone(step.__name__):
            step()


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """One step's, or one user's, trouble keeps no other from its turn: the next sweep tries again.
    Of the engine, the disk and the database it is known where it is."""
    try:
        yield
    except Exception as exc:
        is_known = isinstance(exc, RolloutError | OSError) or outage.is_away(exc)
        log.warning("%s: %s", what, exc, exc_info=None if is_known else exc)


def _sweep_turns() -> None:
    chat.interrupt_abandoned()
    waiting.give_up()
    sessions.close_idle()
    housekeeping.erase_deleted()


def _sweep_erased() -> None:
    erasure.finish()


def _sweep_jobs() -> None:
    finishing.end_cancelled()
    for user in [*feedback.settle_due(), *jobs.users_with_batches()]:
        with _alone(f"a batch of user {user.pk}"):
            after_rating(user)
    _send_again(run_training_job, [job.public_id for job in jobs.forgotten_jobs()])
    _send_again(deploy, [job.public_id for job in versions.jobs_to_deploy()])


def _sweep_judgements() -> None:
    _send_again(judge, [str(pk) for pk in judgements.due()])


def _sweep_files() -> None:
    transfers.erase_old()
    _send_again(run_transfer, [row.public_id for row in transfers.forgotten()])


def _sweep_engine() -> None:
    serving.reconcile()
    serving.prune()
