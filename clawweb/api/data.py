"""`/api/exports` and `/api/imports`: one's own data as files; docs/records.md has the shapes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import IO, Any, Literal

from django.http import HttpRequest, StreamingHttpResponse
from ninja import Router, Schema, Status
from pydantic import ConfigDict

from clawweb import tasks
from clawweb.api.auth import Scoped, caller
from clawweb.selectors.transfers import transfer_json, transfers_of
from clawweb.services import transfers
from clawweb.services.errors import ServiceError

router = Router(auth=Scoped("export"), tags=["data"])
BLOCK = 1 << 16
_BODY = {
    "required": True,
    "content": {
        "application/jsonl": {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {"file": {"type": "string", "format": "binary"}},
            }
        },
    },
}


class ExportIn(Schema):
    """`everything` is a ZIP of all that is kept; `conversations` can be brought in again; the
    others are TRL's."""

    model_config = ConfigDict(extra="forbid")

    shape: Literal["everything", "conversations", "kto", "dpo", "sft"] = "conversations"


@router.post("/exports", response={202: Any})
def post_export(request: HttpRequest, body: ExportIn | None = None) -> Any:
    """Start an export of all your data; 409 while another is under way."""
    row = transfers.queue_export(user=caller(request), shape=(body or ExportIn()).shape)
    tasks.enqueue(tasks.run_transfer, row.public_id)
    return Status(202, transfer_json(row))


@router.get("/exports/{transfer_id}")
def get_export(request: HttpRequest, transfer_id: str) -> Any:
    """How far it is: `done` of `total`; `file` is there once `state` is `done`."""
    return transfer_json(transfers_of(caller(request), "export").get(public_id=transfer_id))


@router.get("/exports/{transfer_id}/file")
def get_export_file(request: HttpRequest, transfer_id: str) -> Any:
    """The file, one JSON object a line, or a ZIP of such. It is kept for seven days."""
    row = transfers_of(caller(request), "export").get(public_id=transfer_id)
    path = transfers.file_of(row)
    name = f"clawweb-{row.shape}-{row.created_at:%Y%m%d-%H%M%S}{path.suffix}"
    kind = "application/zip" if path.suffix == ".zip" else "application/jsonl"
    response = sent(path.open("rb"), name=name, kind=kind)
    response["Content-Length"] = str(path.stat().st_size)
    return response


def sent(file: IO[bytes], *, name: str, kind: str) -> StreamingHttpResponse:
    """The open file as a download for its owner; closed also where nobody comes to read it."""
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "private, no-store",
        "X-Content-Type-Options": "nosniff",
    }
    response = StreamingHttpResponse(_blocks(file), content_type=kind, headers=headers)
    response._resource_closers.append(file.close)  # type: ignore[attr-defined]
    return response


async def _blocks(file: IO[bytes]) -> AsyncIterator[bytes]:
    """The file piece by piece: a plain file response is read into memory whole under ASGI."""
    with file:
        while block := await asyncio.to_thread(file.read, BLOCK):
            yield block


@router.post("/imports", response={202: Any}, openapi_extra={"requestBody": _BODY})
def post_import(request: HttpRequest) -> Any:
    """Bring in conversations: our own shape, or OpenClaw-RL's record files. At most 50 MB, as the
    body or as the field `file` of a form. What is here already is left as it is."""
    row = transfers.queue_import(user=caller(request), chunks=uploaded(request))
    tasks.enqueue(tasks.run_transfer, row.public_id)
    return Status(202, transfer_json(row))


def uploaded(request: HttpRequest) -> Iterator[bytes]:
    """The file in the request, a piece at a time."""
    if request.content_type == "multipart/form-data":
        file = request.FILES.get("file")
        if file is None:
            raise ServiceError("The form has no field `file` with a file in it.")
        yield from file.chunks()
        return
    while block := request.read(BLOCK):
        yield block


@router.get("/imports/{transfer_id}")
def get_import(request: HttpRequest, transfer_id: str) -> Any:
    """How far it is, and in the end what came in and which lines were left out."""
    return transfer_json(transfers_of(caller(request), "import").get(public_id=transfer_id))
