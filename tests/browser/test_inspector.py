"""The session's page in a browser: a turn changes its type by a button, and its rating follows."""

from __future__ import annotations

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
