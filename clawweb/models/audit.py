"""Who did what to whom: append-only, beside the events that users see."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models


class WrittenOnce(Exception):
    """An audited act is never rewritten, nor taken out by hand."""


class AppendOnly(models.QuerySet["AuditEvent"]):
    """Rows that are added and read. Only retention takes them out, by their age."""

    def update(self, **values: Any) -> int:
        raise WrittenOnce

    def bulk_update(self, *args: Any, **values: Any) -> int:
        raise WrittenOnce

    def delete(self) -> tuple[int, dict[str, int]]:
        raise WrittenOnce

    def forget(self) -> int:
        """Take the rows out for good; for retention alone."""
        return int(self._raw_delete(self.db))


class AuditEvent(models.Model):
    """An act that somebody may have to answer for. Holds no chat texts and no secrets."""

    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    # Whose thing it was done to, where that is somebody's
    subject = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="audited"
    )
    actor_name = models.CharField(max_length=150)  # outlives the user; "system" for nobody
    action = models.CharField(max_length=60)  # verb_noun
    kind = models.CharField(max_length=40, blank=True)  # of the object
    object_id = models.CharField(max_length=80, blank=True)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    objects = AppendOnly.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["kind", "object_id"])]

    def __str__(self) -> str:
        return f"{self.actor_name} {self.action} {self.object_id}"

    def save(self, *args: Any, **values: Any) -> None:
        if self.pk is not None:
            raise WrittenOnce
        super().save(*args, **values)

    def delete(self, *args: Any, **values: Any) -> tuple[int, dict[str, int]]:
        raise WrittenOnce


class Tombstone(models.Model):
    """What was erased, and when; nothing of what it was."""

    kind = models.CharField(max_length=24)  # user, session, version
    object_id = models.CharField(max_length=120)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "object_id"], name="one_tombstone_each")
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.object_id}"
