"""`/livez`, `/readyz` and `/metrics`."""

from __future__ import annotations

import hmac
from typing import Any

from django.db import DatabaseError, connection
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from clawweb import valkey
from clawweb.api.auth import bearer
from clawweb.config import config
from clawweb.models import Judgement, TrainingJob, TrainingSample, Turn
from clawweb.selectors.judging import agreement, judge_is_silent
from clawweb.selectors.learning import system_status, workers

LOOPBACK = ("127.0.0.1", "::1")


def livez(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok", content_type="text/plain")


def readyz(request: HttpRequest) -> JsonResponse:
    """200 when every part that a chat needs answers; each part with its own word."""
    parts = {"database": _database(), "queue": _queue(), **_processes()}
    ready = all(part == "ok" for part in parts.values())
    return JsonResponse({"ready": ready, "parts": parts}, status=200 if ready else 503)


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as exc:
        return f"down: {exc}"
    return "ok"


def _queue() -> str:
    try:
        with valkey.connect() as client:
            client.ping()
    except valkey.ValkeyError as exc:
        return f"down: {exc}; ratings are saved, work resumes when it is back"
    return "ok"


def _processes() -> dict[str, str]:
    try:
        parts = {"engine": "ok" if system_status()["engine"]["ok"] else "down"}
        for kind in ("generator", "worker-light", "worker-gpu", "beat"):
            parts[kind] = "ok" if workers(kind).exists() else "not heard of for a minute"
    except DatabaseError:
        return {"processes": "unknown: the database is down"}
    return parts


def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus text: rows by state and the engine. Off loopback only with the token."""
    token = config().metrics_token
    local = request.META.get("REMOTE_ADDR") in LOOPBACK and "X-Forwarded-For" not in request.headers
    if not local and not (token and hmac.compare_digest(bearer(request), token)):
        return HttpResponse("not for you", status=403, content_type="text/plain")
    registry = CollectorRegistry()
    _count(registry, "clawweb_turns", "Turns by state", Turn)
    _count(registry, "clawweb_samples", "Rated turns by state of their sample", TrainingSample)
    _count(registry, "clawweb_jobs", "Training jobs by state", TrainingJob)
    if config().has_judge:
        _judge(registry)
    engine = Gauge("clawweb_engine_up", "Whether the model server answers", registry=registry)
    engine.set(1 if system_status()["engine"]["ok"] else 0)
    return HttpResponse(generate_latest(registry), content_type="text/plain; version=0.0.4")


def _judge(registry: CollectorRegistry) -> None:
    _count(registry, "clawweb_judgements", "Judged replies by state", Judgement)
    up = Gauge("clawweb_judge_up", "Whether the judge answered when last asked", registry=registry)
    up.set(0 if judge_is_silent() else 1)
    agrees = agreement(None)
    if agrees.share is not None:  # what was not measured has no line
        text = "Share of the newest rated replies that the judge reads as their user does"
        Gauge("clawweb_judge_agreement", text, registry=registry).set(agrees.share)


def _count(registry: CollectorRegistry, name: str, text: str, model: Any) -> None:
    gauge = Gauge(name, text, ["state"], registry=registry)
    for row in model.objects.order_by().values("state").annotate(rows=Count("pk")):
        gauge.labels(row["state"]).set(row["rows"])
