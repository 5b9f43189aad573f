"""The list of chats beside the thread: named, pinned, found, deleted and had back."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Visit
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.browser, pytest.mark.timeout(900)]


def chats(page: Page) -> Locator:
    return page.locator(".session-list li")


def menu(page: Page, name: str) -> Locator:
    item = chats(page).filter(has_text=name)
    item.get_by_label(f"More about {name}").click()
    return item


def make_chat(stack: Stack, name: str, text: str) -> None:
    body = {"model": "base", "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    answer = httpx.post(
        f"{stack.url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {stack.key(name)}"},
        timeout=180,
    )
    assert answer.status_code == 200, answer.text


def test_a_chat_is_renamed_pinned_found_deleted_and_had_back(visit: Visit, stack: Stack) -> None:
    for text in ("About eggs", "About tides"):
        make_chat(stack, "lea", text)
    page = visit("lea")
    expect(chats(page)).to_have_count(2)

    menu(page, "About eggs").get_by_role("button", name="Rename").click()
    page.get_by_label("New name").locator("visible=true").fill("Breakfast")
    page.keyboard.press("Enter")
    expect(chats(page).filter(has_text="Breakfast")).to_be_visible()
    menu(page, "Breakfast").get_by_role("button", name="Pin", exact=True).click()
    expect(page.locator(".day").first).to_have_text("Pinned")
    expect(chats(page).first).to_contain_text("Breakfast")

    page.get_by_label("Search your chats").fill("tides")
    expect(chats(page)).to_have_count(1)
    page.get_by_label("Search your chats").fill("")
    expect(chats(page)).to_have_count(2)

    menu(page, "Breakfast").get_by_role("button", name="Delete").click()
    expect(chats(page)).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(chats(page).first).to_contain_text("Breakfast")
