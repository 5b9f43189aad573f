"""Public ids: a prefix and a UUIDv7, so that they sort by time and tell nothing else."""

from __future__ import annotations

import secrets
import time
import uuid


def uuid7() -> uuid.UUID:
    """RFC 9562 version 7: 48 bits of milliseconds, then random bits (the standard library has it
    from 3.14)."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76  # version
    value = value & ~(0x3 << 62) | 0x2 << 62  # variant
    return uuid.UUID(int=value)


def session_id() -> str:
    return f"sess-{uuid7()}"


def turn_id() -> str:
    return f"turn-{uuid7()}"


def job_id() -> str:
    return f"job-{uuid7()}"


def transfer_id() -> str:
    return f"file-{uuid7()}"


def comparison_id() -> str:
    return f"pair-{uuid7()}"


def is_number(text: str) -> bool:
    """Whether a caller's text is a row's number: its digits, and no more than a column holds."""
    return text.isascii() and text.isdecimal() and len(text) <= 18  # "²" is a digit, too
