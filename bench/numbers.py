"""Numbers on a bench's command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(least: int) -> Callable[[str], int]:
    """A type of arguments: whole numbers from `least` on."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} on")
        return int(text)

    return number
