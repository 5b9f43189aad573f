"""A real Chromium beside the real stack. A page that throws or breaks its policy fails its test."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from tests.browser.demo import PATIENCE, Demo
from tests.browser.demo import demo as demo  # the fixture
from tests.prepare import chromium
from tests.realstack import Stack

LONG = 120_000  # ms; two noisy cores serve, train and draw at once

Visit = Callable[..., Page]
Look = Callable[[str, str], Page]


# Not for the session: until it is closed, Playwright keeps an event loop running in this thread.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine; `make test` says how to get one")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        # Root has no user namespaces to put its sandbox into.
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, stack: Stack) -> Iterator[Visit]:
    """`visit("alice", "/chat/")`: a page of her own browser, signed in by a one-time link."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(message.text)

    def open_page(username: str, path: str = "/chat/") -> Page:
        context = browser.new_context(base_url=stack.url, viewport={"width": 1280, "height": 800})
        contexts.append(context)
        context.set_default_timeout(LONG)
        context.on("console", heard)
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        page = context.new_page()
        page.goto(sign_in_link(stack, username))
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/chat/")
        if path != "/chat/":
            page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints, f"the browser's console says: {complaints}"


@pytest.fixture
def look(browser: Browser, demo: Demo) -> Iterator[Look]:
    """`look("ada", "/agent/")`: her page among the demo rows, without a model."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def forbidden(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            complaints.append(message.text)

    def open_page(username: str, path: str) -> Page:
        context = demo.context(browser, username, viewport={"width": 1280, "height": 800})
        contexts.append(context)
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        context.on("console", forbidden)
        page = context.new_page()
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


# One process for both: each takes a second or two to start.
LINK = """
from django.core.management import call_command
from clawweb.models import User
User.objects.filter(username={0!r}).exists() or User.objects.create_user({0!r})
call_command("signinlink", {0!r})
"""


def sign_in_link(stack: Stack, username: str) -> str:
    """Of this person, who is made if need be."""
    printed = stack.manage("shell", "-v", "0", "--command", LINK.format(username))
    found = re.search(r"/signin/\S+", printed)
    assert found, "no link in what signinlink printed"
    return found.group()
