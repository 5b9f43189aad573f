"""A chat whose reply nobody has begun: the page says how many come before it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.demo import Demo

pytestmark = pytest.mark.browser


def ask(page: Page) -> None:
    page.get_by_label("Your message").fill("Is anybody there?")
    page.keyboard.press("Enter")


def test_a_page_says_how_many_replies_come_before(browser: Browser, demo: Demo) -> None:
    contexts = [demo.context(browser, name) for name in ("newcomer", "ada")]
    pages = [context.new_page() for context in contexts]
    with demo.writing(50):  # what other tests left waiting goes first
        pages[0].goto("/chat/")
        ask(pages[0])
        first = pages[0].locator(".turn").last
        expect(first).to_have_attribute("data-state", "complete")
    pages[1].goto("/chat/")
    ask(pages[0])
    expect(first.locator(".waiting")).to_have_text("Yours is the next reply")
    ask(pages[1])  # once the other is in the row
    second = pages[1].locator(".turn").last
    expect(second.locator(".waiting")).to_have_text("1 reply before yours")
    pages[0].keyboard.press("Escape")
    expect(first).to_have_attribute("data-state", "stopped")
    expect(second.locator(".waiting")).to_have_text("Yours is the next reply")
    with demo.writing(50):
        expect(second).to_have_attribute("data-state", "complete")
    expect(second.locator(".waiting")).to_be_hidden()
    for context in contexts:
        context.close()
