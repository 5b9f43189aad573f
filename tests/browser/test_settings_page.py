"""What people choose for themselves, by keyboard: how the chat asks, the theme, the language. The
next reply, and the next page, are so."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Look
from tests.browser.demo import Demo

pytestmark = pytest.mark.browser

BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def test_the_chat_asks_as_its_user_has_said(look: Look, demo: Demo) -> None:
    page = look("fledgling", "/settings/")
    form = page.get_by_role("region", name="How the chat asks")
    form.get_by_label("Temperature").fill("2")
    form.get_by_role("button", name="Save").press("Enter")
    expect(form.get_by_label("Temperature")).to_have_attribute("aria-invalid", "true")
    expect(form.get_by_label("Temperature")).to_be_focused()
    expect(form.get_by_text("less than or equal to 1.5")).to_be_in_viewport()
    form.get_by_label("Temperature").fill("0.3")
    form.get_by_label("Standing instructions").fill("I am a nurse.")
    form.get_by_role("radio", name="Short").press("Space")
    form.get_by_role("button", name="Save").press("Enter")
    expect(page.get_by_text("Saved. Your next message is asked so.")).to_be_visible()
    expect(form.get_by_label("Standing instructions")).to_have_value("I am a nurse.")

    page.goto("/chat/")
    turn = page.locator(".turn").last
    with demo.writing(100):
        page.get_by_label("Your message").fill("What is a fever?")
        page.keyboard.press("Enter")
        expect(turn).to_have_attribute("data-state", "complete")
    page.goto(page.url.replace("/chat/", "/sessions/"))
    page.get_by_text("How it was made").press("Enter")
    expect(page.get_by_role("heading", name="Your standing instructions then")).to_be_visible()
    expect(page.get_by_text("I am a nurse.")).to_be_visible()
    expect(page.get_by_text("temperature=0.3")).to_be_visible()
    expect(page.get_by_text("max_tokens=")).to_be_visible()


def test_a_new_key_is_what_one_sees_then(look: Look) -> None:
    page = look("fledgling", "/settings/")
    page.get_by_text("Make a key").click()
    page.get_by_role("button", name="Make the key").press("Enter")
    name = page.get_by_label("What is it for?")
    expect(name).to_be_focused()
    expect(name).to_be_in_viewport()
    name.fill("a notebook")
    page.get_by_role("button", name="Make the key").press("Enter")
    expect(page.locator("[data-read-first]")).to_be_focused()
    expect(page.locator("#new-key")).to_be_in_viewport()
    page.goto(page.url)  # of the form, which leads to the page with it
    expect(page).to_have_url(re.compile("/settings/$"))


def test_what_is_wrong_with_a_new_person_is_what_an_admin_sees_then(look: Look) -> None:
    page = look("root", "/settings/")
    form = page.get_by_role("region", name="Add a person")
    form.get_by_label("Username").fill("bob smith")
    form.get_by_label("Password").fill("correct horse battery")
    form.get_by_role("button", name="Add").press("Enter")
    expect(form.get_by_role("alert")).to_be_focused()
    expect(form.get_by_role("alert")).to_be_in_viewport()


def test_the_theme_holds_on_the_next_page_and_follows_the_system_else(look: Look) -> None:
    page = look("fledgling", "/settings/")
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(BACKGROUND)
    theme(page, "Light")
    light = page.evaluate(BACKGROUND)
    assert light != dark
    page.goto("/agent/")
    assert page.evaluate(BACKGROUND) == light
    theme(page, "As the system")
    assert page.evaluate(BACKGROUND) == dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate(BACKGROUND) == light
    theme(page, "Dark")
    page.reload()
    assert page.evaluate(BACKGROUND) == dark


def in_german(page: Page, path: str, width: int = 390) -> Page:
    origin = page.evaluate("location.origin")
    page.context.add_cookies([{"name": "django_language", "value": "de", "url": origin}])
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(path)
    return page


def test_german_has_room_on_a_phone(look: Look) -> None:
    page = in_german(look("root", "/chat/"), "/chat/")
    places = [link.bounding_box() for link in page.locator(".nav a").all()]
    assert len({place["y"] for place in places if place}) == 1
    page.locator("#side-toggle").click()
    toggle = page.locator("#side-toggle").bounding_box()
    new_chat = page.get_by_role("link", name="Neuer Chat").bounding_box()
    assert toggle
    assert new_chat
    assert toggle["y"] + toggle["height"] <= new_chat["y"]


def test_german_has_room_on_a_desk(look: Look) -> None:
    page = in_german(look("root", "/chat/"), "/chat/", 1280)
    new_chat = page.get_by_role("link", name="Neuer Chat").bounding_box()
    assert new_chat
    assert new_chat["height"] <= 40  # one line
    page.goto("/jobs/?state=training")  # what other tests have left behind may be wider
    table = page.get_by_role("group", name="Trainingsaufträge")
    expect(table).to_contain_text("Schritt 14 von 40")
    assert table.evaluate("box => box.scrollWidth <= box.clientWidth")
    page = in_german(look("ada", "/chat/"), "/adapters/", 1280)
    base = page.locator(".lineage .is-base text")
    drawing, word = page.locator(".lineage svg").bounding_box(), base.bounding_box()
    circle = page.locator(".lineage .is-base circle").bounding_box()
    assert drawing
    assert word
    assert circle
    assert drawing["x"] <= word["x"]
    assert circle["y"] + circle["height"] <= word["y"]


def theme(page: Page, name: str) -> None:
    page.get_by_label("Menu of fledgling").press("Enter")
    page.get_by_label("Theme").select_option(name)
    page.keyboard.press("Escape")


def test_the_other_language_is_one_choice_away(look: Look) -> None:
    page = look("fledgling", "/agent/")
    page.get_by_label("Menu of fledgling").press("Enter")
    page.get_by_role("button", name="Deutsch").press("Enter")
    expect(page.locator("html")).to_have_attribute("lang", "de")
    expect(page.get_by_role("heading", name="Was mein Agent gelernt hat")).to_be_visible()
    page.get_by_label("Menü von fledgling").press("Enter")
    page.get_by_role("button", name="English").press("Enter")
    expect(page.locator("html")).to_have_attribute("lang", "en")
