"""A reply that nobody has begun: the page says how many come before it, and when nobody will."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from tests.browser.demo import Demo
from tests.browser.until import caught, connected

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


def test_a_reply_whose_chat_was_deleted_elsewhere_is_asked_for_once(
    browser: Browser, demo: Demo
) -> None:
    context = demo.context(browser, "ada")
    page, elsewhere = context.new_page(), context.new_page()
    followed: list[Any] = []
    sockets: list[WebSocketRoute] = []

    def listen(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        server = socket.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            if json.loads(message)["type"] == "follow":
                followed.append(message)
            server.send(message)

        def pass_back(message: str | bytes) -> None:
            # The first connection's reader looks at the row every second: were its word not lost,
            # the page would know of the deletion, or not, by how long this test takes.
            if len(sockets) > 1 or not json.loads(message).get("gone"):
                socket.send(message)

        socket.on_message(pass_on)
        server.on_message(pass_back)

    page.route_web_socket("**/ws/chat/", listen)
    page.goto("/chat/")
    ask(page)
    turn = page.locator(".turn").last
    expect(turn).to_have_attribute("data-state", "pending")
    elsewhere.goto("/chat/")
    chat = elsewhere.locator("#sessions [data-session]", has_text="Is anybody there?").first
    chat.locator("summary").click()
    chat.get_by_role("button", name="Delete").click()
    expect(elsewhere.get_by_text("“Is anybody there?” is deleted.")).to_be_visible()
    for again in (2, 3):
        sockets[-1].close()
        caught(page, sockets, again)
        connected(page)
        expect(turn.locator(".trouble")).to_contain_text("That is not there any more.")
    assert len(followed) == 1
    expect(page.get_by_role("button", name="Send")).to_be_enabled()  # it waits for nothing
    context.close()
