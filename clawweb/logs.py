"""What no log may hold: links that sign in, and keys. Both can stand in an address or a header that
a library logs when a request goes wrong."""

from __future__ import annotations

import logging
import re

_SECRET = re.compile(r"(/signin/|claw-)[A-Za-z0-9_-]{20,}")


class WithoutSecrets(logging.Formatter):
    """Cuts them out of each line and its traceback, whoever wrote them."""

    def format(self, record: logging.LogRecord) -> str:
        return _SECRET.sub(r"\1…", super().format(record))
