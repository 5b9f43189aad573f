"""Small facts that processes leave for each other: heartbeats."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from clawweb.models import Heartbeat


def beat(name: str, kind: str, doing: str = "") -> None:
    """Say that a process is alive and what it does."""
    Heartbeat.objects.update_or_create(
        name=name, defaults={"kind": kind, "doing": doing[:200], "at": timezone.now()}
    )


def forget_dead() -> None:
    """Remove processes that have been silent for an hour."""
    Heartbeat.objects.filter(at__lt=timezone.now() - timedelta(hours=1)).delete()
