"""Waits for what a page says of itself, or has sent. Playwright's `wait_for_function` evaluates
words in the page each time it looks again, which our content security policy forbids."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from playwright.sync_api import Error, Page

from tests.browser.demo import PATIENCE
from tests.loop.person import wait_for

# What the page's socket tells it of: [what has changed, whose id].
NUDGE = """([what, id]) => document.dispatchEvent(
  new CustomEvent("changed", { detail: { what, id } }))"""


def until(page: Page, script: str, arg: Any = None) -> None:
    """Until `script`, an expression or a function of `arg`, gives something true."""

    def found() -> Any:
        try:
            return page.evaluate(script, arg)
        except Error:  # the page changes, or what is asked of it is not there yet
            return None

    wait_for(script, found, timeout=PATIENCE / 1000)


def connected(page: Page) -> None:
    """Until the page's socket is open: at first the banner about it is hidden as well."""
    page.locator('#connection[data-state="open"]').wait_for(state="attached")


def caught(page: Page, held: Sized, number: int = 1) -> None:
    """Until a route of the page holds so many requests or messages."""

    def are_there() -> bool:
        page.wait_for_timeout(20)  # Playwright calls routes in its own waits alone
        return len(held) >= number

    wait_for(f"{number} held", are_there, timeout=PATIENCE / 1000)
