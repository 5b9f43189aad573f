"""The whole loop by keyboard alone: each stop is seen, nothing traps, and what opens gives the
focus back. And what a screen reader is told of one streamed answer: that it began, and its end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Look
from tests.browser.demo import Demo

pytestmark = pytest.mark.browser

RATE = 25.0  # words a second
AT_ONCE = timedelta(seconds=1)
FINISHED = re.compile("complete|stopped")
# What has the focus: its role and name, roughly, and whether the eye can tell.
FOCUSED = """() => {
  const at = document.activeElement;
  const name = at.getAttribute("aria-label") || at.labels?.[0]?.textContent || at.textContent
    || at.name || at.id;
  const seen = [at, at.closest("label"), at.closest("form")].some((each) => {
    if (!each) return false;
    const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(each);
    return (outlineStyle !== "none" && outlineWidth !== "0px") || boxShadow !== "none";
  });
  const { top, bottom, width } = at.getBoundingClientRect();
  return {
    tag: at.tagName, name: name.trim().replace(/\\s+/g, " ").slice(0, 80), seen,
    inside: bottom > 0 && top < innerHeight && width > 0,
  };
}"""
# Each text that a live region is given, in order.
LISTEN = """() => {
  window.heard = [];
  const live = "[aria-live=polite], [aria-live=assertive], [role=status], [role=alert]";
  new MutationObserver((changes) => {
    const regions = new Set(changes.map(({ target }) => (
      target.nodeType === 1 ? target : target.parentElement)?.closest(live)).filter(Boolean));
    for (const each of regions) if (each.textContent.trim()) heard.push(each.textContent.trim());
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


@pytest.fixture
def page(browser: Browser, demo: Demo) -> Iterator[Page]:
    context = demo.context(browser, viewport={"width": 1280, "height": 800})
    complaints: list[str] = []
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    yield context.new_page()
    context.close()
    assert not complaints


def tab_to(page: Page, name: str, *, back: bool = False, most: int = 60) -> None:
    """Press Tab until what is called so has the focus. Every stop on the way must be visible."""
    passed = []
    for _ in range(most):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        at = page.evaluate(FOCUSED)
        passed.append(at["name"])
        if at["tag"] == "BODY":  # the browser's own bar comes between the last stop and the first
            continue
        assert at["seen"], f"the focus on {at} cannot be seen"
        assert at["inside"], f"the focus went to {at}, which is out of sight"
        if name in at["name"]:
            return
    pytest.fail(f"no Tab reaches {name!r}, only {passed}")


def focused(page: Page) -> str:
    return str(page.evaluate(FOCUSED)["name"])


def ask(page: Page, text: str) -> None:
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def test_the_whole_loop_by_keyboard(page: Page, demo: Demo) -> None:
    with demo.writing(RATE):
        sign_in(page)
        page.evaluate(LISTEN)
        ask(page, "Say in a few words what rain is.")
        turn = page.locator(".turn").last
        expect(turn).to_have_attribute("data-state", "complete")
        page.wait_for_timeout(300)
        heard = page.evaluate("heard")
        assert heard == ["The agent is answering.", "Answer ready, 8 words."]

        say_what_was_wrong(page)
        rate_by_letters(page)
        stop_and_ask_again(page)
    roll_back(page)


def sign_in(page: Page) -> None:
    page.goto("/signin/")
    expect(page.get_by_label("Username")).to_be_focused()  # a moment after the page is there
    page.keyboard.type("guest")
    tab_to(page, "Password")
    page.keyboard.type("only for the demo")
    page.keyboard.press("Enter")
    page.wait_for_url("**/chat/")
    expect(page.get_by_label("Your message")).to_be_focused()


def say_what_was_wrong(page: Page) -> None:
    turn = page.locator(".turn").last
    tab_to(page, "Bad reply", back=True)
    page.keyboard.press("Enter")
    expect(turn.get_by_role("button", name="Bad reply")).to_have_attribute("aria-pressed", "true")
    tab_to(page, "Too short")
    page.keyboard.press("Space")
    tab_to(page, "Too long", back=True)
    page.keyboard.press("Space")  # they have changed their mind
    expect(turn.get_by_label("Too short")).not_to_be_checked()
    tab_to(page, "Write what you wanted instead")
    page.keyboard.press("Enter")
    tab_to(page, "What you wanted instead")
    page.keyboard.press("Control+a")
    page.keyboard.type("Water that falls from clouds.")
    expect(turn.locator(".changes ins").first).to_be_visible()
    page.keyboard.press("Control+Enter")
    expect(turn.locator(".receipt")).not_to_be_empty()
    expect(turn.get_by_role("button", name="Bad reply")).to_be_focused()
    kept = page.request.get(f"/api/turns/{turn.get_attribute('id')}").json()["feedback"]
    assert kept["reasons"] == ["too_long"]
    assert kept["correction"] == "Water that falls from clouds."


def rate_by_letters(page: Page) -> None:
    """Alt and an arrow go to a reply; there a letter rates it, and in a field it is a letter."""
    turn = page.locator(".turn").last
    tab_to(page, "Your message")
    page.keyboard.type("u")
    expect(page.get_by_label("Your message")).to_have_value("u")
    page.keyboard.press("Backspace")
    page.keyboard.press("Alt+ArrowUp")
    expect(turn).to_be_focused()
    page.keyboard.press("u")
    expect(turn.get_by_role("button", name="Good reply")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("c")
    expect(turn.get_by_role("button", name="Bad reply")).to_have_attribute("aria-pressed", "true")
    expect(turn.locator("textarea[name=correction]")).to_be_focused()
    page.keyboard.press("Escape")
    expect(turn.get_by_role("button", name="Bad reply")).to_be_focused()
    page.keyboard.press("Alt+ArrowDown")
    expect(page.get_by_label("Your message")).to_be_focused()


def stop_and_ask_again(page: Page) -> None:
    page.keyboard.insert_text(" ".join(f"word{n}" for n in range(500)))  # 20 seconds
    ask(page, ".")
    turn = page.locator(".turn").last
    expect(turn.locator(".reply")).to_contain_text("word9")
    tab_to(page, "Stop")
    took = [until_stopped(page, "Enter")]

    tab_to(page, "Answer again", back=True)
    page.keyboard.press("Enter")
    expect(turn.locator(".siblings")).to_contain_text("2/2")
    expect(turn.locator(".reply")).to_contain_text("word3")
    page.locator("#find").fill("what was searched for")
    page.keyboard.press("Escape")
    expect(page.locator("#find")).to_have_value("")
    expect(turn.locator(".reply")).to_contain_text("word60")  # it goes on
    page.get_by_label("Your message").focus()
    took.append(until_stopped(page, "Escape"))
    assert page.evaluate("document.activeElement !== document.body"), "the focus was lost"
    assert min(took) < AT_ONCE, took  # what else the machine does is not its time


def until_stopped(page: Page, key: str) -> timedelta:
    """How long after this key the reply ended, as its row says."""
    turn = page.locator(".turn").last
    pressed = datetime.now(tz=UTC)
    page.keyboard.press(key)
    expect(turn).to_have_attribute("data-state", "stopped")
    kept = page.request.get(f"/api/turns/{turn.get_attribute('id')}").json()
    return datetime.fromisoformat(kept["finished_at"]) - pressed


def roll_back(page: Page) -> None:
    tab_to(page, "Menu of guest")  # the last stop is followed by the first
    page.keyboard.press("Enter")
    tab_to(page, "Settings")
    page.keyboard.press("Escape")
    assert focused(page) == "Menu of guest"
    tab_to(page, "Versions", back=True)
    page.keyboard.press("Enter")
    page.wait_for_url("**/adapters/")
    expect(page.get_by_text("Version 1 answers now.")).to_be_visible()
    page.keyboard.press("Tab")
    assert "Skip" in focused(page)
    page.keyboard.press("Enter")
    tab_to(page, "Roll back")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The base model answers now.")).to_be_visible()
    assert page.evaluate("document.activeElement !== document.body"), "the focus was lost"


def test_a_chats_menu_gives_the_focus_back(look: Look) -> None:
    page = look("heron", "/chat/")
    links = page.locator("#sessions [data-session] > a")
    here = page.get_by_role("link", name="Chat 60", exact=True)

    def choose(act: str) -> None:
        row = page.locator("#sessions [data-session]").filter(has=here)
        row.locator("summary").press("Enter")
        row.get_by_role("button", name=act).press("Enter")

    choose("Pin")
    expect(links.first).to_have_text("Chat 60")  # it has moved, and the focus with it
    expect(here).to_be_focused()
    choose("Unpin")
    expect(links.first).not_to_have_text("Chat 60")
    expect(here).to_be_focused()
    choose("Delete")
    expect(here).to_have_count(0)
    expect(page.get_by_role("link", name="Chat 59", exact=True)).to_be_focused()
    page.locator(".notice").get_by_role("button", name="Undo").press("Enter")
    expect(here).to_be_visible()
    expect(page.get_by_role("link", name="Chat 59", exact=True)).to_be_focused()


def test_what_a_search_finds_is_told_to_who_does_not_see_it(look: Look) -> None:
    page = look("heron", "/chat/")
    for words, told in (
        ("Chat 60", "1 chat is listed."),
        ("Chat 6", "11 chats are listed."),
        ("a chat of nobody's", "No chat holds “a chat of nobody's”."),
        ("", ""),
    ):
        page.get_by_label("Search your chats").fill(words)
        expect(page.locator("#status")).to_have_text(told)


def test_an_offer_that_is_declined_gives_the_focus_to_the_box(look: Look, demo: Demo) -> None:
    page = look("ada", f"/chat/{demo.places['session_id']}/")
    page.evaluate("document.dispatchEvent(new CustomEvent('version', { detail: 99 }))")
    page.get_by_role("button", name="Not now").press("Enter")
    expect(page.get_by_label("Your message", exact=True)).to_be_focused()
