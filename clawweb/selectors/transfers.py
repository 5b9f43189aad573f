"""Reads of exports and imports; a user's own only."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from clawweb.models import Transfer, TransferState, User


def transfers_of(user: User, kind: str | None = None) -> QuerySet[Transfer]:
    """The user's, newest first."""
    rows = Transfer.objects.filter(user=user)
    return rows.filter(kind=kind) if kind else rows


def transfer_json(row: Transfer) -> dict[str, Any]:
    """`note` is one sentence; `left_out` says which lines of a file were, and why."""
    note, *left_out = row.note.split("\n")
    is_file = row.kind == "export" and row.state == TransferState.DONE and row.path != ""
    return {
        "id": row.public_id,
        "kind": row.kind,
        "shape": row.shape,
        "state": row.state,
        "done": row.done,
        "total": row.total,
        "note": note,
        "left_out": left_out,
        "file": f"/api/exports/{row.public_id}/file" if is_file else None,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }
