"""A job's charts in a browser, without a model: outliers left out and counted, one chart as large
as the window, lines where the version went live, a logarithmic scale, other jobs beside this one,
a stretch of all charts at once, pictures to take along. The address keeps it all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Look
from tests.browser.demo import Demo
from tests.browser.until import NUDGE, caught, until

pytestmark = pytest.mark.browser

HIGHEST = """([key, low, high]) => {
  const ticks = [...document.querySelectorAll(`#chart-${key} .ytick text`)]
    .map((each) => Number(each.textContent.replace("−", "-")));
  return ticks.length > 0 && Math.max(...ticks) >= low && Math.max(...ticks) < high;
}"""


SIZED = """(wanted) => {
  const { clientWidth, clientHeight } = document.querySelector("#chart-loss .main-svg");
  return clientWidth === wanted[0] && clientHeight === wanted[1];
}"""
# Charts tell each other what is looked at once they have heard of each other.
LINKED = """["loss", "kl"].every((key) => (
  document.querySelector(`#chart-${key} .plot`)._ev.listenerCount("plotly_hover")))"""


@pytest.fixture
def page(look: Look, demo: Demo) -> Page:
    return look("ada", f"/jobs/{demo.places['job_id']}/")


def test_outliers_are_left_out_and_counted(page: Page) -> None:
    figure = page.locator("#chart-grad_norm")
    figure.scroll_into_view_if_needed()
    until(page, HIGHEST, ["grad_norm", 5, 100])  # the spike sets the scale
    page.get_by_label("Leave outliers out").press("Space")
    figure.scroll_into_view_if_needed()  # what is not seen is not drawn
    expect(figure.locator(".clipped")).to_have_text("1 point is outside the picture.")
    expect(page).to_have_url(re.compile(r"\?clip=1$"))
    until(page, HIGHEST, ["grad_norm", 0, 5])


def test_a_chart_fills_the_window_and_gives_the_focus_back(page: Page) -> None:
    figure, large = page.locator("#chart-loss"), page.get_by_role("dialog", name="Loss")
    small = figure.locator(".main-svg").first
    small.wait_for()
    size = "each => [each.clientWidth, each.clientHeight]"
    usual = small.evaluate(size)
    figure.get_by_role("button", name="Full screen").press("Enter")
    expect(large).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?full=loss$"))
    until(page, "document.querySelector('#full-chart .main-svg').clientHeight > 450")
    page.reload()
    until(page, "document.querySelector('#full-chart .main-svg')?.clientHeight > 450")
    expect(large.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()
    expect(figure.get_by_role("button", name="Full screen")).to_be_focused()
    expect(page).not_to_have_url(re.compile("full"))
    expect(small).to_be_visible()
    until(page, SIZED, [usual[0], 220])  # it is drawn once more


def test_an_axis_says_what_it_counts(page: Page) -> None:
    expect(page.locator("#chart-kl .ytitle")).to_have_text("nats per token")
    expect(page.locator("#chart-loss .ytitle")).to_have_count(0)  # it has no unit


def test_a_line_stands_where_all_thumbs_begin(page: Page) -> None:
    page.locator("#chart-loss").scroll_into_view_if_needed()
    mark = page.locator("#chart-loss .annotation-text").get_by_text("all thumbs")
    expect(mark).to_be_visible()


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


def until_axis(page: Page, key: str, kind: str) -> None:
    scale = "document.querySelector(`#chart-${key} .plot`)._fullLayout.yaxis.type"
    until(page, f"([key, kind]) => {scale} === kind", [key, kind])


def test_a_logarithmic_scale_is_drawn_where_it_can_be(page: Page) -> None:
    loss, reward = page.locator("#chart-loss"), page.locator("#chart-reward")
    loss.locator(".main-svg").first.wait_for()
    page.get_by_label("Logarithmic").press("Space")
    expect(page).to_have_url(re.compile(r"\?log=1$"))
    until_axis(page, "loss", "log")
    expect(loss.locator(".no-log")).to_be_hidden()
    reward.scroll_into_view_if_needed()
    why = reward.locator(".no-log")
    expect(why).to_be_visible()  # it is drawn now
    expect(why).to_have_text("No logarithmic scale here: a value is 0 or below.")
    until_axis(page, "reward", "linear")
    page.reload()
    expect(page.get_by_label("Logarithmic")).to_be_checked()


def test_other_jobs_are_drawn_beside_this_one(page: Page) -> None:
    lines = page.locator("#chart-loss .scatterlayer .trace")
    expect(lines).to_have_count(1)
    page.get_by_text("Compare with other jobs").press("Enter")
    page.get_by_label("Job 1, combine").press("Space")
    page.get_by_label("Job 2, combine").press("Space")
    expect(lines).to_have_count(3)
    expect(page).to_have_url(re.compile(r"\?with=2%2C1$"))
    legend = page.get_by_role("list", name="Jobs in the charts").get_by_role("button")
    expect(legend).to_have_count(3)
    legend.nth(1).press("Enter")
    expect(legend.nth(1)).to_have_attribute("aria-pressed", "false")
    expect(lines).to_have_count(2)
    page.evaluate("document.dispatchEvent(new CustomEvent('points', { detail: {} }))")
    expect(legend.nth(1)).to_be_focused()  # new points leave it there
    page.reload()
    expect(lines).to_have_count(3)
    with page.expect_download() as download:
        page.get_by_role("link", name="All values as CSV").press("Enter")
    names = {line.split(",")[0] for line in download.value.path().read_text().splitlines()[1:]}
    assert len(names) == 3


def test_an_answer_that_comes_late_undoes_no_later_choice(page: Page) -> None:
    held: list[Route] = []
    page.route(re.compile(r"/series/\?with=1$"), lambda route: held.append(route))
    lines = page.locator("#chart-loss .scatterlayer .trace")
    expect(lines).to_have_count(1)
    page.get_by_text("Compare with other jobs").press("Enter")
    page.get_by_label("Job 1, combine").press("Space")
    caught(page, held)
    page.get_by_label("Job 2, combine").press("Space")
    expect(lines).to_have_count(3)
    page.evaluate("document.addEventListener('points', () => { window.drawnLate = true; })")
    with page.expect_response(lambda answer: answer.url.endswith("with=1")) as late:
        held[0].continue_()
    late.value.finished()
    page.wait_for_timeout(300)
    assert not page.evaluate("window.drawnLate")
    expect(lines).to_have_count(3)


def test_a_compared_jobs_new_points_come_also_after_a_fetch_that_is_on_its_way(
    page: Page, demo: Demo
) -> None:
    page.get_by_text("Compare with other jobs").press("Enter")
    with page.expect_response(re.compile(r"/series/\?with=1$")) as chosen:
        page.get_by_label("Job 1, combine").press("Space")
    other = chosen.value.json()["jobs"][1]["id"]
    held: list[Route] = []
    page.route(re.compile(r"/series/\?after="), lambda route: held.append(route))
    page.evaluate(NUDGE, ["job", demo.places["job_id"]])
    caught(page, held)
    page.evaluate(NUDGE, ["job", other])
    page.wait_for_timeout(300)
    with page.expect_response(re.compile(r"/series/\?with=1$")):
        held[0].continue_()


def test_what_is_looked_at_in_one_chart_is_so_in_all(page: Page) -> None:
    loss, kl = page.locator("#chart-loss"), page.locator("#chart-kl")
    kl.scroll_into_view_if_needed()
    kl.locator(".main-svg").first.wait_for()
    loss.scroll_into_view_if_needed()
    until(page, LINKED)
    box = loss.locator(".nsewdrag").bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.mouse.move(box["x"] + box["width"] * 0.32, middle)
    expect(loss.locator(".hoverlayer .hovertext")).to_have_count(1)
    expect(kl.locator(".hoverlayer .hovertext")).to_have_count(1)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=5)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"\?zoom=[\d.]+%7E[\d.]+$"))
    ranges = """() => ["loss", "kl"].map((key) => (
      document.querySelector(`#chart-${key} .plot`)._fullLayout.xaxis.range.join()))"""
    until(page, f"new Set(({ranges})()).size === 1")
    assert all(10 < float(end) < 30 for end in page.evaluate(ranges)[0].split(","))
    page.get_by_role("button", name="Show all").press("Enter")
    expect(page).not_to_have_url(re.compile("zoom"))


def test_a_chart_is_taken_along_as_a_picture(page: Page) -> None:
    figure = page.locator("#chart-loss")
    figure.locator(".main-svg").first.wait_for()
    for name, begins in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with page.expect_download() as download:
            figure.get_by_role("button", name=name).press("Enter")
        assert download.value.suggested_filename == f"job-3-loss.{name.lower()}"
        picture = Path(download.value.path()).read_bytes()
        assert picture.startswith(begins)
        assert len(picture) > 5_000


def test_an_alert_is_a_mark_and_a_sentence_and_a_chart_is_a_table(page: Page) -> None:
    figure = page.locator("#chart-grad_norm")
    alert = page.locator("#alerts").get_by_role("listitem").filter(has_text="Step 23:")
    alert.get_by_role("button", name="Show it").press("Enter")
    expect(figure).to_be_focused()
    expect(figure.locator(".annotation-text").first).to_be_visible()
    expect(figure.locator(".summary")).to_contain_text("between 0.4")
    figure.get_by_role("button", name="Table").press("Enter")
    table = page.locator("#points-table table")
    expect(table.get_by_role("columnheader").and_(page.locator(".chosen"))).to_be_focused()
    expect(table.locator("tbody tr")).to_have_count(40)


def test_the_table_has_every_step_whatever_brought_it(page: Page) -> None:
    def one_step_on(route: Route) -> None:
        answer = route.fetch()
        said = answer.json()
        said["rows"].append(["41", *said["rows"][-1][1:]])
        route.fulfill(response=answer, json=said)

    page.route(re.compile(r"/series/\?with=1$"), one_step_on)
    rows = page.locator("#points-table tbody tr")
    expect(rows).to_have_count(40)
    page.get_by_text("Compare with other jobs").press("Enter")
    page.get_by_label("Job 1, combine").press("Space")
    expect(rows).to_have_count(41)
    expect(rows.last.locator("td").first).to_have_text("41")
    expect(page.locator("#charts-status")).to_have_text("Step 41 is done.")


def test_the_table_says_that_it_is_cut_once_it_is(page: Page) -> None:
    def many_steps_on(route: Route) -> None:
        answer = route.fetch()
        said = answer.json()
        said["points"] = 210
        said["rows"] += [[str(step), *said["rows"][-1][1:]] for step in range(41, 211)]
        route.fulfill(response=answer, json=said)

    page.route(re.compile(r"/series/\?with=1$"), many_steps_on)
    page.get_by_text("Show as a table").press("Enter")
    cut = page.get_by_text("Older steps are in the CSV file.")
    expect(page.locator("#points-table tbody tr")).to_have_count(40)
    expect(cut).to_be_hidden()
    page.get_by_text("Compare with other jobs").press("Enter")
    page.get_by_label("Job 1, combine").press("Space")
    expect(page.locator("#points-table tbody tr")).to_have_count(200)
    expect(cut).to_be_visible()


# Nobody's ratings: the job has nothing to train on.
QUEUED = """
from clawweb.models import TrainingJob, User
user = User.objects.get(username="fledgling")
print(TrainingJob.objects.create(user=user, trigger="manual", method="combine").public_id)
"""
ENDED = """
from clawweb.models import TrainingJob
TrainingJob.objects.filter(public_id="%s").update(state="no_signal")
"""


def test_a_job_that_ended_without_a_step_is_not_waited_for(look: Look, demo: Demo) -> None:
    job = demo.stack.manage("shell", "-v", "0", "--command", QUEUED).split()[-1]
    page = look("fledgling", f"/jobs/{job}/")
    waiting = page.locator("#waiting")
    expect(waiting).to_contain_text("The first point comes when the first step is done")
    demo.stack.manage("shell", "-v", "0", "--command", ENDED % job)
    page.evaluate(NUDGE, ["job", job])
    expect(page.get_by_text("nothing to learn")).to_be_visible()
    expect(waiting).to_have_text("This job measured nothing.")
    gone = f"from clawweb.models import TrainingJob as J; J.objects.get(public_id='{job}').delete()"
    demo.stack.manage("shell", "-v", "0", "--command", gone)  # lists are as others know them
