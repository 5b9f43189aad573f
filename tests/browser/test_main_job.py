"""The one promise, in a browser, on the real stack: ratings become a version that answers."""

from __future__ import annotations

import re
import time
import zipfile
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from clawweb.selectors.trials import percentile
from tests.browser.conftest import Visit
from tests.browser.until import until
from tests.loop.person import rows
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.browser, pytest.mark.timeout(1800)]

FINISHED = re.compile("complete|stopped")
REPLY = 180_000  # ms until a reply is there; two noisy cores serve, train and draw at once
AT_ONCE = 2.0  # seconds from a click on "Roll back" until the row says so
LEARNED = 600_000  # ms from the eighth rating to the new version
XSS = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> Say hi.'
QUESTIONS = [
    "What is rain?",
    "Why do cats purr?",
    "What is bread made of?",
    "How do bees make honey?",
    "What is a comet?",
    "Why is the sea salty?",
    "What does a baker do?",
    "How do I boil an egg?",
]


def ask(page: Page, text: str, *, words: int = 12) -> None:
    """Type, press Enter, read so many words of the reply, and stop what is left of it."""
    turns = page.locator(".turn")
    before = turns.count()
    expect(page.get_by_role("button", name="Send")).to_be_visible()  # nothing is being written
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")
    expect(turns).to_have_count(before + 1)
    read(page, words)
    if turns.last.get_attribute("data-state") == "streaming":
        page.keyboard.press("Escape")
    expect(turns.last).to_have_attribute("data-state", FINISHED, timeout=REPLY)


def read(page: Page, words: int) -> str:
    """What is there of the last reply once it has so many words, or is finished."""
    last = page.locator(".turn").last
    enough = re.compile(rf"(\S+\s+){{{words}}}")
    page.locator(".turn").last.locator(".reply").filter(has_text=enough).or_(
        page.locator('.turn[data-state="complete"]:last-child')
    ).first.wait_for(timeout=REPLY)
    return last.locator(".reply").inner_text()


def rate_down(page: Page, reason: str) -> None:
    last = page.locator(".turn").last
    last.get_by_role("button", name="Bad reply").click()
    last.get_by_text(reason, exact=True).click()
    last.get_by_role("button", name="Done").click()
    expect(last.get_by_role("button", name="Bad reply")).to_have_attribute("aria-pressed", "true")
    expect(last.locator(".receipt")).to_contain_text(re.compile("counted|in training"))


# A point, and a row of the table, for each that the page has.
ALL_DRAWN = """(() => {
  const points = document.querySelectorAll("#chart-loss .scatterlayer .point").length;
  const rows = document.querySelectorAll("#points-table tbody tr").length;
  return [points, rows].every((each) => each === Number(charts.dataset.points));
})()"""


def shown_points(page: Page) -> int:
    return int(page.locator("#charts").get_attribute("data-points") or 0)


def test_eight_thumbs_down_become_a_version_that_answers(
    visit: Visit, stack: Stack, record_property: Any
) -> None:
    page = visit("ada")
    for question in QUESTIONS:
        ask(page, question, words=40)
        rate_down(page, "Too long")

    expect(page.locator(".turn").first.locator(".version")).to_have_text("base model")
    job = page.get_by_role("link", name=re.compile("Job 1: "))
    expect(job).to_be_visible(timeout=REPLY)
    watch_the_chart_move(page, job.get_attribute("href") or "")

    page.goto("/chat/")
    expect(page.get_by_role("link", name="v1 live")).to_be_visible(timeout=LEARNED)
    ask(page, "What is snow?")
    expect(page.locator(".turn").last.locator(".version")).to_have_text("v1")
    see_what_was_learned(page)
    try_the_last_question_again(page)
    compare_blindly(page)
    look_at_my_agent(page)
    seconds = roll_back(page, stack)
    record_property("rollback_seconds", round(seconds, 3))
    assert seconds < AT_ONCE

    page.goto("/chat/")
    ask(page, "What is fog?")
    expect(page.locator(".turn").last.locator(".version")).to_have_text("base model")
    replay(page)
    try_half_of_the_chat(page)
    take_along_and_delete(page)


