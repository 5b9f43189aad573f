"""A reply that is cut off from its reader at random points arrives whole: nothing doubled, nothing
left out. `--cuts 20` cuts each reply more often; `--seed` repeats a run."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from redis import Redis

from tests.browser.demo import Demo

pytestmark = pytest.mark.browser

RATE = 40.0  # words a second
# Whatever is painted of an unfinished reply is how the whole one begins. Noted for all pages of the
# browser: one that is opened late may find the reply whole.
WATCH = """(() => {
  const whole = %s;
  const look = () => {
    for (const reply of document.querySelectorAll(".turn:last-child .reply.plain")) {
      if (!whole.startsWith(reply.textContent)) localStorage.wrong = reply.textContent;
      localStorage.seen = Number(localStorage.seen ?? 0) + 1;
    }
  };
  addEventListener("DOMContentLoaded", () => new MutationObserver(look).observe(
    document.body, { subtree: true, childList: true, characterData: true }));
})();"""
Cut = Callable[[BrowserContext, Page, Demo], Page]


def close_the_browser(context: BrowserContext, page: Page, demo: Demo) -> Page:
    address = page.url
    page.close()
    other = context.new_page()
    other.goto(address)
    return other


def lose_the_network(context: BrowserContext, page: Page, demo: Demo) -> Page:
    context.set_offline(True)
    page.wait_for_timeout(700)
    context.set_offline(False)
    return page


def kill_the_web_server(context: BrowserContext, page: Page, demo: Demo) -> Page:
    demo.stack.kill_and_wait("web")
    return page


def cut_valkeys_connections(context: BrowserContext, page: Page, demo: Demo) -> Page:
    with Redis.from_url(demo.stack.config.redis) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub", skipme=True)
    return page


CUTS = [close_the_browser, lose_the_network, kill_the_web_server, cut_valkeys_connections]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    seed = request.config.getoption("--seed") or random.randrange(10**6)
    print(f"--seed {seed}")  # noqa: T201  # pytest shows it when the test fails
    return random.Random(seed)


@pytest.fixture
def context(browser: Browser, demo: Demo) -> Iterator[BrowserContext]:
    context = demo.context(browser, "newcomer", viewport={"width": 1280, "height": 800})
    yield context
    context.close()


@pytest.mark.parametrize("cut", CUTS)
def test_what_is_cut_off_arrives_whole(
    cut: Cut,
    context: BrowserContext,
    demo: Demo,
    rng: random.Random,
    request: pytest.FixtureRequest,
) -> None:
    cuts = request.config.getoption("--cuts")
    words = 200 * cuts
    text = " ".join(f"{rng.choice(['wind', 'sand', 'Meer', '🌊', 'x'])}{n}" for n in range(words))
    context.add_init_script(WATCH % json.dumps(text))
    page = context.new_page()
    page.goto("/chat/")
    with demo.writing(RATE):
        page.get_by_label("Your message").fill(text)
        page.keyboard.press("Enter")
        expect(page.locator(".turn .reply")).not_to_be_empty()
        for _ in range(cuts):
            page.wait_for_timeout(rng.uniform(0.1, 0.8 * words / RATE / cuts) * 1000)
            page = cut(context, page, demo)
        turn = page.locator(".turn").last
        expect(turn).to_have_attribute("data-state", "complete", timeout=120_000)
    shown = turn.locator(".reply").inner_text()
    kept = page.request.get(f"/api/turns/{turn.get_attribute('id')}").json()
    assert kept["reply"] == text
    assert shown == text
    assert page.locator(".turn").count() == 1
    assert page.evaluate("localStorage.wrong ?? null") is None
    assert page.evaluate("Number(localStorage.seen)") > 0


def test_a_killed_generator_leaves_its_text_and_a_way_on(
    context: BrowserContext, demo: Demo, rng: random.Random
) -> None:
    text = " ".join(f"word{n}" for n in range(800))
    killed_at = rng.randrange(120, 300)  # by then a second's words are in the row
    page = context.new_page()
    page.goto("/chat/")
    turn = page.locator(".turn").last
    with demo.writing(RATE) as writer:
        page.get_by_label("Your message").fill(text)
        page.keyboard.press("Enter")
        expect(turn.locator(".reply")).to_contain_text(f"word{killed_at}")
        writer.kill()
    # What the sweep does once the lease is over; no worker runs here.
    demo.stack.manage("shell", "--command", ABANDON)
    expect(turn).to_have_attribute("data-state", "interrupted")
    shown = turn.locator(".reply").inner_text()
    kept = page.request.get(f"/api/turns/{turn.get_attribute('id')}").json()
    assert kept["reply"] == shown
    assert re.match(r"word0 .*word10\b", shown)
    assert text.startswith(shown)
    expect(turn).to_contain_text("What it had written is kept.")
    with demo.writing(400):
        turn.get_by_role("button", name="Try again").click()
        expect(turn).to_have_attribute("data-state", "complete")
    assert turn.locator(".reply").inner_text() == text


ABANDON = """
from datetime import timedelta
from django.utils import timezone
from clawweb.models import Turn
from clawweb.services import chat
past = timezone.now() - timedelta(seconds=1)
Turn.objects.filter(state="streaming").update(lease_until=past)
chat.interrupt_abandoned()
"""


def test_a_new_reply_beside_one_that_the_address_names_is_there_after_a_reload(
    context: BrowserContext, demo: Demo
) -> None:
    page = context.new_page()
    page.goto("/chat/")
    turn = page.locator(".turn").last
    with demo.writing(400):
        page.get_by_label("Your message").fill("What is dew?")
        page.keyboard.press("Enter")
        for number in (2, 3):
            expect(turn).to_have_attribute("data-state", "complete")
            turn.get_by_role("button", name="Answer again").click()
            expect(turn.locator(".siblings")).to_contain_text(f"{number}/{number}")
            turn.get_by_role("link", name="Earlier answer").click()
            expect(turn.locator(".siblings")).to_contain_text(f"{number - 1}/{number}")
        turn.get_by_role("button", name="Answer again").click()
        expect(turn.locator(".siblings")).to_contain_text("4/4")
        expect(turn).to_have_attribute("data-state", "complete")
    page.reload()
    expect(turn.locator(".siblings")).to_contain_text("4/4")


def test_what_is_written_in_a_messages_place_outlives_it(
    context: BrowserContext, demo: Demo
) -> None:
    """Another reply before it, or a reload, takes its form off the page."""
    page = context.new_page()
    page.goto("/chat/")
    turns = page.locator(".turn")
    box = page.get_by_label("Your message", exact=True)

    def begin_to_edit(words: str) -> None:
        turns.last.get_by_role("button", name="Edit your message").click()
        page.get_by_label("Your message in other words").fill(words)

    with demo.writing(400):
        for number, words in enumerate(("What is fog?", "And mist?"), 1):
            box.fill(words)
            page.keyboard.press("Enter")
            expect(turns).to_have_count(number)
            expect(turns.last).to_have_attribute("data-state", "complete")
        begin_to_edit("And what is mist?")
        turns.first.get_by_role("button", name="Answer again").click()
        expect(turns).to_have_count(1)
        expect(turns.last).to_have_attribute("data-state", "complete")
    expect(box).to_have_value("And what is mist?")
    expect(page.locator("#notices")).to_contain_text("in the message box now")
    box.fill("")
    begin_to_edit("What is thick fog?")
    page.reload()
    expect(box).to_have_value("What is thick fog?")
    box.fill("")
    begin_to_edit("What is fog?")  # as it stands there
    page.reload()
    expect(box).to_have_value("")
