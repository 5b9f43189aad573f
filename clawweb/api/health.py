"""`/livez` and `/readyz`."""

from __future__ import annotations

import logging

from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse

from clawweb import disk, valkey
from clawweb.config import config
from clawweb.models import Heartbeat
from clawweb.selectors.learning import system_status, workers

log = logging.getLogger(__name__)
NO_TRAINER = "none; nothing trains"  # for an hour: one that was killed is missed sooner


def livez(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok", content_type="text/plain")


def readyz(request: HttpRequest) -> JsonResponse:
    """200 when every part that a chat needs answers; each part with its own word. Strangers may
    ask, so what a part says itself, with addresses and names, is for the log. A disk without room
    keeps nobody from chatting, nor does it to have no trainer: said, and not counted.
    `?part=NAME`: that one's."""
    parts = {"database": _database(), "queue": _queue(), **_processes()}
    ready = all(word in ("ok", NO_TRAINER) for word in parts.values())
    parts["disk"] = _disk()
    if wanted := request.GET.get("part"):  # a container asks for its own
        parts = {wanted: parts.get(wanted, "not known")}
        ready = parts[wanted] == "ok"
    return JsonResponse({"ready": ready, "parts": parts}, status=200 if ready else 503)


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as exc:
        log.warning("the database is down: %s", exc)
        return "down"
    return "ok"


def _queue() -> str:
    try:
        with valkey.connect() as client:
            client.ping()
    except valkey.ValkeyError as exc:
        log.warning("Valkey is down: %s", exc)
        return "down; ratings are saved, work resumes when it is back"
    return "ok"


def _disk() -> str:
    free = f"{disk.free_bytes() // disk.MIB} MB free"
    return f"low: {free}; no job, export, import or backup starts" if disk.is_low() else "ok"


def _kinds() -> tuple[str, ...]:
    judging = ("worker-judge",) if config().has_judge else ()
    return ("generator", "worker-light", "worker-gpu", *judging, "beat")


def _processes() -> dict[str, str]:
    try:
        parts = {"engine": "ok" if system_status()["engine"]["ok"] else "down"}
        for kind in _kinds():
            parts[kind] = "ok" if workers(kind).exists() else "not heard of for a minute"
        if not Heartbeat.objects.filter(kind="worker-gpu").exists():
            parts["worker-gpu"] = NO_TRAINER
    except DatabaseError:
        return {"processes": "unknown: the database is down"}
    return parts
