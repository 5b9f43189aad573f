"""Pieces of a page that are fetched later, when the server fails them: what was there stays, the
page says that it is old or missing, and a button tries again."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import Look
from tests.browser.demo import Demo

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180, method="signal")]

OLD = "This part could not be brought up to date."
SERVED = "**/parts/adapters/served/**"
MISSING = "This part could not be loaded."
NUDGE = """([what, id]) => document.dispatchEvent(
  new CustomEvent("changed", { detail: { what, id } }))"""


def fail(page: Page, address: str) -> None:
    def broken(route: Route) -> None:
        route.fulfill(status=500, body="")

    page.route(address, broken)


def try_again_in_vain_then_well(page: Page, address: str, place: Locator, words: str) -> None:
    again = place.get_by_role("button", name="Try again")
    again.press("Enter")
    expect(place).to_contain_text("Trying …")
    expect(place).to_contain_text(words)
    expect(again).to_be_focused()
    expect(again).to_have_count(1)
    page.unroute(address)
    again.press("Enter")
    expect(again).to_have_count(0)
    expect(place).not_to_contain_text(words)


def test_an_old_piece_stays_and_says_that_it_is_old(look: Look) -> None:
    page = look("ada", "/agent/")
    place = page.locator("[data-part^='/parts/ratings/']")
    rows = place.get_by_role("row").count()
    assert rows > 2
    page.locator("#connection").wait_for(state="hidden")
    page.wait_for_load_state("networkidle")
    fail(page, "**/parts/ratings/**")
    page.evaluate(NUDGE, ["receipt", None])
    expect(place).to_contain_text(OLD)
    expect(place.get_by_role("row")).to_have_count(rows)
    try_again_in_vain_then_well(page, "**/parts/ratings/**", place, OLD)
    assert page.evaluate("document.activeElement !== document.body"), "the focus was lost"


def test_what_never_came_is_said_to_be_missing(look: Look) -> None:
    page = look("ada", "/chat/")
    fail(page, SERVED)
    page.goto("/adapters/")
    place = page.locator("[data-part='/parts/adapters/served/']")
    expect(place).to_contain_text(MISSING)
    try_again_in_vain_then_well(page, SERVED, place, MISSING)
    expect(place).to_contain_text("The model server does not answer now.")


def test_a_search_that_fails_does_not_pass_for_its_result(look: Look) -> None:
    page = look("ada", "/chat/")
    page.wait_for_load_state("networkidle")
    place = page.locator("#sessions")
    before = place.get_by_role("listitem").count()
    fail(page, "**/parts/sessions/*")
    page.get_by_role("searchbox").fill("balcony")
    expect(place).to_contain_text(OLD)
    try_again_in_vain_then_well(page, "**/parts/sessions/*", place, OLD)
    assert 0 < place.get_by_role("listitem").count() < before


def test_charts_that_stand_still_say_so(look: Look, demo: Demo) -> None:
    page = look("ada", f"/jobs/{demo.places['job_id']}/")
    page.locator("#chart-loss .main-svg").first.wait_for()
    page.wait_for_load_state("networkidle")
    place = page.locator("#charts")
    fail(page, "**/series/**")
    page.evaluate(NUDGE, ["job", demo.places["job_id"]])
    expect(place).to_contain_text(OLD)
    expect(page.locator("#chart-loss .main-svg").first).to_be_visible()
    try_again_in_vain_then_well(page, "**/series/**", place, OLD)


def test_without_its_words_a_page_speaks_english_and_works(look: Look) -> None:
    page = look("ada", "/sessions/")
    page.route("**/jsi18n/**", lambda route: route.abort())
    page.goto("/chat/")
    page.get_by_role("searchbox").fill("balcony")
    expect(page.locator("#sessions").get_by_role("listitem")).to_have_count(1)
    page.context.set_offline(True)
    expect(page.locator("#connection")).to_contain_text("You are offline.")
    expect(page.locator("#connection .left")).to_contain_text("Next try in")
