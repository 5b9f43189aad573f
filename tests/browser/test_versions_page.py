"""The page of versions by keyboard, without a model: what each is, why one was refused, its
ZIP, and what stands in the way of a deletion. `test_main_job.py` goes back and forth in earnest."""

from __future__ import annotations

import re
import zipfile

import pytest
from playwright.sync_api import Dialog, Locator, Page, expect

from tests.browser.conftest import Look

pytestmark = pytest.mark.browser


@pytest.fixture
def page(look: Look) -> Page:
    return look("wren", "/adapters/")


def card(page: Page, version: int) -> Locator:
    return page.get_by_role("region", name=f"v{version}", exact=True)


def test_each_version_says_what_it_is_and_how_it_was_tested(page: Page) -> None:
    expect(page.get_by_text("Version 2 answers now.")).to_be_visible()
    expect(card(page, 2).get_by_text("live", exact=True)).to_be_visible()
    expect(card(page, 1).get_by_text("previous", exact=True)).to_be_visible()
    drawn = page.get_by_role("region", name="How they grew").locator("svg")
    expect(drawn.locator("a.node")).to_have_count(3)
    expect(drawn.locator("path.grew")).to_have_count(3)
    expect(card(page, 2).locator("dl")).to_contain_text("Grew fromv1")
    expect(card(page, 2).locator("dl")).to_contain_text(re.compile(r"% liked \(\d+ to \d+%\)"))

    refused = card(page, 3)
    row = refused.get_by_role("row").filter(has_text="not passed")
    expect(row).to_contain_text("at most 20%")
    expect(row).to_contain_text("31% of its test replies do not come to an end")
    expect(refused.get_by_text("not measured", exact=True)).to_be_visible()
    expect(refused.get_by_role("button", name="Make live")).to_have_count(0)
    passed = card(page, 1).get_by_role("table", include_hidden=True)
    expect(passed).to_be_hidden()
    card(page, 1).get_by_text("How it was tested").press("Enter")
    expect(passed).to_be_visible()


def test_on_a_phone_the_tests_are_read_without_a_swipe(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    card(page, 1).get_by_text("How it was tested").press("Enter")
    table = card(page, 1).get_by_role("table")
    expect(table.get_by_text("of its test replies are empty")).to_be_visible()
    assert table.evaluate("it => it.scrollWidth <= it.parentElement.clientWidth")


def test_a_version_is_taken_along_as_a_zip(page: Page) -> None:
    link = card(page, 1).get_by_role("link", name="Download version 1")
    with page.expect_download() as download:
        link.press("Enter")
    assert download.value.suggested_filename.endswith(".zip")
    with zipfile.ZipFile(download.value.path()) as archive:
        names = set(archive.namelist())
        assert names == {"adapter_model.safetensors", "adapter_config.json", "README.md"}
        assert b"PeftModel.from_pretrained" in archive.read("README.md")


def test_nothing_is_deleted_unasked_or_while_it_may_be_in_use(page: Page) -> None:
    expect(card(page, 2).get_by_role("button", name="Delete")).to_have_count(0)  # it answers
    asked: list[str] = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        if len(asked) == 1:
            dialog.dismiss()
        else:
            dialog.accept()

    page.on("dialog", answer)
    delete = card(page, 1).get_by_role("button", name="Delete version 1")
    delete.press("Enter")
    assert asked == [
        "Delete version 1 for good? Its files are removed; what it learned stays with the versions "
        "trained from it."
    ]
    expect(page.locator("#notices")).to_be_empty()
    delete.press("Enter")
    expect(page.locator("#notices")).to_contain_text("The model server does not answer.")
    expect(delete).to_be_focused()
    page.reload()
    expect(card(page, 1).get_by_role("button", name="Make live: version 1")).to_be_visible()
