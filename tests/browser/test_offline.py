"""The chat without a connection: it says so and when it tries again, keeps what is written, sends
it once afterwards; what goes wrong on the server comes with the id that its log has. And what the
page weighs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Response, Route, WebSocketRoute, expect

from tests.browser.demo import PATIENCE, Demo
from tests.browser.until import NUDGE, caught, connected
from tests.loop.person import wait_for

pytestmark = pytest.mark.browser

BUDGET = 120_000  # bytes on the wire for the first load


@pytest.fixture
def page(browser: Browser, demo: Demo) -> Iterator[Page]:
    context = demo.context(browser, "newcomer", viewport={"width": 1280, "height": 800})
    yield context.new_page()
    context.close()


def box(page: Page):  # type: ignore[no-untyped-def]
    return page.get_by_label("Your message")


def test_a_message_written_offline_is_sent_once_later(page: Page, demo: Demo) -> None:
    page.goto("/chat/")
    connected(page)
    with demo.writing(200):
        page.context.set_offline(True)
        expect(page.locator("#connection")).to_have_text(
            re.compile(r"You are offline\. .* later\. (Next try in \d+ second|Trying)")
        )
        box(page).fill("Are you there?")
        page.keyboard.press("Enter")
        turn = page.locator(".turn")
        expect(turn.locator(".unsent")).to_contain_text("Not sent yet")
        box(page).fill("and another thought")  # the box stays of use
        page.context.set_offline(False)
        expect(turn).to_have_attribute("data-state", "complete")
        expect(turn.locator(".unsent")).to_be_hidden()
        expect(page.locator("#connection")).to_be_hidden()
    assert turn.count() == 1
    expect(box(page)).to_have_value("and another thought")
    page.reload()
    expect(box(page)).to_have_value("and another thought")  # of this chat, and of no new one
    page.goto("/chat/")
    connected(page)
    expect(box(page)).to_have_value("")


def test_a_message_that_waits_for_the_connection_is_taken_back(page: Page, demo: Demo) -> None:
    page.goto("/chat/")
    connected(page)
    page.context.set_offline(True)
    box(page).fill("On second thought")
    page.keyboard.press("Enter")
    expect(page.locator(".turn .unsent")).to_contain_text("Not sent yet")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.locator("#welcome")).to_be_visible()
    expect(box(page)).to_have_value("On second thought")


def test_what_was_written_elsewhere_is_there_after_a_break(
    browser: Browser, page: Page, demo: Demo
) -> None:
    """Else the next message would begin a branch of its own, without what was said elsewhere."""
    context = demo.context(browser, "newcomer", viewport={"width": 1280, "height": 800})
    elsewhere = context.new_page()
    page.goto("/chat/")
    connected(page)
    with demo.writing(200):
        box(page).fill("Said here")
        page.keyboard.press("Enter")
        expect(page.locator(".turn")).to_have_attribute("data-state", "complete")
        page.context.set_offline(True)
        expect(page.locator("#connection")).to_contain_text("You are offline.")
        elsewhere.goto(page.url)
        connected(elsewhere)
        box(elsewhere).fill("Said there")
        elsewhere.keyboard.press("Enter")
        expect(elsewhere.locator(".turn").nth(1)).to_have_attribute("data-state", "complete")
        page.context.set_offline(False)
        expect(page.locator(".turn .said-text")).to_have_text(["Said here", "Said there"])
    context.close()


def test_without_its_script_the_chat_says_so_and_keeps_the_words(
    browser: Browser, demo: Demo
) -> None:
    context = demo.context(browser, "newcomer", java_script_enabled=False)
    page = context.new_page()
    page.goto("/chat/")
    assert '<p class="temporary">Chatting needs JavaScript.' in page.content()
    box(page).fill("a private matter")
    page.get_by_role("button", name="Send").click()
    expect(box(page)).to_have_value("a private matter")
    assert page.url.endswith("/chat/")
    context.close()


HeldVotes = tuple[Locator, list[Route]]


@pytest.fixture
def held_votes(browser: Browser, demo: Demo) -> Iterator[HeldVotes]:
    """A reply that can be rated, and what the page sent about it, which nobody answers yet."""
    context = demo.context(browser, "ada", viewport={"width": 1280, "height": 800})
    page, held = context.new_page(), list[Route]()
    page.route("**/api/turns/*/feedback", lambda route: held.append(route))
    page.goto(f"/chat/{demo.places['session_id']}/")
    yield page.locator(".turn").last, held
    context.close()


def test_votes_reach_the_server_one_after_the_other(held_votes: HeldVotes) -> None:
    """Else a slow line may change their order, and the server keep what the page does not show."""
    turn, held = held_votes
    page = turn.page
    turn.get_by_role("button", name="Bad reply").click()
    turn.get_by_role("button", name="Good reply").click()
    caught(page, held)
    page.wait_for_timeout(500)
    assert len(held) == 1
    for number in (1, 2):
        caught(page, held, number)
        held[-1].fulfill(json={"state": "saved", "text": f"Saved {number}"})
        expect(turn.locator(".receipt")).to_contain_text(f"Saved {number}")
    assert [route.request.post_data_json["value"] for route in held][1:] == [1]


def not_disliked_yet(turn: Locator, held: list[Route]) -> Locator:
    """Its thumb down; a test before this one may have left it pressed."""
    bad = turn.get_by_role("button", name="Bad reply")
    if bad.get_attribute("aria-pressed") == "true":
        bad.click()
        caught(turn.page, held)
        held.pop().fulfill(json={"state": "withdrawn", "text": "Taken back"})
    return bad


def test_who_types_on_is_not_led_back_to_the_thumb(held_votes: HeldVotes) -> None:
    """On a slow line "Done" is answered late; the focus on the thumb, Enter would take it back."""
    turn, held = held_votes
    page = turn.page
    not_disliked_yet(turn, held).click()
    caught(page, held)
    held[0].fulfill(json={"state": "saved", "text": "Saved"})
    turn.get_by_role("button", name="Done").click()
    box(page).fill("and another thing")
    caught(page, held, 2)
    held[1].fulfill(json={"state": "counted", "text": "Counted"})
    expect(turn.locator(".receipt")).to_contain_text("Counted")
    expect(box(page)).to_be_focused()
    assert len(held) == 2


def test_what_is_said_of_a_reply_stays_where_its_vote_does_not_arrive(
    held_votes: HeldVotes,
) -> None:
    turn, held = held_votes
    page = turn.page
    bad = not_disliked_yet(turn, held)
    bad.click()
    words = turn.get_by_label("In your own words")
    words.fill("begin with the answer")
    caught(page, held)
    held.pop().abort()
    expect(turn.get_by_role("alert").last).to_contain_text("What you wrote is still here.")
    expect(turn.get_by_text("Saved.")).to_be_hidden()
    expect(bad).to_have_attribute("aria-pressed", "false")
    expect(words).to_be_focused()
    bad.click()  # once more, and on a bad line again
    caught(page, held)
    held.pop().abort()
    expect(words).to_have_value("begin with the answer")
    turn.get_by_role("button", name="Done").click()
    caught(page, held)
    assert held[0].request.post_data_json["value"] == -1
    assert held[0].request.post_data_json["comment"] == "begin with the answer"
    held[0].fulfill(json={"state": "counted", "text": "Counted"})
    expect(turn.locator(".receipt")).to_contain_text("Counted")


def test_a_late_answer_about_a_reply_does_not_take_its_vote_back(held_votes: HeldVotes) -> None:
    """What was asked before the vote says what was before it; it is asked again."""
    turn, held = held_votes
    page, looks = turn.page, list[Route]()
    id_, good = turn.get_attribute("id"), turn.get_by_role("button", name="Good reply")
    before = good.get_attribute("aria-pressed")
    page.route(f"**/api/turns/{id_}", lambda route: looks.append(route))
    page.evaluate(NUDGE, ["receipt", id_])
    caught(page, looks)
    good.click()
    looks[0].continue_()
    caught(page, held)
    held[0].fulfill(json={"state": "saved", "text": "Saved"})
    caught(page, looks, 2)
    expect(good).not_to_have_attribute("aria-pressed", before or "")


def open_through(page: Page, between: Callable[[WebSocketRoute], None]) -> None:
    """A new chat, whose socket goes through `between`."""
    page.route_web_socket("**/ws/chat/", between)
    page.goto("/chat/")
    connected(page)


def test_a_message_is_stopped_before_its_reply_has_a_name(page: Page, demo: Demo) -> None:
    held: list[tuple[WebSocketRoute, str | bytes]] = []

    def between(browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()
        browser.on_message(lambda text: server.send(text))
        server.on_message(
            lambda text: (
                held.append((browser, text))
                if json.loads(text)["type"] == "turn"
                else browser.send(text)
            )
        )

    open_through(page, between)
    box(page).fill("Never mind.")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_have_text("Stopping.")
    caught(page, held)
    for browser, text in held:
        browser.send(text)
    expect(page.locator(".turn").last).to_have_attribute("data-state", "stopped")


def test_an_edit_that_a_dying_connection_swallowed_is_sent_again(page: Page, demo: Demo) -> None:
    swallowed: list[str | bytes] = []

    def between(browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()

        def pass_on(text: str | bytes) -> None:
            if json.loads(text).get("edits") and not swallowed:
                swallowed.append(text)
                browser.close(code=1012)
            else:
                server.send(text)

        browser.on_message(pass_on)

    open_through(page, between)
    with demo.writing(200):
        box(page).fill("What is rain?")
        page.keyboard.press("Enter")
        turn = page.locator(".turn")
        expect(turn).to_have_attribute("data-state", "complete")
        turn.get_by_role("button", name="Edit your message").click()
        page.get_by_label("Your message in other words").fill("What is snow?")
        page.get_by_role("button", name="Send").locator("visible=true").first.click()
        expect(turn.locator(".said-text").last).to_have_text("What is snow?")
        expect(turn.locator(".siblings")).to_contain_text("2/2")
        expect(turn).to_have_attribute("data-state", "complete")
    assert swallowed


def test_that_a_reply_has_ended_is_told_after_a_break(page: Page, demo: Demo) -> None:
    """The socket tells it to who is there; who was not would wait for it."""
    sockets: list[WebSocketRoute] = []
    refused = [False]

    def listen(socket: WebSocketRoute) -> None:
        if refused[0]:
            socket.close()
            return
        sockets.append(socket)
        socket.connect_to_server()

    open_through(page, listen)
    with demo.writing(8):
        box(page).fill("one two three four five six")
        page.keyboard.press("Enter")
        turn = page.locator(".turn").last
        expect(turn.locator(".reply")).to_contain_text("one")
        refused[0] = True
        sockets[-1].close()
        address = f"/api/turns/{turn.get_attribute('id')}"

        def is_written() -> bool:
            return bool(page.request.get(address).json()["state"] == "complete")

        wait_for("the reply", is_written, timeout=PATIENCE / 1000)
    refused[0] = False
    expect(turn).to_have_attribute("data-state", "complete")
    expect(page.locator("#status")).to_contain_text("Answer ready")


def test_nothing_comes_between_while_a_reply_is_asked_for_again(page: Page, demo: Demo) -> None:
    """On a slow line: a second click asked twice, and a message was sent and not shown."""
    held: list[tuple[WebSocketRoute, str | bytes]] = []
    is_slow = [False]

    def between(browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()
        server.on_message(
            lambda text: held.append((browser, text)) if is_slow[0] else browser.send(text)
        )

    open_through(page, between)
    with demo.writing(200):
        box(page).fill("What is hail?")
        page.keyboard.press("Enter")
        turn = page.locator(".turn").last
        expect(turn).to_have_attribute("data-state", "complete")
        is_slow[0] = True
        turn.get_by_role("button", name="Answer again").dblclick()
        box(page).fill("And sleet?")
        page.keyboard.press("Enter")
        expect(page.locator("#notices")).to_contain_text("Wait for the reply, or stop it first.")
        caught(page, held)
        is_slow[0] = False
        for browser, text in held:
            browser.send(text)
        expect(turn.locator(".siblings")).to_contain_text("2/2")
        expect(turn).to_have_attribute("data-state", "complete")
        expect(box(page)).to_have_value("And sleet?")
        box(page).press("Enter")
        expect(page.locator(".turn .said-text")).to_have_text(["What is hail?", "And sleet?"])


def test_drafts_are_kept_by_chat_until_its_user_signs_out(browser: Browser, demo: Demo) -> None:
    # With a session of its own: signing out ends it.
    context = demo.context(browser, "guest", viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto("/chat/")
    box(page).fill("half a thought")
    page.goto("/chat/?temporary=1")
    connected(page)
    expect(box(page)).to_have_value("")  # nor does what begins there go on in a chat that is kept
    page.goto("/chat/")
    expect(box(page)).to_have_value("half a thought")
    page.get_by_label("Menu of guest").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/signin/**")
    assert page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('draft'))") == []
    context.close()


def test_an_error_of_the_server_comes_with_its_id(page: Page, demo: Demo) -> None:
    def broken(route: Route) -> None:
        route.fulfill(status=500, body="", headers={"X-Request-Id": "0123456789ab"})

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.route("**/api/jobs", broken)
    page.goto("/chat/")
    page.get_by_role("button", name="Train now").click()
    expect(page.get_by_text("The server answered with error 500.")).to_be_visible()
    page.get_by_role("button", name="Copy the error's id").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "0123456789ab"


def test_the_first_load_of_the_chat_is_small(browser: Browser, demo: Demo) -> None:
    context = demo.context(browser, "ada", viewport={"width": 1280, "height": 800})
    page = context.new_page()
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(f"/chat/{demo.places['session_id']}/", wait_until="networkidle")
    sizes = {answer.url: sum(sizes_of(answer)) for answer in answers}
    scripts = [a for a in answers if a.url.endswith((".js", ".css"))]
    packed = [a.header_value("content-encoding") == "gzip" for a in scripts]
    context.close()
    assert sum(sizes.values()) < BUDGET, sorted(sizes.items(), key=lambda pair: -pair[1])
    assert len(packed) > 5
    assert all(packed)


def sizes_of(answer: Response) -> tuple[int, int]:
    """Bytes on the wire: headers and the body as it came, packed or not."""
    sizes = answer.request.sizes()
    return sizes["responseHeadersSize"], sizes["responseBodySize"]
