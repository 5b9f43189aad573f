"""Pieces of a page that are fetched later, when the server fails them: what was there stays, the
page says that it is old or missing, and a button tries again."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import Look
from tests.browser.demo import Demo
from tests.browser.until import NUDGE, caught, connected

pytestmark = pytest.mark.browser

OLD = "This part could not be brought up to date."
SERVED = "**/parts/adapters/served/**"
MISSING = "This part could not be loaded."


def fail(page: Page, address: str) -> None:
    page.route(address, lambda route: route.fulfill(status=500, body=""))


def try_again_in_vain_then_well(page: Page, address: str, place: Locator, words: str) -> None:
    again, held = place.get_by_role("button", name="Try again"), list[Route]()
    page.unroute(address)
    page.route(address, lambda route: held.append(route))
    again.press("Enter")
    expect(place).to_contain_text("Trying …")
    caught(page, held)
    held[0].fulfill(status=500, body="")
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
    connected(page)
    page.wait_for_load_state("networkidle")
    fail(page, "**/parts/ratings/**")
    page.evaluate(NUDGE, ["receipt", None])
    expect(place).to_contain_text(OLD)
    expect(place.get_by_role("row")).to_have_count(rows)
    try_again_in_vain_then_well(page, "**/parts/ratings/**", place, OLD)
    assert page.evaluate("document.activeElement !== document.body"), "the focus was lost"


def test_a_wide_table_stays_where_it_was_pushed_to(look: Look) -> None:
    """A job that trains brings its row anew with each step."""
    page = look("owl", "/jobs/")
    page.set_viewport_size({"width": 360, "height": 740})
    connected(page)
    page.wait_for_load_state("networkidle")
    table = page.get_by_role("group", name="Training jobs")
    table.evaluate("each => { each.scrollLeft = 150; each.isOld = true; }")
    page.evaluate(NUDGE, ["job", None])
    page.wait_for_function(
        "() => !document.querySelector('[data-part^=\"/parts/jobs/\"] .scroll').isOld"
    )
    assert table.evaluate("each => each.scrollLeft") == 150


def test_a_right_click_whose_release_a_menu_takes_holds_no_piece_back(look: Look) -> None:
    page = look("ada", "/agent/")
    place = page.locator("[data-part^='/parts/ratings/']")
    row = place.get_by_role("row").nth(1)
    connected(page)
    page.wait_for_load_state("networkidle")
    row.hover()
    page.mouse.down(button="right")
    with page.expect_response("**/parts/ratings/**"):
        page.evaluate(NUDGE, ["receipt", None])


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


def test_a_button_that_is_pressed_is_not_taken_away(look: Look) -> None:
    page, sent = look("ada", "/agent/"), list[Route]()
    page.route("**/api/agent/pause", lambda route: sent.append(route))
    pause = page.get_by_role("button", name="Pause learning")
    pause.evaluate("each => { each.dataset.old = ''; }")
    pause.hover()
    page.mouse.down()
    page.evaluate(NUDGE, ["receipt", None])
    page.wait_for_timeout(1000)
    page.mouse.up()
    caught(page, sent)
    sent[0].abort()
    expect(page.locator("[data-old]")).to_have_count(0)  # once it is let go


def test_who_waits_for_an_answer_keeps_the_focus_when_the_piece_comes_first(look: Look) -> None:
    page, sent = look("ada", "/agent/"), list[Route]()
    page.route("**/api/agent/pause", lambda route: sent.append(route))
    pause = page.get_by_role("button", name="Pause learning")
    pause.evaluate("each => { each.dataset.old = ''; }")
    pause.press("Enter")
    caught(page, sent)
    page.wait_for_timeout(200)  # a button that is disabled loses the focus with the next picture
    page.evaluate(NUDGE, ["receipt", None])
    expect(page.locator("[data-old]")).to_have_count(0)
    sent[0].fulfill(json={})
    expect(page.locator("#notices")).to_contain_text("Paused.")
    expect(pause).to_be_focused()


def test_a_name_that_is_being_written_stays(look: Look) -> None:
    page = look("ada", "/chat/")
    row = page.locator("#sessions").get_by_role("listitem").filter(has_text="balcony")
    row.locator("summary").press("Enter")
    row.get_by_role("button", name="Rename").press("Enter")
    page.keyboard.type("Half a na")
    page.evaluate(NUDGE, ["session", None])
    page.wait_for_timeout(1000)
    page.keyboard.type("me")
    expect(row.get_by_label("New name")).to_have_value("Half a name")
    with page.expect_response("**/parts/sessions/*"):
        page.keyboard.press("Escape")
    expect(row.get_by_role("link")).to_be_visible()


def test_each_of_two_deleted_chats_comes_back(look: Look) -> None:
    """The second one's notice took the place of the first one's, and of its Undo."""
    page = look("heron", "/chat/")
    rows = page.locator("#sessions [data-session]")
    names = ["Chat 69", "Chat 68"]
    for name in names:
        row = rows.filter(has=page.get_by_role("link", name=name, exact=True))
        row.locator("summary").press("Enter")
        row.get_by_role("button", name="Delete").press("Enter")
        expect(row).to_have_count(0)
    undo = page.locator(".notice").get_by_role("button", name="Undo")
    expect(undo).to_have_count(2)
    for name in names:
        expect(page.locator(".notice", has_text=f"“{name}” is deleted.")).to_be_visible()
    for left in (1, 0):
        undo.first.press("Enter")
        expect(undo).to_have_count(left)
    for name in names:
        expect(rows.get_by_role("link", name=name, exact=True)).to_be_visible()


def test_the_heading_goes_with_the_open_chats_name(look: Look) -> None:
    page = look("heron", "/chat/")
    page.get_by_role("link", name="Chat 67", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Chat 67")
    connected(page)
    row = page.locator(".session-list li").filter(has=page.locator("[aria-current]"))
    row.locator("summary").press("Enter")
    row.get_by_role("button", name="Rename").press("Enter")
    page.keyboard.type("Hail and sleet")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Hail and sleet")
    expect(page).to_have_title("Hail and sleet · clawweb")


def test_what_was_closed_stays_closed(look: Look) -> None:
    """The tests of a refused version are open until somebody has read them."""
    page = look("wren", "/adapters/")
    connected(page)
    tests = page.locator("details[open]").first
    name = tests.get_attribute("id")
    tests.get_by_text("How it was tested").press("Enter")
    closed = page.locator(f"#{name}:not([open])")
    closed.evaluate("each => { each.dataset.old = ''; }")
    page.evaluate(NUDGE, ["adapter", None])
    expect(page.locator("[data-old]")).to_have_count(0)
    expect(closed).to_have_count(1)
    closed.get_by_text("How it was tested").press("Enter")
    page.evaluate(NUDGE, ["adapter", None])
    expect(page.locator(f"#{name}[open]")).to_have_count(1)


def test_what_was_chosen_stays_chosen(look: Look) -> None:
    page = look("ada", "/adapters/")
    share = page.get_by_label("answer a part of your chat").first
    share.select_option("50")
    share.evaluate("each => { each.dataset.old = ''; }")
    page.evaluate(NUDGE, ["adapter", None])
    expect(page.locator("[data-old]")).to_have_count(0)
    expect(share).to_have_value("50")


# The last minute of the day before yesterday: hardly more than a day ago, early in the morning.
TWO_NIGHTS_AGO = """() => {
  const at = new Date();
  const [place, time] = ["p", "time"].map((name) => document.createElement(name));
  at.setDate(at.getDate() - 2);
  at.setHours(23, 59, 59);
  time.dateTime = at.toISOString();
  place.append(time);
  document.dispatchEvent(new CustomEvent("part", { detail: place }));
  return time.textContent;
}"""


def test_days_are_counted_by_the_calendar(look: Look) -> None:
    page = look("ada", "/sessions/")
    assert page.evaluate(TWO_NIGHTS_AGO) == "2 days ago"
