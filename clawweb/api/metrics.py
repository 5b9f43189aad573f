"""`/metrics` for Prometheus: rows as they are now, read at each scrape; nothing is kept between.

docs/grafana.json draws them (a test compares the names).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from clawweb import disk
from clawweb.acting import bearer
from clawweb.config import config
from clawweb.models import Judgement, TrainingJob, TrainingSample, Turn
from clawweb.selectors import operations
from clawweb.selectors.judging import agreement, judge_is_silent
from clawweb.selectors.learning import system_status

LOOPBACK = ("127.0.0.1", "::1")
PROXYS = {"forwarded", "x-real-ip", "via"}


def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus text. Off loopback only with CLAWWEB_METRICS_TOKEN as the bearer."""
    token = config().metrics_token
    given = bearer(request).encode()  # compare_digest takes no text beyond ASCII
    if not _is_local(request) and not (token and hmac.compare_digest(given, token.encode())):
        return HttpResponse("not for you", status=403, content_type="text/plain")
    registry = CollectorRegistry()
    _states(registry)
    _learning(registry)
    _lines(registry)
    _processes(registry)
    if config().has_judge:
        _judge(registry)
    return HttpResponse(generate_latest(registry), content_type="text/plain; version=0.0.4")


def _is_local(request: HttpRequest) -> bool:
    """From this machine, and not passed on by a proxy on it: not each says for whom it asks."""
    headers = {name.lower() for name in request.headers}
    passed_on = any(name.startswith("x-forwarded-") for name in headers) or headers & PROXYS
    return request.META.get("REMOTE_ADDR") in LOOPBACK and not passed_on


def _states(registry: CollectorRegistry) -> None:
    _count(registry, "clawweb_turns", "Turns by state", Turn)
    _count(registry, "clawweb_samples", "Rated turns by state of their sample", TrainingSample)
    _count(registry, "clawweb_jobs", "Training jobs by state", TrainingJob)


def _learning(registry: CollectorRegistry) -> None:
    text = "Rated replies by how far they got: given, usable, learned, in versions that stand"
    _gauge(registry, "clawweb_funnel", text, "stage", operations.funnel())
    text = "Samples that were not used, by reason"
    _gauge(registry, "clawweb_dropped", text, "reason", operations.drops())
    text = "Median seconds of a job's phases, of the twenty newest that went live"
    _gauge(registry, "clawweb_job_seconds", text, "phase", operations.job_seconds())
    live = Gauge("clawweb_live_versions", "Users whose own version answers", registry=registry)
    live.set(operations.live_versions())


def _lines(registry: CollectorRegistry) -> None:
    lines = operations.waiting()
    counts = {name: count for name, (count, _) in lines.items()}
    ages = {name: seconds for name, (_, seconds) in lines.items() if seconds is not None}
    _gauge(registry, "clawweb_waiting", "What stands in line", "line", counts)
    _gauge(registry, "clawweb_waiting_seconds", "How long the oldest has", "line", ages)
    text = "From a message to the first word, of the last five minutes"
    first = {str(q): seconds for q, seconds in operations.first_token_seconds().items()}
    _gauge(registry, "clawweb_first_token_seconds", text, "quantile", first)


def _processes(registry: CollectorRegistry) -> None:
    text = "Processes heard of within the last minute"
    _gauge(registry, "clawweb_processes", text, "kind", operations.alive())
    engine = system_status()["engine"]
    up = Gauge("clawweb_engine_up", "Whether the model server answers", registry=registry)
    up.set(1 if engine["ok"] else 0)
    if engine["adapters"] is not None:
        text = "Adapters that the model server holds"
        Gauge("clawweb_adapters_loaded", text, registry=registry).set(len(engine["adapters"]))
    text = "Free bytes on the disk of the data folder"
    Gauge("clawweb_disk_free_bytes", text, registry=registry).set(disk.free_bytes())
    text = "Free bytes below which nothing big starts"
    Gauge("clawweb_disk_reserve_bytes", text, registry=registry).set(disk.reserve_bytes())


def _judge(registry: CollectorRegistry) -> None:
    _count(registry, "clawweb_judgements", "Judged replies by state", Judgement)
    up = Gauge("clawweb_judge_up", "Whether the judge answered when last asked", registry=registry)
    up.set(0 if judge_is_silent() else 1)
    agrees = agreement(None)
    if agrees.share is not None:  # what was not measured has no line
        text = "Share of the newest rated replies that the judge reads as their user does"
        Gauge("clawweb_judge_agreement", text, registry=registry).set(agrees.share)


def _count(registry: CollectorRegistry, name: str, text: str, model: Any) -> None:
    rows = dict(model.objects.order_by().values_list("state").annotate(Count("pk")))
    _gauge(registry, name, text, "state", rows)


def _gauge(
    registry: CollectorRegistry, name: str, text: str, label: str, values: Mapping[str, float]
) -> None:
    gauge = Gauge(name, text, [label], registry=registry)
    for key, value in values.items():
        gauge.labels(key).set(value)
