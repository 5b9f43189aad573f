"""Rows as a CSV file that no spreadsheet runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.http import StreamingHttpResponse

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class _Line:
    """What csv writes to, a line at a time."""

    def write(self, line: str) -> str:
        return line


def as_csv(
    name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> StreamingHttpResponse:
    """The rows under their columns, as a file called `name`."""
    writer = csv.writer(_Line())

    def lines() -> Iterator[str]:
        yield writer.writerow(columns)
        for row in rows:
            yield writer.writerow([cell(value) for value in row])

    return StreamingHttpResponse(
        lines(),
        content_type="text/csv; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "private, no-store",
        },
    )


def cell(value: Any) -> str:
    """Text; an apostrophe before what a spreadsheet would take for a formula."""
    text = json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
