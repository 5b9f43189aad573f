"""Small facts that processes leave for each other: heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.utils import timezone

from clawweb.models import Heartbeat


def beat(name: str, kind: str, doing: str = "", load: Mapping[str, Any] | None = None) -> None:
    """Say that a process is alive, what it does, and what it takes of its machine."""
    facts = {"kind": kind, "doing": doing[:200], "load": dict(load or {}), "at": timezone.now()}
    Heartbeat.objects.update_or_create(name=name, defaults=facts)


def ended(name: str) -> None:
    """A process that ends by itself is not missed: the next one has another name."""
    Heartbeat.objects.filter(name=name).delete()


def forget_dead() -> None:
    """Remove processes that have been silent for an hour."""
    Heartbeat.objects.filter(at__lt=timezone.now() - timedelta(hours=1)).delete()
