"""My agent in a browser, without a model: old complaints beside what is said now, judged by their
author; a chat that is forgotten, which versions that marks, and how it is had back."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Look

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180, method="signal")]


@pytest.fixture
def page(look: Look) -> Page:
    return look("ada", "/agent/")


def test_a_complaint_is_judged_by_keyboard_beside_its_new_answer(page: Page) -> None:
    card = page.get_by_role("region", name="Before and after")
    answered = card.get_by_role("article").filter(has=page.get_by_role("group", name="better now"))
    expect(answered.get_by_text("Then, v1")).to_be_visible()
    expect(answered.get_by_text("Now, v3")).to_be_visible()
    expect(answered.get_by_role("group", name="The old reply")).not_to_be_empty()
    expect(answered.get_by_role("group", name="The new reply")).not_to_be_empty()
    answered.get_by_role("button", name="Better").press("Enter")
    expect(card.get_by_text("better now", exact=True)).to_be_visible()
    expect(card.get_by_role("button", name="Better")).to_have_count(0)
    expect(card.get_by_text("better 1 · same 0 · worse 0")).to_be_visible()
    assert page.evaluate("document.activeElement !== document.body"), "the focus was lost"


def test_a_complaint_that_cannot_be_asked_again_says_why(page: Page) -> None:
    card = page.get_by_role("region", name="Before and after")
    card.get_by_role("button", name="Ask again").first.click()
    expect(page.locator("#notices")).to_contain_text("Version 3 cannot answer now:")
    expect(card.get_by_role("button", name="Ask again").first).to_be_enabled()


def test_a_forgotten_chat_marks_what_learned_from_it_and_comes_back(page: Page) -> None:
    card = page.get_by_role("region", name="Forget a chat")
    row = card.get_by_role("listitem").filter(has_text="v1, v2, v3").first
    forget = row.get_by_role("button", name="Forget")
    name = (forget.get_attribute("id") or "").removeprefix("forget-")
    learned = page.get_by_text("This version has learned from a chat that you deleted.")
    expect(learned).to_have_count(0)
    forget.click()
    expect(page.locator("#notices")).to_contain_text("You can undo it for ten minutes.")
    expect(learned).to_be_visible()
    expect(page.get_by_text("The base model has not:")).to_be_visible()
    expect(page.get_by_role("button", name="Train again without it")).to_be_visible()
    versions = page.request.get("/adapters/").text()
    assert versions.count("learned from a chat that you deleted") == 3  # v1, and what grew from it
    page.locator(f"#restore-{name}").click()
    expect(learned).to_have_count(0)
    expect(page.locator(f"#forget-{name}")).to_be_visible()
