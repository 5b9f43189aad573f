"""The session's page in a browser: a turn changes its type by a button, and its rating follows."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.browser, pytest.mark.timeout(900)]

ERRAND = "### Task:\nGenerate a concise, 3-5 word title for a chat about rain."


def test_a_background_call_becomes_conversation_by_keyboard(visit: Visit, stack: Stack) -> None:
    headers = {"Authorization": f"Bearer {stack.key('ivy')}", "X-Session-Id": "errands"}
    with httpx.Client(base_url=stack.url, headers=headers, timeout=180) as client:
        body = {"messages": [{"role": "user", "content": ERRAND}], "max_tokens": 12}
        turn = client.post("/v1/chat/completions", json=body).json()["id"]
        rating = {"value": -1, "reasons": ["too_long"]}
        receipt = client.post(f"/api/turns/{turn}/feedback", json=rating).json()
    assert receipt["drop_reason"] == "side_turn"

    page = visit("ivy", "/sessions/errands/")
    card = page.locator(f"#{turn}")
    expect(card).to_contain_text("The rule title fits: Open WebUI asks for a title.")
    card.get_by_text("How it was made").click()
    card.get_by_role("button", name="Count as conversation").focus()
    page.keyboard.press("Enter")
    back = card.get_by_role("button", name="Mark as background")
    expect(back).to_be_focused()
    expect(card).to_contain_text("counted (1 of 8)")
    expect(card.get_by_role("heading", name="Sampling")).to_be_visible()  # what was open stays so

    page.keyboard.press("Enter")
    expect(card).to_contain_text("You said so.")
    expect(card).to_contain_text("not used")
    page.reload()
    expect(card.get_by_role("button", name="Count as conversation")).to_be_visible()


def test_a_session_is_gone_through_and_rated_by_keys(visit: Visit, stack: Stack) -> None:
    headers = {"Authorization": f"Bearer {stack.key('iris')}", "X-Session-Id": "weather"}
    said: list[dict[str, str]] = []
    turns: list[str] = []
    with httpx.Client(base_url=stack.url, headers=headers, timeout=180) as client:
        for question in ("What is rain?", "And snow?", "And fog?"):
            said.append({"role": "user", "content": question})
            body = {"messages": said, "max_tokens": 8, "temperature": 0.7}
            answer = client.post("/v1/chat/completions", json=body).json()
            turns.append(answer["id"])
            said.append(answer["choices"][0]["message"])
        client.post(f"/api/turns/{turns[2]}/feedback", json={"value": 1})

    page = visit("iris", "/sessions/weather/")
    first, second, third = (page.locator(f"#{turn}") for turn in turns)
    page.keyboard.press("j")
    expect(first).to_be_focused()
    page.keyboard.press("j")
    expect(second).to_be_focused()
    page.keyboard.press("n")
    expect(third).to_be_focused()
    expect(page.get_by_role("link", name="Turn 3: liked")).to_have_attribute("aria-current", "true")
    page.keyboard.press("k")
    page.keyboard.press("e")
    expect(second.get_by_role("button", name="Good reply")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # a thumb down opens the strip
    comment = second.get_by_label("In your own words")
    comment.fill("Just say no jokes, please.")  # its letters are no commands
    expect(comment).to_be_focused()
    page.keyboard.press("Control+Enter")
    expect(second).to_contain_text("Just say no jokes, please.")
    expect(page.get_by_role("link", name="Turn 2: disliked")).to_be_attached()

    second.get_by_role("button", name="How likely each word was").click()
    expect(second.locator(".heat > span").first).to_have_attribute("title", re.compile("likely"))
    second.get_by_text("The prompt as the model saw it").click()
    expect(second.locator("pre.prompt b.control").first).to_have_text("<|im_start|>")
    expect(second.locator("pre.prompt")).to_contain_text("What is rain?")

    second.focus()
    page.keyboard.press("?")
    switch = page.get_by_label("Use these keys")
    expect(switch).to_be_visible()
    switch.uncheck()
    page.keyboard.press("Escape")
    second.focus()
    page.keyboard.press("j")
    expect(second).to_be_focused()


def test_a_view_of_the_sessions_is_kept_under_a_name(visit: Visit, stack: Stack) -> None:
    headers = {"Authorization": f"Bearer {stack.key('irma')}"}
    body = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2}
    asked = httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers, timeout=180)
    assert asked.status_code == 200, asked.text
    page = visit("irma", "/sessions/?source=api")
    expect(page.get_by_role("rowheader")).to_have_count(1)
    page.get_by_label("Keep these filters as").fill("Programs")
    page.get_by_role("button", name="Save the view").click()
    expect(page.get_by_role("link", name="Programs")).to_be_visible()
    page.goto("/sessions/")
    page.get_by_role("link", name="Programs").click()
    expect(page).to_have_url(re.compile(r"\?source=api$"))
    page.get_by_role("button", name="Delete the view Programs").click()
    expect(page.get_by_text("is deleted")).to_be_visible()
    expect(page.get_by_role("link", name="Programs")).to_have_count(0)
