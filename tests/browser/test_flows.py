"""What people do besides asking and rating, among the demo rows: copy code, keep a chat out of
training, talk without a trace, hear of a new version, leave a bad one, begin."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.conftest import Look
from tests.browser.demo import Demo
from tests.browser.until import NUDGE, until

pytestmark = pytest.mark.browser


def open_chat(look: Look, title: str) -> Page:
    page = look("ada", "/chat/")
    page.get_by_role("link", name=title).click()
    page.wait_for_url("**/chat/sess-*/")
    return page


def test_the_button_that_copies_code_lies_over_none_on_a_phone(
    browser: Browser, demo: Demo
) -> None:
    context = demo.context(
        browser, "ada", viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True
    )
    page = context.new_page()
    page.goto("/chat/")
    page.get_by_role("button", name="Your chats").tap()
    page.get_by_role("link", name="Sum of squares in Python").tap()
    block = page.locator(".reply .code").first
    button, code = block.locator(".copy-code").bounding_box(), block.locator("code").bounding_box()
    assert button
    assert code
    assert button["height"] >= 44  # for a finger
    assert button["y"] + button["height"] <= code["y"]
    context.close()


def test_code_is_copied_without_its_frame(look: Look) -> None:
    page = open_chat(look, "Sum of squares in Python")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code = page.locator(".code").first
    code.get_by_role("button", name="Copy").press("Enter")
    expect(page.locator("#notices")).to_contain_text("Copied.")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip()
    assert copied == code.locator("pre").text_content()


def test_a_chat_is_kept_out_of_training_and_let_in_again(look: Look) -> None:
    page = look("ada", "/chat/")
    row = page.locator("#sessions").get_by_role("listitem").filter(has_text="Tomatoes on a balcony")
    for act, words, marks in (
        ("Keep out of training", "This chat is kept out of training.", 1),
        ("Let it train", "This chat may train your agent.", 0),
    ):
        row.locator("summary").press("Enter")
        row.get_by_role("button", name=act).press("Enter")
        expect(page.locator("#notices")).to_contain_text(words)
        expect(row.get_by_role("img", name="kept out of training")).to_have_count(marks)


def test_a_line_appears_where_the_memory_begins_as_soon_as_a_reply_says_so(look: Look) -> None:
    page = open_chat(look, "Tomatoes on a balcony")
    line = page.locator(".memory")
    expect(line).to_be_hidden()
    names = [turn.get_attribute("id") for turn in page.locator(".turn").all()]
    assert len(names) > 1
    told: dict[str, str | None] = {}
    page.route("**/api/turns/*", lambda route: route.fulfill(json=route.fetch().json() | told))

    told["memory_begins"] = names[-1]
    page.evaluate(NUDGE, ["turn", names[-1]])
    expect(page.locator(f".memory + [id='{names[-1]}']")).to_be_visible()
    expect(line).to_be_visible()
    told["memory_begins"] = names[0]  # before which nothing was said
    page.evaluate(NUDGE, ["turn", names[-1]])
    expect(line).to_be_hidden()


def test_a_temporary_chat_is_answered_and_leaves_no_text(look: Look, demo: Demo) -> None:
    page = look("newcomer", "/chat/")
    page.get_by_role("link", name="Temporary").click()
    page.wait_for_url("**/chat/?temporary=1")  # with its scripts
    expect(page.get_by_role("note")).to_contain_text("its texts are gone after an hour")
    turn = page.locator(".turn").last
    with demo.writing(100):
        page.get_by_label("Your message").fill("whisper of a secret")
        page.keyboard.press("Enter")
        expect(turn).to_have_attribute("data-state", "complete")
    expect(turn.locator(".reply")).to_have_text("whisper of a secret")
    expect(turn.get_by_role("button", name="Good reply")).to_have_count(0)
    for address in ("/chat/", "/sessions/", "/api/sessions", "/parts/sessions/?q=whisper"):
        assert "secret" not in page.request.get(address).text(), address


def test_a_version_that_goes_live_says_so_on_this_page_or_the_next(look: Look) -> None:
    live = {"version": 0}

    def status(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), **live})

    page = look("ada", "/chat/")
    page.context.route("**/api/status", status)
    said = page.locator("#notices")
    page.evaluate("sessionStorage.clear()")
    page.reload()
    until(page, "sessionStorage.getItem('live-version') === '0'")
    live["version"] = 7
    page.evaluate("document.dispatchEvent(new CustomEvent('changed', {detail: {what: 'adapter'}}))")
    expect(said).to_contain_text("Version 7 of your agent answers from now on.")
    page.goto("about:blank")  # else this page may still ask, and say 8 itself
    live["version"] = 8
    page.goto("/agent/")
    expect(said).to_contain_text("Version 8 of your agent answers from now on.")
    page.reload()
    page.wait_for_load_state("networkidle")
    expect(said).not_to_contain_text("answers from now on")


def test_a_new_version_that_starts_badly_offers_the_way_back(look: Look) -> None:
    page = look("wren", "/chat/")
    expect(page.get_by_text("4 of the first replies of v2 were disliked")).to_be_visible()
    page.get_by_role("button", name="Roll back").press("Enter")
    # It leads to v1, which no server is there to wear: then v2 stays, and the page says why.
    expect(page.locator("#notices")).to_contain_text("The model server does not answer.")
    expect(page.get_by_role("link", name="v2 live")).to_be_visible()
    other = look("ada", "/chat/")
    expect(other.get_by_role("link", name="v3 live")).to_be_visible()
    expect(other.locator("#way-back")).to_have_count(0)


def test_the_first_look_teaches_the_loop_and_a_starter_begins_it(look: Look, demo: Demo) -> None:
    page = look("fledgling", "/chat/")
    steps = page.get_by_role("list", name="How it learns").get_by_role("listitem")
    expect(steps).to_have_text(
        [
            re.compile(words)
            for words in ("You vote", "one of 8 ratings", "A version is trained", "one click back")
        ]
    )
    expect(page.get_by_text("Your ratings train your own agent only.")).to_be_visible()
    expect(page.get_by_text("Your chats will be listed here.")).to_be_visible()
    turn = page.locator(".turn").last
    with demo.writing(100):
        page.get_by_role("button", name="Explain why the sky is blue.").press("Enter")
        expect(turn).to_have_attribute("data-state", "complete")
        expect(page.get_by_role("list", name="How it learns")).to_be_hidden()
        expect(page.get_by_label("Your message", exact=True)).to_be_focused()
        turn.get_by_role("button", name="Answer again").press("Enter")
        expect(turn.locator(".siblings")).to_contain_text("2/2")
        expect(turn).to_have_attribute("data-state", "complete")
        turn.get_by_role("button", name="Edit your message").press("Enter")
        page.get_by_label("Your message in other words").fill("Why is")  # keys as in the main box
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("it blue?")
        page.keyboard.press("Enter")
        expect(turn.locator(".siblings")).to_contain_text("3/3")
        expect(turn).to_have_attribute("data-state", "complete")
    assert turn.locator(".said-text").text_content() == "Why is\nit blue?"
    turn.get_by_role("link", name="Earlier answer").press("Enter")
    expect(turn.locator(".siblings")).to_contain_text("2/3")
    page.wait_for_load_state()
    turn.get_by_role("link", name="Later answer").press("Enter")
    expect(turn.locator(".siblings")).to_contain_text("3/3")


# The rows may be of yesterday by now, or have been written in the first minutes of a day.
USED_NOW = """
from datetime import timedelta
from django.utils import timezone
from clawweb.models import ChatSession
chats = ChatSession.objects.filter(user__username="ada", pinned=False, turns__turn_type="main")
for days, chat in enumerate(chats.distinct().order_by("-updated_at")[:2]):
    at = timezone.now() - timedelta(days=days)
    ChatSession.objects.filter(pk=chat.pk).update(updated_at=at)
