"""The inspector among rows, by keyboard and without a model: what became of a rating, what a note
changed in each word, what a judge made of it; sessions are found by what is in them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Look
from tests.browser.demo import Demo

pytestmark = pytest.mark.browser


@pytest.fixture
def page(look: Look) -> Page:
    return look("wren", "/sessions/")


def find(page: Page, field: str, value: str) -> None:
    page.get_by_text("Find sessions").press("Enter")
    page.get_by_label(field).select_option(value)
    page.get_by_role("button", name="Show", exact=True).press("Enter")


def test_a_refused_ratings_fate_and_the_notes_effect_on_each_word(page: Page, demo: Demo) -> None:
    page.goto(f"/sessions/{demo.places['noted']}/")
    turn = page.get_by_role("article").first
    samples = turn.get_by_role("group", name="Samples")
    expect(samples).to_contain_text("trained")
    expect(samples.get_by_role("link", name="Job 2")).to_be_visible()
    turn.get_by_role("button", name="What your note changed").press("Enter")
    words = turn.locator(".heat > span[title]")
    expect(words).to_have_count(4)
    expect(words.nth(1)).to_have_class(re.compile("less"))
    expect(words.nth(3)).to_have_class("more4")
    turn.get_by_text("As a table").press("Enter")
    expect(turn.get_by_role("group", name="Words of the reply").get_by_role("row")).to_have_count(5)
    turn.get_by_role("button", name="Text", exact=True).press("Enter")
    expect(words).to_have_count(0)


def test_what_a_judge_voted_is_there_with_its_words(look: Look, demo: Demo) -> None:
    page = look("ada", f"/sessions/{demo.places['session_id']}/")
    turn = page.get_by_role("article").first
    page.get_by_role("button", name="Keyboard shortcuts").press("Enter")
    page.get_by_role("dialog", name="Keyboard shortcuts").get_by_role("button").press("Enter")
    expect(turn.get_by_text("What the judge made of what came next")).to_be_visible()
    turn.get_by_text("2 votes").press("Enter")
    expect(turn.get_by_text("VERDICT: 1")).to_be_visible()
    expect(turn.get_by_text("no verdict")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("n")
    page.keyboard.press("p")
    expect(turn).to_be_focused()


def test_sessions_are_found_by_what_is_in_them(page: Page) -> None:
    all_of_them = page.get_by_role("rowheader").count()
    find(page, "Rated", "disliked")
    page.wait_for_url(re.compile(r"/sessions/\?"))
    rows = page.get_by_role("rowheader")
    expect(rows.first).to_be_visible()
    assert 0 < rows.count() < all_of_them
    expect(page.get_by_role("row").filter(has_text="disliked")).to_have_count(rows.count())
    page.get_by_role("link", name="Show all sessions").press("Enter")
    expect(rows).to_have_count(all_of_them)


def test_an_address_without_a_space_pushes_nothing_out_of_sight(look: Look) -> None:
    """It breaks within its cell, so that what stands beside it stays in sight at a desk."""
    page = look("heron", "/sessions/")
    for path in ("/sessions/", page.locator("th a").first.get_attribute("href"), "/agent/"):
        assert path
        page.goto(path)
        tables = page.locator(".scroll:visible")
        hidden = [each.evaluate("at => at.scrollWidth - at.clientWidth") for each in tables.all()]
        assert hidden
        assert not any(hidden), path
