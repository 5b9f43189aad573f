"""The chat page beyond asking and rating: the list of chats, words changed, replies corrected."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import LONG, Visit
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


# The strip's field opens; what stands in it before anything else has happened?
OPENED = """form => {
  form.querySelector("details").open = true;
  return form.elements.correction.value;
}"""


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
    undo = page.get_by_role("button", name="Undo")
    undo.focus()  # it stays for who is at it
    expect(chats(page)).to_have_count(1)
    undo.press("Enter")
    expect(chats(page).first).to_contain_text("Breakfast")


def test_a_message_is_said_in_other_words_and_a_reply_corrected(visit: Visit) -> None:
    page = visit("mia")
    turn = page.locator(".turn").last
    finished = re.compile("complete|stopped")
    page.get_by_label("Your message").fill("What is rian?")
    page.keyboard.press("Enter")
    expect(turn.locator(".reply")).not_to_be_empty(timeout=LONG)
    page.keyboard.press("Escape")
    expect(turn).to_have_attribute("data-state", finished, timeout=LONG)

    turn.get_by_role("button", name="Edit your message").click()
    page.get_by_label("Your message in other words").fill("What is rain?")
    page.get_by_role("button", name="Send").locator("visible=true").first.click()
    expect(page.locator(".said-text").last).to_have_text("What is rain?")
    expect(turn.locator(".reply")).not_to_be_empty(timeout=LONG)
    page.keyboard.press("Escape")
    expect(turn).to_have_attribute("data-state", finished, timeout=LONG)
    expect(turn.locator(".siblings")).to_contain_text("2/2")

    turn.get_by_role("button", name="Bad reply").click()
    box = turn.locator("textarea[name=correction]")
    turn.get_by_role("textbox", name="In your own words").focus()  # the strip is there
    began_with = turn.locator(".strip").evaluate(OPENED)
    assert began_with, "who opens the field and types at once writes before the reply is there"
    assert began_with == page.request.get(f"/api/turns/{turn.get_attribute('id')}").json()["reply"]
    expect(turn.locator(".changes")).to_be_hidden()
    box.fill("Water that falls from clouds.")
    expect(turn.locator(".changes ins").first).to_be_visible()
    turn.get_by_role("button", name="Done").click()
    expect(turn.locator(".strip")).to_have_count(0)  # saved; a bare thumb may be counted by now
    expect(turn.locator(".receipt")).to_contain_text("counted")
    kept = page.request.get(f"/api/turns/{turn.get_attribute('id')}").json()
    assert kept["feedback"]["correction"] == "Water that falls from clouds."