"""


def test_chats_stand_under_their_days_and_what_is_pinned_first(look: Look, demo: Demo) -> None:
    demo.stack.manage("shell", "--command", USED_NOW)
    page = look("ada", "/chat/")
    days = page.locator("#sessions .day")
    expect(days.nth(0)).to_have_text("Pinned")
    expect(days.nth(1)).to_have_text("Today")
    expect(days.nth(2)).to_have_text("Yesterday")
    first = page.locator("#sessions .session-list").first
    expect(first.get_by_role("link")).to_have_text("Tomatoes on a balcony")


def answered(look: Look, demo: Demo, *texts: str) -> list[Locator]:
    """Replies to these words in a new chat, each liked and counted."""
    page = look("fledgling", "/chat/")
    turns = page.locator(".turn")
    with demo.writing(100):
        for number, text in enumerate(texts, start=1):
            page.get_by_label("Your message").fill(text)
            page.keyboard.press("Enter")
            expect(turns).to_have_count(number)
            expect(turns.last).to_have_attribute("data-state", "complete")
    for turn in turns.all():
        turn.get_by_role("button", name="Good reply").press("Enter")
        expect(turn.locator(".receipt")).to_contain_text("counted")
    return [page.locator(f"[id='{turn.get_attribute('id')}']") for turn in turns.all()]


def test_the_list_of_chats_goes_on_where_it_ends(look: Look) -> None:
    page = look("heron", "/chat/")
    chats = page.locator(".session-list a")
    expect(chats).to_have_count(60)
    page.get_by_role("button", name="Show older chats").press("Enter")
    expect(chats).to_have_count(71)
    expect(chats.nth(60)).to_be_focused()
    expect(page.get_by_role("button", name="Show older chats")).to_have_count(0)


def test_the_open_chat_says_that_it_is_deleted_and_comes_back(look: Look) -> None:
    page = look("heron", "/chat/")
    page.get_by_role("link", name="Chat 69", exact=True).click()
    row = page.locator(".session-list li").filter(has=page.locator("[aria-current]"))
    row.locator("summary").press("Enter")
    row.get_by_role("button", name="Delete").press("Enter")
    gone = page.get_by_role("note").filter(has_text="The chat is deleted.")
    expect(gone.get_by_role("button", name="Undo")).to_be_focused()
    expect(page.locator(".notice")).to_have_count(0)  # nothing lies over it
    expect(page.locator("#status")).to_have_text("The chat is deleted.")
    assert page.locator("#composer").evaluate("form => form.inert")  # nothing more goes into it
    gone.get_by_role("button", name="Undo").press("Enter")
    expect(gone).to_be_hidden()
    expect(row).to_contain_text("Chat 69")
    page.set_viewport_size({"width": 360, "height": 740})
    toggle = page.get_by_role("button", name="Your chats")
    toggle.press("Enter")
    row.locator("summary").press("Enter")
    row.get_by_role("button", name="Delete").press("Enter")
    expect(gone.get_by_role("button", name="Undo")).to_be_focused()
    expect(toggle).to_have_attribute("aria-expanded", "false")  # the list lies over none of it
    gone.get_by_role("button", name="Undo").press("Enter")
    expect(gone).to_be_hidden()


def test_escape_closes_the_list_of_chats_after_a_menu_in_it(look: Look) -> None:
    """On a narrow screen, and where a wide one is magnified."""
    page = look("heron", "/chat/")
    page.set_viewport_size({"width": 640, "height": 400})
    toggle = page.get_by_role("button", name="Your chats")
    toggle.press("Enter")
    more = page.locator(".row-menu summary").first
    more.press("Enter")
    more.press("Escape")
    expect(page.locator(".row-menu[open]")).to_have_count(0)
    expect(toggle).to_have_attribute("aria-expanded", "true")
    more.press("Escape")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    expect(toggle).to_be_focused()


def test_a_rating_taken_back_counts_for_none_of_the_others(look: Look, demo: Demo) -> None:
    first, last = answered(look, demo, "one", "two")
    receipt = last.locator(".receipt")
    have = int(receipt.inner_text().split("(")[1].split()[0])
    first.get_by_role("button", name="Good reply").press("Enter")
    expect(first.locator(".receipt")).to_have_text("taken back")
    expect(receipt).to_have_text(f"counted ({have - 1} of 8)")


@pytest.mark.parametrize("are_sent", [True, False])
def test_words_that_a_second_click_would_lose_come_back(
    look: Look, demo: Demo, are_sent: bool
) -> None:
    (turn,) = answered(look, demo, "rain")
    bad, undo = (turn.get_by_role("button", name=name) for name in ("Bad reply", "Undo"))
    bad.press("Enter")
    expect(undo).to_have_count(0)  # nothing had been said
    turn.get_by_text("Too long").click()
    turn.get_by_label("In your own words").fill("half of it")
    change = turn.get_by_role("button", name="Change what you said")
    if are_sent:
        turn.get_by_role("button", name="Done").press("Enter")
        expect(change).to_have_attribute("title", "Too long · half of it")
    bad.press("Enter")
    expect(turn.locator(".receipt")).to_have_text("taken back")
    undo.press("Enter")
    expect(bad).to_be_focused()
    expect(change).to_be_visible()
    expect(turn.locator(".receipt")).to_contain_text("counted")
    kept = turn.page.request.get(f"/api/turns/{turn.get_attribute('id')}").json()["feedback"]
    assert (kept["value"], kept["reasons"], kept["comment"]) == (-1, ["too_long"], "half of it")
    expect(undo).to_have_count(0)


def test_what_is_being_said_of_a_reply_is_saved_before_another_takes_its_place(
    look: Look, demo: Demo
) -> None:
    (turn,) = answered(look, demo, "hail")
    page, id_ = turn.page, turn.get_attribute("id")
    turn.get_by_role("button", name="Bad reply").press("Enter")
    turn.get_by_label("In your own words").fill("name the season")
    with demo.writing(100):
        turn.get_by_role("button", name="Answer again").press("Enter")
        expect(page.locator(".turn .siblings")).to_contain_text("2/2")
    kept = page.request.get(f"/api/turns/{id_}").json()["feedback"]
    assert (kept["value"], kept["comment"]) == (-1, "name the season")


def test_who_chooses_another_answer_says_nothing_bad_about_that_one(look: Look) -> None:
    """The strip below the first reply is about that reply; the other one takes its place."""
    page = open_chat(look, "Tomatoes on a balcony")
    turn, said = page.locator(".turn").last, list[tuple[str, Any]]()
    id_ = str(turn.get_attribute("id"))
    page.goto(f"{page.url}?turn={id_}")  # as the arrows between two answers lead there
    first = page.request.get(f"/api/turns/{id_}").json()
    pair = {"id": "cmp-1", "kind": "again", "verdict": None, "order": ["first", "second"]}
    pair |= {"first": first, "second": first | {"id": "turn-other", "feedback": None}}

    def rated(route: Route) -> None:
        said.append((route.request.url.split("/")[-2], route.request.post_data_json))
        route.fulfill(json={"state": "saved", "text": "Saved"})

    page.route("**/api/turns/*/feedback", rated)
    page.route("**/api/turns/*/compare", lambda route: route.fulfill(json=pair))
    page.route("**/api/comparisons/*", lambda r: r.fulfill(json=pair | {"verdict": "second"}))
    bad = turn.get_by_role("button", name="Bad reply")
    (turn.locator(".why") if bad.get_attribute("aria-pressed") == "true" else bad).click()
    turn.get_by_label("In your own words").fill("no tomatoes")
    page.evaluate("document.dispatchEvent(new CustomEvent('version', { detail: 99 }))")
    expect(page.locator("#offer")).to_contain_text("What it learned shows in a new chat first")
    page.get_by_role("button", name="Try your last question again with v99").click()
    page.get_by_role("button", name="Better", exact=True).click()
    expect(page.locator("#turn-other .comparison-result")).to_be_visible()
    expect(page.locator(".strip")).to_have_count(0)
    assert {name for name, _ in said} == {id_}
    assert said[-1][1]["comment"] == "no tomatoes"
    assert id_ not in page.url  # loaded again, it shows what was chosen


def test_where_no_other_answer_came_there_is_nothing_to_choose(look: Look) -> None:
    page = open_chat(look, "Tomatoes on a balcony")
    first = page.request.get(f"/api/turns/{page.locator('.turn').last.get_attribute('id')}").json()
    pair = {"id": "cmp-1", "kind": "again", "verdict": None, "order": ["first", "second"]}
    silent = {"id": "turn-other", "reply": "", "html": "", "state": "stopped", "error": ""}
    pair |= {"first": first, "second": first | silent}
    page.route("**/api/turns/*/compare", lambda route: route.fulfill(json=pair))
    page.route("**/api/comparisons/*", lambda route: route.fulfill(status=204))
    page.evaluate("document.dispatchEvent(new CustomEvent('version', { detail: 99 }))")
    page.get_by_role("button", name="Try your last question again with v99").click()
    shown = page.locator(".comparison")
    now = shown.get_by_role("group", name="Now")
    expect(now.get_by_text("No answer came.")).to_be_visible()
    expect(shown.get_by_role("button")).to_have_text(["Close"])
    shown.get_by_role("button", name="Close").click()
    expect(shown).to_have_count(0)


def test_a_message_too_long_for_the_model_offers_no_vain_second_try(look: Look) -> None:
    page = open_chat(look, "Tomatoes on a balcony")
    turn = page.locator(".turn").last
    name = turn.get_attribute("id")
    told = {"state": "failed", "reply": "", "html": "", "error": "It is too long."}
    page.route("**/api/turns/*", lambda route: route.fulfill(json=route.fetch().json() | told))
    page.evaluate(NUDGE, ["turn", name])
    again = [turn.get_by_role("button", name=words) for words in ("Try again", "Answer again")]
    expect(again[0]).to_be_visible()
    expect(turn.locator(".version")).to_be_empty()
    told["error_code"] = "context_length_exceeded"
    page.evaluate(NUDGE, ["turn", name])
    for button in again:
        expect(button).to_have_count(0)
    expect(turn.get_by_role("button", name="Edit your message")).to_be_visible()


def says_when_full(box: Locator, room: int) -> None:
    said = box.page.get_by_text(f"At most {room:,} characters fit in here").filter(visible=True)
    box.fill("x" * (room - 10))
    expect(said).to_have_count(0)
    box.page.keyboard.insert_text("y" * 20)
    expect(said).to_have_count(1)
    box.fill("x")
    expect(said).to_have_count(0)


def test_each_box_to_write_in_says_when_it_is_full(look: Look, demo: Demo) -> None:
    (turn,) = answered(look, demo, "snow")
    says_when_full(turn.page.get_by_label("Your message", exact=True), 100_000)
    turn.get_by_role("button", name="Edit your message").press("Enter")
    says_when_full(turn.get_by_label("Your message in other words"), 100_000)
    turn.get_by_role("button", name="Cancel").press("Enter")
    turn.get_by_role("button", name="Bad reply").press("Enter")
    says_when_full(turn.get_by_label("In your own words"), 4_000)
    turn.get_by_text("Write what you wanted instead").click()
    says_when_full(turn.get_by_label("What you wanted instead"), 100_000)
