"""What a Celery worker process does beside its tasks: beat, and learn that it should end. No
torch."""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery.signals import worker_ready, worker_shutting_down
from django.db import close_old_connections

from clawweb import sentences
from clawweb.load import Meter

log = logging.getLogger(__name__)

STOP = threading.Event()  # set when this worker is asked to end; long work, in a thread, sees it
BEAT_SECONDS = 10.0


def doing(text: str) -> None:
    """What this worker is at, in one of our sentences; shown with its next heartbeat."""
    _doing[0] = text


_doing = [sentences.IDLE]


@worker_ready.connect
def _start_beating(sender: Any, **_: Any) -> None:
    name = str(sender.hostname)
    threading.Thread(target=_beat, args=(name,), name="heartbeat", daemon=True).start()


def _beat(name: str) -> None:
    from clawweb.services.health import beat  # the apps are not loaded when celery.py imports us

    kind = name.partition("@")[0]
    meter = Meter(with_gpus=kind == "worker-gpu")
    while True:
        try:
            beat(name, kind, _doing[0], meter.read())
        except Exception as exc:  # the database is busy or away: the next beat tells
            log.warning("no heartbeat: %s", exc)
        finally:
            close_old_connections()
        if STOP.wait(BEAT_SECONDS):
            return


@worker_shutting_down.connect
def _should_end(**_: Any) -> None:
    STOP.set()
