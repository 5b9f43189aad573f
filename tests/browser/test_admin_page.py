"""What an admin does, by keyboard: roles, reasons, limits of keys, the log of who did what, and
where each setting comes from."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Look

pytestmark = pytest.mark.browser


def test_a_role_is_given_holds_at_once_and_is_logged(look: Look) -> None:
    person = look("fledgling", "/review/")
    expect(person.get_by_role("heading", level=1)).to_have_text("You may not do this")
    page = look("root", "/admin/clawweb/user/")
    row = page.get_by_role("row").filter(has_text="fledgling")
    row.get_by_role("combobox").select_option("reviewer")
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.get_by_text("1 user was changed successfully.")).to_be_visible()
    person.reload()
    expect(person.get_by_role("heading", level=1)).to_have_text("Review")
    page.goto("/admin/clawweb/auditevent/")
    logged = page.get_by_role("row").filter(has_text="fledgling").first
    expect(logged).to_contain_text("root")
    logged.get_by_role("link").first.press("Enter")
    expect(page.get_by_text("reviewer").first).to_be_visible()


def test_a_reason_is_added_and_is_a_chip_in_the_chat(look: Look) -> None:
    page = look("root", "/admin/clawweb/feedbackreason/add/")
    page.get_by_label("Slug").fill("no_jokes")
    page.get_by_label("Label").fill("No jokes")
    page.get_by_label("Hint").fill("Do not joke.")
    page.get_by_role("button", name="Save", exact=True).press("Enter")
    expect(page.get_by_text("was added successfully")).to_be_visible()
    chat = look("wren", "/chat/")
    assert "No jokes" in chat.locator("#strip-template").evaluate("each => each.innerHTML")


def test_a_reason_that_is_retired_stays_with_those_who_ticked_it(look: Look) -> None:
    """Who looks at what they said about such a reply loses it only by unticking it."""
    chat = look("ada", "/chat/")
    session, name, slug = ticked(chat)
    page = look("root", "/admin/clawweb/feedbackreason/")
    row = page.get_by_role("row").filter(has=page.get_by_text(slug, exact=True))
    row.get_by_role("checkbox", name="Active").uncheck()
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.get_by_text("was changed successfully.")).to_be_visible()

    chat.goto(f"/chat/{session}/?turn={name}")
    turn = chat.locator(f"#{name}")
    turn.get_by_role("button", name="Change what you said").click()
    box = turn.locator(f".strip [value={slug}]")
    expect(box).to_be_visible()
    expect(box).to_be_checked()
    turn.get_by_role("button", name="Done").click()
    expect(turn.locator(".strip")).to_have_count(0)
    assert slug in chat.request.get(f"/api/turns/{name}").json()["feedback"]["reasons"]
    hidden = "([each, slug]) => each.content.querySelector(`[value=${slug}]`).parentElement.hidden"
    assert chat.evaluate(hidden, [chat.locator("#strip-template").element_handle(), slug])
    row.get_by_role("checkbox", name="Active").check()
    page.get_by_role("button", name="Save").press("Enter")


def ticked(page: Page) -> tuple[str, str, str]:
    """A chat, one of its turns, and a reason that was ticked there."""
    for session in page.request.get("/api/sessions").json()["items"]:
        for turn in page.request.get(f"/api/sessions/{session['id']}").json()["turns"]:
            if turn["turn_type"] == "main" and (turn["feedback"] or {}).get("reasons"):
                return session["id"], turn["id"], turn["feedback"]["reasons"][0]
    raise AssertionError("nobody has ticked a reason")


def test_a_key_may_ask_for_less_and_its_owner_sees_it(look: Look) -> None:
    page = look("root", "/admin/clawweb/apikey/")
    page.get_by_role("link", name="notebook").press("Enter")
    page.get_by_label("Requests per minute").fill("5")
    page.get_by_role("button", name="Save", exact=True).press("Enter")
    expect(page.get_by_text("was changed successfully")).to_be_visible()
    owner = look("ada", "/settings/")
    keys = owner.get_by_role("group", name="API keys")
    expect(keys.get_by_role("row").filter(has_text="notebook")).to_contain_text("5 requests")


def test_every_setting_says_where_it_comes_from(look: Look) -> None:
    page = look("root", "/settings/")
    page.get_by_role("link", name="Every setting, and where it comes from").press("Enter")
    row = page.get_by_role("row").filter(has_text="CLAWWEB_VLLM_URL")
    expect(row).to_contain_text("http://127.0.0.1:9/")
    expect(row).to_contain_text("environment")
    batch = page.get_by_role("row").filter(has=page.get_by_text("CLAWWEB_BATCH", exact=True))
    expect(batch).to_contain_text("default")
    for name in ("CLAWWEB_KEEP_CHATS_DAYS", "CLAWWEB_KEEP_AUDIT_DAYS", "CLAWWEB_TRAIN_SECONDS"):
        expect(page.get_by_text(name, exact=True)).to_be_visible()