def watch_the_chart_move(page: Page, address: str) -> None:
    """Points that were not there when the page was opened, drawn into the very same document."""
    page.goto(address)
    page.evaluate("window.sameDocument = true")
    at_first = shown_points(page)
    heading = page.get_by_role("heading", name="Job 1")
    expect(heading).to_contain_text("went live", timeout=LEARNED)
    until(page, ALL_DRAWN)
    assert shown_points(page) > at_first
    expect(page.locator("#chart-loss .summary")).not_to_have_text("Nothing measured yet.")
    assert page.evaluate("window.sameDocument")
    look_at_the_charts(page)


def look_at_the_charts(page: Page) -> None:
    """By keyboard: smoothed, along replies, pinned; the address brings it all back."""
    page.get_by_label("Smoothing").press("ArrowRight")
    page.get_by_label("Across").select_option("samples")
    expect(page.locator("#chart-loss .scatterlayer .trace")).to_have_count(2)  # and the raw line
    page.locator("#chart-kl").get_by_role("button", name="Pin").press("Enter")
    expect(page).to_have_url(re.compile(r"\?smooth=0.05&x=samples&pin=kl$"))
    page.reload()
    expect(page.locator("#pinned #chart-kl .scatterlayer .trace")).to_have_count(2)
    expect(page.get_by_label("Across")).to_have_value("samples")
    with page.expect_download() as download:
        page.get_by_role("link", name="All values as CSV").click()
    assert download.value.path().read_text().startswith("job,step,attempt,")


def see_what_was_learned(page: Page) -> None:
    """The receipts of the chat that was rated name the version."""
    page.get_by_role("link", name=QUESTIONS[0]).click()
    expect(page.locator(".turn")).to_have_count(len(QUESTIONS))
    page.wait_for_load_state()
    for receipt in page.locator(".receipt").all():
        expect(receipt).to_have_text("learned in v1")


def try_the_last_question_again(page: Page) -> None:
    """What v1 says in the place of an old reply, beside it; being better it joins the chat."""
    page.get_by_role("button", name="Try your last question again with v1").click()
    verdicts = page.get_by_role("group", name="Is the new answer better?")
    expect(verdicts.get_by_role("button", name="Better")).to_be_enabled(timeout=REPLY)
    verdicts.get_by_role("button", name="Better").click()
    expect(page.locator(".comparison-result")).to_contain_text("goes on from the answer")
    page.keyboard.press("Enter")  # "Done" has the focus
    expect(page.locator(".comparison")).to_have_count(0)
    last = page.locator(".turn").last
    expect(last.locator(".version")).to_have_text("v1")
    expect(last.locator(".siblings")).to_contain_text("2/2")


def compare_blindly(page: Page) -> None:
    """No version is named until one is chosen, also after a reload."""
    page.locator(".turn").last.get_by_role("button", name="Bad reply").click()
    page.get_by_role("button", name="Compare another answer").click()
    verdicts = page.get_by_role("group", name="Which answer do you prefer?")
    expect(verdicts.get_by_role("button", name="A is better")).to_be_enabled(timeout=REPLY)
    page.reload()
    expect(verdicts.get_by_role("button", name="A is better")).to_be_enabled(timeout=REPLY)
    for chip in page.locator(".comparing .version").all():
        expect(chip).to_have_text("")
    page.get_by_role("button", name="About the same").press("Enter")
    expect(page.locator(".comparison-result")).to_contain_text("v1")
    expect(page.locator(".comparison-result")).to_contain_text("base model")
    page.keyboard.press("Enter")
    expect(page.locator(".turn").last.locator(".version")).to_have_text("v1")


