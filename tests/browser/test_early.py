"""What is pressed while a page's scripts are still on their way, as on a slow line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Look
from tests.browser.until import caught, connected

pytestmark = pytest.mark.browser


@contextmanager
def without(page: Page, script: str) -> Iterator[None]:
    """The page anew, without this script until the end."""
    held = list[Route]()
    page.route(f"**/js/{script}*.js", lambda route: held.append(route))
    page.reload(wait_until="commit")
    caught(page, held)
    yield
    for route in held:
        route.continue_()
    page.unroute(f"**/js/{script}*.js")


def test_a_thumb_before_the_scripts_is_not_lost(look: Look) -> None:
    page = look("wren", "/chat/")
    page.locator(".session-list li a").first.click()
    thumb = page.get_by_role("article").last.locator(".up")
    expect(thumb).to_be_visible()
    before = thumb.get_attribute("aria-pressed")
    with without(page, "chat"):
        thumb.press("Enter")
        thumb.click()  # as nothing seems to happen
        expect(thumb).to_have_attribute("aria-pressed", str(before))
    expect(thumb).to_have_attribute("aria-pressed", "true" if before == "false" else "false")
    page.wait_for_load_state("networkidle")
    page.reload()
    expect(thumb).to_have_attribute("aria-pressed", "true" if before == "false" else "false")


def test_a_chat_is_deleted_once_the_scripts_are_there(look: Look) -> None:
    page = look("heron", "/chat/")
    page.get_by_role("link", name="Chat 68", exact=True).click()
    row = page.locator(".session-list li").filter(has=page.locator("[aria-current]"))
    expect(row).to_contain_text("Chat 68")
    with without(page, "sessions"):
        row.locator("summary").press("Enter")
        row.get_by_role("button", name="Delete").press("Enter")
    undo = page.get_by_role("note").get_by_role("button", name="Undo")
    expect(undo).to_be_focused()
    undo.press("Enter")
    expect(undo).to_be_hidden()


def test_what_posts_by_a_script_that_is_there_does_so_once(look: Look) -> None:
    """The page's second script is late; the first would hear the button already."""
    page = look("fledgling", "/jobs/")
    asked = list[str]()
    page.route("**/api/jobs", lambda route: (asked.append(route.request.method), route.continue_()))
    with without(page, "stop_job"):
        connected(page)  # the first script is there
        page.locator("[data-post='/api/jobs']").first.press("Enter")
    expect(page.locator(".notice").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert asked == ["POST"]
