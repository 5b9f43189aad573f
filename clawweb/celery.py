"""The Celery app: three queues, ids only, no result backend. Rows remember; the queue only
hurries."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawweb.settings")

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
