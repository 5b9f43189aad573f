"""The Celery app: three queues, ids only, no result backend. Rows remember; the queue only
hurries."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawweb.settings")

from clawweb import valkey
from clawweb import worker as _worker  # noqa: F401  # its signal handlers
from clawweb.config import config

app = Celery("clawweb")
app.set_default()  # in every thread: "current" is only that of the thread that imports this
app.conf.update(
    broker_url=config().redis.replace("unix://", "redis+socket://"),
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "visibility_timeout": 3600,  # recovery is the lease sweep over rows, never redelivery
        "socket_timeout": 2,
        "socket_connect_timeout": 2,
        "max_retries": 1,
    },
    task_publish_retry=False,
    task_default_queue="default",
    task_routes={
        "clawweb.tasks.run_training_job": {"queue": "gpu"},
        "clawweb.tasks.warm_up": {"queue": "gpu"},
        "clawweb.tasks.judge": {"queue": "judge"},
    },
    task_ignore_result=True,
    task_acks_late=False,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    timezone="UTC",
    beat_scheduler="clawweb.celery:Clock",
    beat_schedule={
        "sweep": {
            "task": "clawweb.tasks.sweep",
            "schedule": config().sweep_seconds,
            "options": {"expires": config().sweep_seconds},
        },
        "retention": {
            "task": "clawweb.tasks.let_go",
            "schedule": 3600.0,
            "options": {"expires": 3600},
        },
        "settle": {"task": "clawweb.tasks.settle", "schedule": 5.0, "options": {"expires": 5}},
    },
)
app.autodiscover_tasks(["clawweb"])


class Clock(Scheduler):
    """Celery's own keeps in a file, and in memory, when each task is due next. Where the machine's
    clock was ahead for a while, that is days or years off, and nothing would be swept until then.
    All of ours may come at any time: what is due is forgotten at a start, and when it goes back.
    """

    newest: datetime | None = None  # that the machine's clock has shown

    def tick(self, *args: Any, **kwargs: Any) -> float:
        now = self.app.now()
        if self.newest is None or now < self.newest:
            for entry in self.schedule.values():
                entry.last_run_at = now - entry.schedule.run_every
            self._heap = None
        self.newest = now
        return float(super().tick(*args, **kwargs))

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        if not valkey.is_unread("default"):  # what is sent is due again before anybody reads it
            super().apply_entry(entry, producer)
