"""Waits for what a script on the page says. Playwright's `wait_for_function` evaluates words in the
page each time it looks again, which our content security policy forbids."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Error, Page

from tests.loop.person import wait_for


def until(page: Page, script: str, arg: Any = None) -> None:
    """Until `script`, an expression or a function of `arg`, gives something true."""

    def found() -> Any:
        try:
            return page.evaluate(script, arg)
        except Error:  # the page changes, or what is asked of it is not there yet
            return None

    wait_for(script, found, timeout=30)
