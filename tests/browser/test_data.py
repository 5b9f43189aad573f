"""One's own data in a browser, on the real stack: taken out with progress, fetched, brought in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import LONG, Visit
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.browser, pytest.mark.timeout(900)]

# Turns of one conversation: each one's prompt holds all before it, so that even a fast machine
# writes long enough for its progress to be seen.
MANY = 1000
XSS = '<img src=x onerror="window.hacked=1">'

# What the page says on the way of an export, without being loaded again.
NOTE_PROGRESS = """(words) => {
  window.progress = [];
  const look = () => {
    const row = document.querySelector("[data-transfer]");
    progress.push(...(row?.textContent.match(new RegExp(words, "g")) ?? []));
  };
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true });
}"""


def conversations(path: Path, count: int) -> Path:
    """A file of ours with so many turns, as another installation would have made it."""
    lines: list[dict[str, Any]] = [
        {"type": "session", "version": 1, "id": "far-away", "title": f"From afar {XSS}"}
    ]
    for number in range(count):
        lines.append(
            {
                "type": "turn",
                "version": 1,
                "id": f"t{number}",
                "session": "far-away",
                "parent": f"t{number - 1}" if number else None,
                "input": [{"role": "user", "content": f"Question {number} {XSS}"}],
                "reply": f"Answer {number}" + " and more of it" * 12,
                "feedback": [{"value": 1 if number % 2 else -1}],
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_data_is_taken_out_and_brought_in(visit: Visit, stack: Stack, tmp_path: Path) -> None:
    many = conversations(tmp_path / "many.jsonl", MANY)
    stack.key("ann")
    stack.manage("importdata", "ann", str(many), timeout=600)
    page = visit("ann", "/sessions/")
    page.get_by_role("link", name="Export or import").click()
    page.wait_for_url("**/data/")
    page.evaluate("window.sameDocument = true")
    page.evaluate(NOTE_PROGRESS, rf"\d+ of {MANY}")
    row = page.locator("[data-transfer]").first
    for number in range(1, 6):  # one may end before it is looked at
        export(page, "Rated replies")
        chips = page.locator("[data-transfer] .chip")
        expect(chips).to_have_text(["done"] * number, timeout=2 * LONG)
        if page.evaluate("progress"):
            break
    else:
        pytest.fail("no progress was shown")
    expect(row).to_contain_text(f"Lines: {MANY}.")
    assert page.evaluate("window.sameDocument")
    with page.expect_download() as download:
        row.get_by_role("link", name="Download").click()
    path = tmp_path / "out.jsonl"
    download.value.save_as(path)
    assert download.value.suggested_filename.startswith("clawweb-kto-")
    assert len(path.read_text(encoding="utf-8").splitlines()) == MANY

    other = visit("bert", "/data/")
    address = row.get_by_role("link", name="Download").get_attribute("href") or ""
    assert other.request.get(address).status == 404
    bring_in(other, conversations(tmp_path / "few.jsonl", 3))


def export(page: Page, shape: str) -> None:
    select = page.get_by_label("What should be in it?")
    label = select.locator("option", has_text=shape).inner_text()
    select.select_option(label=label)
    page.get_by_role("button", name="Export", exact=True).click()
    expect(page.get_by_text("The export has started.")).to_be_visible()


def bring_in(page: Page, path: Path) -> None:
    with path.open("a") as file:
        file.write("<script>window.hacked=1</script>\n")
    page.get_by_label("File").set_input_files(path)
    page.get_by_role("button", name="Bring in").click()
    row = page.locator("[data-transfer]").first
    ended = "New sessions: 1, turns: 3, ratings: 3. Lines left out: 1."
    expect(row).to_contain_text(ended, timeout=LONG)
    row.get_by_text("What was left out").click()
    expect(row).to_contain_text("line 5: it is not JSON")
    page.get_by_role("link", name="Sessions").click()
    page.get_by_role("link", name=re.compile("From afar")).click()
    expect(page.get_by_text("Answer 2")).to_be_visible()
    expect(page.get_by_text("not used").first).to_be_visible()
    assert page.evaluate("window.hacked") is None
