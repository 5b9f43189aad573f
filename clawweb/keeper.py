"""Keeping a job's lease while it is worked on, and knowing why the work should end. No torch."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType

from django.db import Error, close_old_connections

from clawweb.config import config
from clawweb.models import TrainingJob
from clawweb.services import finishing, jobs
from clawweb.services.errors import LeaseLost
from clawweb.worker import STOP

log = logging.getLogger(__name__)


class Cancelled(Exception):
    """The user cancelled the job."""


class Stopping(Exception):
    """The worker is asked to end; the job goes back to the queue."""


class Keeper:
    """Keeps a job's lease from a thread, and knows why the work should end."""

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.ended = threading.Event()
        self.lost = False
        self.cancelled = False
        self.finish = False  # its user wants no more training, and what there is tested
        self.renewed = time.monotonic()
        self.thread = threading.Thread(target=self._renew, name=f"lease-{job.pk}", daemon=True)

    def check(self) -> None:
        """Raise when the run should end. Cheap: called at each micro-batch."""
        # A database that does not answer cannot renew: what we held may be another's by now.
        if self.lost or time.monotonic() - self.renewed > config().lease_seconds:
            raise LeaseLost(self.job.public_id)
        if self.cancelled:
            raise Cancelled
        if STOP.is_set():
            raise Stopping

    def enough(self) -> bool:
        """Whether to stop training and go on to the gate."""
        return self.finish

    def _renew(self) -> None:
        every = config().lease_seconds / 6
        while not self.ended.wait(min(every, 1.0)):
            try:
                self.cancelled = jobs.cancel_wanted(self.job)
                self.finish = finishing.finish_wanted(self.job)
                if time.monotonic() - self.renewed >= every:
                    self.lost = not jobs.renew(self.job)
                    self.renewed = time.monotonic()
            except Error as exc:
                log.warning("the lease of %s is not renewed: %s", self.job, exc)
            finally:
                close_old_connections()
            if self.lost:
                return

    def __enter__(self) -> Keeper:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.ended.set()
        self.thread.join()
