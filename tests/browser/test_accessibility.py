"""Every page that people can see, by axe: WCAG 2.2 AA in both themes, at a desk (with all menus,
folds, dialogs and the feedback strip open) and on a phone, with data and without; the admin's
tables; and no page that has to be pushed sideways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern
from playwright.sync_api import Browser, BrowserContext, Page

from clawweb.urls import pages, steps
from tests.browser.demo import Demo
from tests.prepare import CLIENTS

pytestmark = pytest.mark.browser

AXE = CLIENTS / "node_modules" / "axe-core" / "axe.min.js"
DESK, PHONE, ZOOMED = 1280, 360, 320  # 320 is also 1280 at 400 %
SERIOUS = ("serious", "critical")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
FIND = """async ([rules, only]) => {
  const runOnly = only ? { type: "rule", values: only } : { type: "tag", values: rules };
  const found = await axe.run(document, { runOnly, resultTypes: ["violations"] });
  return found.violations.map(({ id, impact, help, nodes }) => ({
    id, impact, help, where: nodes.slice(0, 5).map((at) => `${at.target} ${at.failureSummary}`),
  }));
}"""
OVERFLOW = """() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.getBoundingClientRect().right > wide + 1)
    .slice(0, 8).map((each) => `${each.tagName}.${each.className} ${each.id}`);
}"""
# One menu of many: open together they would lie upon each other. What is fetched on opening is
# waited for.
OPEN = """async () => {
  const menus = new Set([...document.querySelectorAll(".row-menu")].slice(1));
  const asking = [...document.querySelectorAll("details[data-ask]:not([open])")];
  const coming = new Set(asking.map((each) => each.closest("[data-part]")));
  const allCame = new Promise((resolve) => {
    if (!coming.size) resolve();
    document.addEventListener("part", ({ detail }) => {
      coming.delete(detail);
      if (!coming.size) resolve();
    });
  });
  for (const each of document.querySelectorAll("details")) each.open = !menus.has(each);
  await allCame;
}"""
# Colours change over a moment, whose length no clock but the page's own knows.
WEAR = """async (theme) => {
  document.documentElement.dataset.theme = theme;
  const changes = document.getAnimations().filter((each) => each instanceof CSSTransition);
  await Promise.allSettled(changes.map(({ finished }) => finished));
}"""
DIALOGS = "() => [...document.querySelectorAll('dialog:not(:empty)')].map(({ id }) => id)"
ADMIN = [
    "/admin/",
    "/admin/clawweb/user/",
    "/admin/clawweb/user/1/change/",
    "/admin/clawweb/user/add/",
    "/admin/clawweb/feedbackreason/",
    "/admin/clawweb/trainingpolicy/add/",
    "/admin/clawweb/auditevent/",
]


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        pytest.skip("the npm package axe-core is not installed; `make test` does it")
    return AXE.read_text()


@pytest.fixture(scope="module")
def contexts(browser: Browser, demo: Demo) -> Iterator[dict[str, BrowserContext]]:
    opened = {name: demo.context(browser, name) for name in ("", *demo.cookies)}
    yield opened
    for each in opened.values():
        each.close()


def findings(page: Page, axe: str, *, only: list[str] | None = None) -> list[dict[str, Any]]:
    """What axe calls serious or critical on the page as it is."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    found = page.evaluate(FIND, [RULES, only])
    return [each for each in found if each["impact"] in SERIOUS]


def wear(page: Page, theme: str) -> None:
    page.evaluate(WEAR, theme)


def in_both_themes(page: Page, axe: str, where: Any) -> list[Any]:
    """A theme changes colours alone."""
    wear(page, "light")
    said = [(where, "light", each) for each in findings(page, axe)]
    wear(page, "dark")
    return said + [(where, "dark", e) for e in findings(page, axe, only=["color-contrast"])]


def open_all(page: Page) -> None:
    """Each thing that opens, but for dialogs: only one of those is open at a time."""
    why = page.locator("button.why:visible").first
    if why.count():
        why.click()
        page.locator("form.strip").first.wait_for()
    page.evaluate(OPEN)