def look_at_my_agent(page: Page) -> None:
    """What was asked for, that v1 has learned it, and a pause that is kept."""
    page.get_by_role("link", name="My agent").click()
    page.wait_for_url("**/agent/")
    note = page.locator(".notes li").filter(has_text="short sentences")
    expect(note).to_contain_text("learned in v1")
    expect(note).to_contain_text("said 8 times")
    page.get_by_role("button", name="Pause learning").click()
    expect(page.get_by_text("Learning is paused; 0 ratings wait.")).to_be_visible()
    page.get_by_role("button", name="Go on learning").click()
    expect(page.get_by_role("button", name="Pause learning")).to_be_visible()


def roll_back(page: Page, stack: Stack) -> float:
    """How long after the click the row had moved."""
    page.goto("/adapters/")
    button = page.get_by_role("button", name="Roll back")
    button.hover()
    clicked = time.time()
    button.click()
    expect(page.get_by_text("The base model answers now.")).to_be_visible()
    expect(page.get_by_text("rolled back", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Make live: version 1")).to_be_visible()
    moved = rows(stack, "event", kind="adapter_rolled_back")[-1]["at"]
    return datetime.fromisoformat(moved).replace(tzinfo=UTC).timestamp() - clicked


def replay(page: Page) -> None:
    """In the inspector v1 answers what the base model has answered, beside it; and a reply that it
    learned from shows what the note changed in each word."""
    page.goto(page.url.replace("/chat/", "/sessions/"))
    page.get_by_label("Answer again with").select_option("agent@v1")
    page.get_by_role("button", name="Ask", exact=True).press("Enter")
    beside = page.locator(".beside")
    expect(beside.get_by_role("heading", name="v1 asked again")).to_be_visible()
    expect(beside.locator(".words").nth(1)).not_to_be_empty(timeout=REPLY)
    page.get_by_role("link", name="Sessions", exact=True).click()
    page.wait_for_url("**/sessions/")
    page.get_by_role("link", name=QUESTIONS[0]).click()
    page.wait_for_url("**/sessions/sess-*/")  # with its scripts
    turn = page.get_by_role("article").first
    expect(turn.get_by_role("group", name="Samples")).to_contain_text("Job 1 → v1")
    turn.get_by_role("button", name="What your note changed").press("Enter")
    expect(
        turn.locator(".heat > span[class*=less], .heat > span[class*=more]").first
    ).to_be_visible()


def try_half_of_the_chat(page: Page) -> None:
    """Which replies are v1's the turns' ids decide; they can be rated and train nothing."""
    page.goto("/adapters/")
    page.get_by_label("Let v1 answer a part of your chat").select_option("50")
    page.get_by_role("button", name="Try it: version 1").click()
    expect(page.get_by_text("v1 answers 50% of your chat")).to_be_visible()
    page.goto("/chat/")
    turn = page.locator(".turn").last
    for _ in range(16):
        ask(page, "What is hail?", words=1)
        is_tried = percentile(turn.get_attribute("id") or "") < 50
        name = "v1, on trial" if is_tried else "base model"
        expect(turn.locator(".version")).to_have_text(name)
        if is_tried:
            break
    assert is_tried
    turn.get_by_role("button", name="Good reply").click()
    expect(turn.locator(".receipt")).to_contain_text("not used")
    page.goto("/adapters/")
    page.get_by_role("button", name="Stop the trial").click()
    expect(page.get_by_role("heading", name="On trial")).to_have_count(0)


def take_along_and_delete(page: Page) -> None:
    """What answers can be taken along, and has no way to be deleted; rolled back, its files go."""
    page.get_by_role("button", name="Make live: version 1").press("Enter")
    expect(page.get_by_text("Version 1 answers now.").first).to_be_visible()
    expect(page.get_by_role("button", name="Delete version 1")).to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download version 1").press("Enter")
    with zipfile.ZipFile(download.value.path()) as archive:
        assert archive.getinfo("adapter_model.safetensors").file_size > 100_000
    page.goto("/jobs/")
    machinery = page.get_by_role("region", name="The machinery")
    expect(machinery).to_contain_text("Model server: answers")
    page.goto("/adapters/")
    page.get_by_role("button", name="Roll back").press("Enter")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete version 1").press("Enter")
    expect(page.locator("#notices")).to_contain_text("Version 1 is deleted.")
    expect(page.get_by_role("link", name="Download version 1")).to_have_count(0)
    expect(page.get_by_role("region", name="v1", exact=True)).to_contain_text("erased")


def test_a_reload_in_mid_answer_loses_nothing(visit: Visit) -> None:
    page = visit("ben")
    answer_with_likely_words(page)
    turn = page.locator(".turn").last
    page.get_by_label("Your message").fill("Tell me a long story about the sea.")
    page.keyboard.press("Enter")
    before = read(page, 5)
    page.reload()
    expect(turn).to_have_attribute("data-state", "streaming")
    later = read(page, len(before.split()) + 8)
    assert plain(later).startswith(plain(before))

    page.keyboard.press("Escape")
    expect(turn).to_have_attribute("data-state", FINISHED)
    shown = turn.locator(".reply").inner_text()
    kept = page.request.get(f"/api/turns/{turn.get_attribute('id')}").json()
    assert plain(shown) == plain(kept["reply"])


def plain(text: str) -> str:
    """Its letters and digits: markup and layout aside, what is shown is what was written."""
    unnumbered = re.sub(r"(?m)^\s*\d+[.)]?(\s|$)", "", text)  # a list's numbers are layout
    return "".join(re.findall(r"[^\W_]", unnumbered))


def answer_with_likely_words(page: Page) -> None:
    """A small model's long texts then go on and on; else some end within a line."""
    page.goto("/settings/")
    form = page.get_by_role("region", name="How the chat asks")
    form.get_by_label("Temperature").fill("0.1")
    form.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved. Your next message is asked so.")).to_be_visible()
    page.goto("/chat/")


def test_escape_stops_a_reply_and_what_came_can_be_rated(visit: Visit) -> None:
    page = visit("cleo")
    answer_with_likely_words(page)
    ask(page, "Write a very long essay on moss.", words=4)
    turn = page.locator(".turn").last
    expect(turn).to_have_attribute("data-state", "stopped")
    assert turn.locator(".reply").inner_text().strip()

    up = turn.get_by_role("button", name="Good reply")
    up.click()
    expect(up).to_have_attribute("aria-pressed", "true")
    expect(turn.locator(".receipt")).to_have_text("counted (1 of 8)")
    up.click()
    expect(up).to_have_attribute("aria-pressed", "false")
    expect(turn.locator(".receipt")).to_have_text("taken back")


def test_markup_in_a_message_stays_text(visit: Visit) -> None:
    page = visit("dan")
    ask(page, XSS, words=3)
    assert page.locator(".said-text").inner_text() == XSS
    page.reload()
    assert page.locator(".said-text").inner_text() == XSS
    page.goto(page.url.replace("/chat/", "/sessions/"))
    expect(page.locator(".words").first).to_have_text(XSS)
    assert page.evaluate("window.hacked") is None


def test_others_chats_are_not_there(visit: Visit) -> None:
    page = visit("eve")
    ask(page, "My secret is a teapot.", words=1)
    address = page.url
    other = visit("fay")
    for url in (address, address.replace("/chat/", "/sessions/")):
        answer = other.request.get(url)
        assert answer.status == 404
        assert "teapot" not in answer.text()


def test_an_idle_page_keeps_its_socket(visit: Visit) -> None:
    page = visit("gus")
    opened: list[str] = []
    page.on("websocket", lambda socket: opened.append(socket.url))
    page.goto("/jobs/")
    page.wait_for_timeout(12_000)  # longer than any read of the channel layer blocks
    # The page before it may have opened its own only now.
    assert len([url for url in opened if url.endswith("/ws/nudges/")]) == 1
