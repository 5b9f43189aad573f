"""Files that go out and come in: exports and imports, with their progress."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from clawweb.models import ids


class TransferState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


SHAPES = ("everything", "conversations", "kto", "dpo", "sft", "openclaw")  # openclaw: read only


class Transfer(models.Model):
    """One export or import of a user's own data, made by a worker."""

    public_id = models.CharField(max_length=48, unique=True, default=ids.transfer_id)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="transfers")
    kind = models.CharField(max_length=6, choices=[("export", "export"), ("import", "import")])
    shape = models.CharField(max_length=16)  # one of SHAPES
    state = models.CharField(max_length=8, choices=TransferState, default=TransferState.QUEUED)
    done = models.PositiveIntegerField(default=0)  # rows
    total = models.PositiveIntegerField(null=True, blank=True)
    path = models.CharField(max_length=500, blank=True)  # relative to var
    note = models.TextField(blank=True)  # why it failed, or what was left out
    lease_token = models.CharField(max_length=36, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.kind} of {self.shape}: {self.state}"
