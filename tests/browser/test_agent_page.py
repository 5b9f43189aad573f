"""My agent in a browser, without a model: old complaints beside what is said now, judged by their
author; a chat that is forgotten, which versions that marks, and how it is had back; whether it is
better, what it was told and what came of it; notes taken back; all of it erased."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Look

pytestmark = pytest.mark.browser


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
    learned = page.get_by_text("This version has learned from a chat that is deleted.")
    expect(learned).to_have_count(0)
    forget.click()
    expect(page.locator("#notices")).to_contain_text("You can undo it for ten minutes.")
    expect(learned).to_be_visible()
    expect(page.get_by_text("The base model has not:")).to_be_visible()
    expect(page.get_by_role("button", name="Train again without it")).to_be_visible()
    versions = page.request.get("/adapters/").text()
    assert versions.count("learned from a deleted chat") == 3  # v1, and what grew from it
    page.locator(f"#restore-{name}").click()
    expect(learned).to_have_count(0)
    expect(page.locator(f"#forget-{name}")).to_be_visible()


def test_it_says_what_answers_whether_it_is_better_and_what_came_of_each_note(look: Look) -> None:
    page = look("wren", "/agent/")
    now = page.get_by_role("region", name="Now")
    expect(now).to_contain_text(re.compile(r"Version 2 has answered since \w+ \d+, \d{4}, "))
    expect(now).to_contain_text(re.compile(r"\d+ ratings are ready for the next training\."))
    better = page.get_by_role("region", name="Is it better?")
    expect(better.locator("strong")).to_have_text(
        "No clear change from v1 to v2: their ranges overlap."
    )
    rates = better.get_by_role("row").filter(has=page.get_by_role("img"))
    expect(rates).to_have_count(3)
    expect(
        rates.last.get_by_role("img", name=re.compile(r"\d+%, between \d+ and \d+%"))
    ).to_be_visible()
    wins = better.get_by_role("row").filter(has_text="v2 against v1")
    expect(wins).to_contain_text("50% of 2")
    expect(wins).to_contain_text("(too few)")
    funnel = page.get_by_role("region", name="How far your ratings got")
    expect(funnel.locator("progress")).to_have_count(4)
    expect(page.get_by_role("region", name="What answered when")).to_contain_text("answers now")

    ratings = page.get_by_role("region", name="What came of every rating")
    expect(ratings.get_by_text("learned in v").first).to_be_visible()
    ratings.get_by_role("link", name="Not used").press("Enter")
    expect(page).to_have_url(re.compile("unused=1"))


def test_a_note_shows_where_it_was_said_and_is_taken_back(look: Look) -> None:
    page = look("finch", "/agent/")
    notes = page.get_by_role("region", name="What it seems to have learned")
    note = notes.locator(".notes > li").first
    words = note.locator("p").first.inner_text()
    note.get_by_text("Where you said it").press("Enter")
    expect(note.locator(".evidence").get_by_role("link").first).to_be_visible()
    page.on("dialog", lambda dialog: dialog.accept())
    note.get_by_role("button", name="That is wrong").press("Enter")
    expect(page.locator("#notices")).to_contain_text("Taken back.")
    expect(
        notes.locator(".notes > li > div > p:first-child").get_by_text(words, exact=True)
    ).to_have_count(0)
    assert page.evaluate("document.activeElement !== document.body"), "the focus was lost"


def test_everything_is_erased_for_who_types_their_name(look: Look) -> None:
    page = look("finch", "/agent/")
    page.get_by_role("button", name="Pause learning").press("Enter")
    expect(page.get_by_role("button", name="Go on learning")).to_be_visible()
    page.get_by_role("link", name="Erase everything it learned").press("Enter")
    name = page.get_by_role("textbox")
    name.fill("wren")
    page.get_by_role("button", name="Erase for good").press("Enter")
    expect(name).to_have_attribute("aria-invalid", "true")
    name.fill("finch")
    page.get_by_role("button", name="Erase for good").press("Enter")
    expect(page.get_by_text("Erased. Your agent begins anew.")).to_be_visible()
    expect(
        page.get_by_role("heading", name="Nothing yet: it learns from your ratings")
    ).to_be_visible()
    for address in ("/sessions/", "/jobs/"):
        page.goto(address)
        expect(page.locator(".card.empty")).to_be_visible()
    page.goto("/adapters/")  # a number that was given is not given again
    expect(page.get_by_role("region", name="v1", exact=True)).to_contain_text("erased")
    expect(page.get_by_role("link", name="Download version 1")).to_have_count(0)
