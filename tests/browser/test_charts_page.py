"""A job's charts in a browser, without a model: outliers left out and counted, one chart as large
as the window, lines where the version went live. The address keeps it all."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Look
from tests.browser.demo import Demo

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180, method="signal")]

HIGHEST = """([key, low, high]) => {
  const ticks = [...document.querySelectorAll(`#chart-${key} .ytick text`)]
    .map((each) => Number(each.textContent.replace("−", "-")));
  return ticks.length > 0 && Math.max(...ticks) >= low && Math.max(...ticks) < high;
}"""


@pytest.fixture
def page(look: Look, demo: Demo) -> Page:
    return look("ada", f"/jobs/{demo.places['job_id']}/")


def test_outliers_are_left_out_and_counted(page: Page) -> None:
    figure = page.locator("#chart-grad_norm")
    figure.scroll_into_view_if_needed()
    page.wait_for_function(HIGHEST, arg=["grad_norm", 5, 100])  # the spike sets the scale
    page.get_by_label("Leave outliers out").press("Space")
    figure.scroll_into_view_if_needed()  # what is not seen is not drawn
    expect(figure.locator(".clipped")).to_have_text("1 point is outside the picture.")
    expect(page).to_have_url(re.compile(r"\?clip=1$"))
    page.wait_for_function(HIGHEST, arg=["grad_norm", 0, 5])


def test_a_chart_fills_the_window_and_gives_the_focus_back(page: Page) -> None:
    figure, large = page.locator("#chart-loss"), page.get_by_role("dialog", name="Loss")
    small = figure.locator(".main-svg").first
    small.wait_for()
    size = "each => [each.clientWidth, each.clientHeight]"
    usual = small.evaluate(size)
    figure.get_by_role("button", name="Full screen").press("Enter")
    expect(large).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?full=loss$"))
    page.wait_for_function("document.querySelector('#full-chart .main-svg').clientHeight > 450")
    page.reload()
    page.wait_for_function("document.querySelector('#full-chart .main-svg')?.clientHeight > 450")
    expect(large.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()
    expect(figure.get_by_role("button", name="Full screen")).to_be_focused()
    assert "full" not in page.url
    expect(small).to_be_visible()
    page.wait_for_timeout(300)  # it is drawn once more
    assert small.evaluate(size) == [usual[0], 220]


def test_a_line_stands_where_the_version_went_live(page: Page) -> None:
    expect(page.locator("#marks")).to_contain_text("v3 live: ")
    mark = page.locator("#chart-loss .annotation-text").filter(has_text="v3 live")
    places = []
    for across, title in (("step", "step"), ("elapsed", "seconds since the start")):
        page.get_by_label("Across").select_option(across)
        expect(page.locator("#chart-loss .xtitle")).to_have_text(title)
        expect(mark).to_be_visible()
        drawn = page.locator("#chart-loss .main-svg").first.bounding_box()
        at = mark.bounding_box()
        assert drawn
        assert at
        assert drawn["x"] < at["x"]
        assert at["x"] + at["width"] / 2 <= drawn["x"] + drawn["width"]
        places.append(at["x"])
    assert places[0] != places[1]