def complaints(page: Page, axe: str) -> list[Any]:
    """In both themes, at each width and in each dialog."""
    page.set_viewport_size({"width": PHONE, "height": 800})
    said = in_both_themes(page, axe, PHONE)
    page.set_viewport_size({"width": DESK, "height": 800})
    open_all(page)
    said += in_both_themes(page, axe, DESK)
    for name in page.evaluate(DIALOGS):
        page.evaluate("id => document.getElementById(id).showModal()", name)
        said += in_both_themes(page, axe, name)
        page.evaluate("id => document.getElementById(id).close()", name)
    page.set_viewport_size({"width": ZOOMED, "height": 640})
    wide: list[str] = []
    for _ in range(100):  # charts follow a window's size a moment later
        wide = page.evaluate(OVERFLOW)
        if not wide:
            break
        page.wait_for_timeout(200)
    return said + [("wider than 320 px", each) for each in wide]


CASES = [
    *(("ada", pattern) for pattern in pages),
    *(("newcomer", pattern) for pattern in pages if not pattern.pattern.converters),
    *(("root", pattern) for pattern in pages if pattern.name in ("jobs", "job", "settings")),
    *(("", pattern) for pattern in pages if pattern.name in ("signin", "signin_link")),
    *(("ada", pattern) for pattern in steps if pattern.name == "account_reauthenticate"),
    *(("newcomer", pattern) for pattern in steps if pattern.name == "mfa_activate_totp"),
]


@pytest.mark.parametrize(
    ("username", "pattern"), CASES, ids=[f"{name or 'nobody'}-{each.name}" for name, each in CASES]
)
def test_a_page_is_for_everyone(
    username: str,
    pattern: URLPattern,
    contexts: dict[str, BrowserContext],
    demo: Demo,
    axe: str,
) -> None:
    path = demo.address(pattern)
    answer = contexts[username].request.get(path, max_redirects=0)
    if answer.status in (302, 405) or "html" not in answer.headers["content-type"]:
        pytest.skip("no page of its own: it leads on, takes a form, or answers a script")
    page = contexts[username].new_page()
    try:
        page.goto(path)
        said = complaints(page, axe)
    finally:
        page.close()
    assert not said, "\n".join([f"{path}, {username or 'signed out'}:", *map(str, said)])


@pytest.mark.parametrize("path", ADMIN)
def test_the_admins_tables_are_for_everyone(
    path: str, contexts: dict[str, BrowserContext], axe: str
) -> None:
    page = contexts["root"].new_page()
    try:
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200
        said: list[Any] = []
        for theme in ("light", "dark"):
            wear(page, theme)
            said += [(theme, each) for each in findings(page, axe)]
    finally:
        page.close()
    assert not said, "\n".join([f"{path}:", *map(str, said)])


def test_what_is_chosen_is_seen_where_the_system_chooses_the_colours(
    browser: Browser, demo: Demo
) -> None:
    """High contrast leaves nothing of our backgrounds: the thumb that was given, a ticked reason
    and a bar would look like all others."""
    context = demo.context(browser, "ada", forced_colors="active")
    page = context.new_page()
    page.goto(f"/chat/{demo.places['session_id']}/")
    turn = page.locator(".turn").filter(has=page.locator(".down[aria-pressed=true]")).first
    colour = "each => getComputedStyle(each).backgroundColor"
    assert turn.locator(".down").evaluate(colour) != turn.locator(".up").evaluate(colour)
    border = "each => getComputedStyle(each).borderTopWidth"
    assert page.locator("progress").first.evaluate(border) == "1px"
    turn.get_by_role("button", name="Change what you said").press("Enter")
    reasons = turn.locator("label.reason")
    reasons.first.get_by_role("checkbox").check()
    reasons.last.get_by_role("checkbox").uncheck()
    assert reasons.first.evaluate(colour) != reasons.last.evaluate(colour)
    context.close()


@pytest.mark.parametrize("locale", ["en-US", "de-DE"])
def test_all_pages_are_in_one_row_on_a_phone(browser: Browser, demo: Demo, locale: str) -> None:
    """Where the page one is on stands in bold, and widens it the most."""
    context = demo.context(browser, "ada", viewport={"width": PHONE, "height": 740}, locale=locale)
    page = context.new_page()
    page.goto("/agent/")
    rows = page.locator(".nav a").evaluate_all("all => all.map((each) => each.offsetTop)")
    assert (len(rows), len(set(rows))) == (5, 1)
    context.close()
