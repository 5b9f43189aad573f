"""Reading a reply while it is written: by character cursor, from the token log or from the row.

A reader may come late, leave and come back: it says how many characters it has, and gets the
rest. Where the log has a gap (trimmed, Valkey restarted) the row fills it; the row is at most a
second behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from clawweb import valkey
from clawweb.models import Turn
from clawweb.orm import in_db
from clawweb.selectors.chat import reply_of

BLOCK_MS = 1000
POLL_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a reply; `cursor` counts its characters up to the end of `text`."""

    text: str
    cursor: int


def _row(pk: int) -> tuple[str, bool]:
    """What the row holds of the reply, and whether it is finished."""
    turn = Turn.objects.get(pk=pk)
    return reply_of(turn), turn.is_finished


async def read_reply(turn: Turn, cursor: int = 0) -> AsyncIterator[Piece]:
    """The rest of the reply after `cursor` characters, until it is finished."""
    async with valkey.connect_async() as client:
        last = "0"
        while True:
            try:
                # The blocking read comes first: what ends between it and the row is then in the
                # row.
                entries = await client.xread(
                    {valkey.gen_key(turn.public_id): last}, count=200, block=BLOCK_MS
                )
            except valkey.ValkeyError:
                entries = []
                await asyncio.sleep(POLL_SECONDS)
            ended = not entries
            for entry_id, fields in entries[0][1] if entries else ():
                last = entry_id
                if "end" in fields:
                    ended = True
                    continue
                piece = _after(fields["text"], int(fields["offset"]), cursor)
                if piece is None:
                    ended = True  # a gap: let the row fill it
                elif piece:
                    cursor += len(piece)
                    yield Piece(piece, cursor)
            if ended:
                text, finished = await in_db(_row, turn.pk)
                if len(text) > cursor:
                    yield Piece(text[cursor:], len(text))
                    cursor = len(text)
                if finished:
                    return


def _after(text: str, offset: int, cursor: int) -> str | None:
    """The part of a log entry that lies after `cursor`; None when something before it is
    missing."""
    if offset > cursor:
        return None
    return text[cursor - offset :]
