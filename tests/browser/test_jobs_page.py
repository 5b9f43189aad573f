"""The console of jobs, by keyboard and without a model: what runs, what failed and what to do then,
whose it is; a job is stopped and kept, tried again, or thrown away."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Look
from tests.browser.until import NUDGE

pytestmark = pytest.mark.browser


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).press("Enter")


def test_who_runs_the_training_sees_the_machinery_and_everybodys_jobs(look: Look) -> None:
    page = look("root", "/jobs/")
    machinery = page.get_by_role("region", name="The machinery")
    expect(machinery).to_contain_text("Model server: does not answer")
    expect(machinery).to_contain_text("Waiting jobs:")
    expect(machinery.get_by_text("worker-gpu:")).to_contain_text("last heard of")

    table = page.get_by_role("group", name="Training jobs")
    ada = table.get_by_role("row").filter(has_text="ada")
    expect(ada).to_have_count(3)
    running = table.get_by_role("row").filter(has_text="owl")
    expect(running).to_contain_text("training")
    expect(running).to_contain_text("rated replies")
    expect(running).to_contain_text("step 14 of 40")
    expect(running).to_contain_text("left")
    page.get_by_label("State").select_option("failed")
    page.get_by_role("button", name="Show", exact=True).press("Enter")
    expect(table.get_by_role("row").filter(has_text="ada")).to_have_count(0)
    table.get_by_role("row").filter(has_text="mole").get_by_role("link", name="Job 1").press(
        "Enter"
    )
    expect(page.get_by_role("heading", name="Job 1 · mole")).to_be_visible()
    expect(page.get_by_text("only the owner sees them")).to_be_visible()


def test_a_job_is_stopped_and_what_it_has_learned_kept(look: Look) -> None:
    page = look("owl", "/jobs/")
    stop = page.get_by_role("button", name="Stop job 1")
    dialog = page.get_by_role("dialog", name="Stop this job?")
    page.set_viewport_size({"width": 360, "height": 740})
    stop.press("Enter")
    expect(dialog.get_by_role("button", name="Keep going")).to_be_focused()
    box = dialog.bounding_box()
    assert box
    assert box["x"] >= 8  # from the edge of a phone
    page.set_viewport_size({"width": 1280, "height": 800})
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(stop).to_be_focused()
    stop.press("Enter")
    stop.evaluate("each => { each.dataset.old = ''; }")
    page.evaluate(NUDGE, ["job", None])  # the list comes anew while the question stands
    expect(page.locator("[data-old]")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(stop).to_be_focused()
    stop.press("Enter")
    page.keyboard.press("Tab")
    expect(dialog.get_by_role("button", name="Stop and keep")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#notices")).to_contain_text("It stops after this step.")
    expect(page.get_by_text("stops after this step; what it has learned is tested")).to_be_visible()
    stop.press("Enter")
    expect(dialog.get_by_role("button", name="Stop and keep")).to_have_count(0)  # it does already
    page.keyboard.press("Escape")


def test_a_failed_job_says_what_to_do_and_is_tried_again(look: Look) -> None:
    page = look("mole", "/jobs/")
    page.get_by_role("link", name="Job 1").press("Enter")
    page.wait_for_url("**/jobs/job-*/")  # with its scripts
    expect(page.get_by_text("There was not enough memory").first).to_be_visible()
    expect(page.locator(".page-head + p + p.quiet")).not_to_be_empty()  # and what to do about it
    press(page, "Train again")
    expect(page.locator("#notices")).to_contain_text("A new job is queued.")
    page.get_by_role("link", name="All jobs").press("Enter")
    page.wait_for_url("**/jobs/")
    again = page.get_by_role("row").filter(has_text="Job 2")
    expect(again).to_contain_text("by hand")
    press(page, "Stop job 2")
    dialog = page.get_by_role("dialog", name="Stop this job?")
    expect(dialog.get_by_role("button", name="Stop and keep")).to_have_count(0)  # nothing is there
    dialog.get_by_role("button", name="Stop and discard").press("Enter")
    expect(again).to_contain_text("cancelled")
    expect(
        page.get_by_text("of 8 ratings").or_(page.get_by_text("ratings are ready")).first
    ).to_be_visible()


def test_a_job_is_given_what_was_chosen(look: Look) -> None:
    page, sent = look("ada", "/jobs/"), []

    def queued(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(status=202, json={})

    page.route("**/api/jobs", queued)
    page.get_by_text("Train with another method").click()
    card = page.locator("#other-method")
    card.get_by_label("Method").select_option("opd")
    card.get_by_label("How a hint teaches").select_option("topk")
    card.get_by_text("Weights and other numbers").click()
    expect(card.get_by_label("distill_weight")).to_have_attribute("placeholder", "1.0")
    card.get_by_label("distill_weight").fill("-1")
    card.get_by_text("Weights and other numbers").click()  # they are out of sight
    card.get_by_role("button", name="Train now").press("Enter")
    expect(card.get_by_label("distill_weight")).to_be_focused()  # the browser says why
    card.get_by_label("distill_weight").fill("0.5")
    card.get_by_label("topk", exact=True).fill("8")
    busy = '<button id="train-now" type="button" disabled>Train now</button>'
    page.route("**/parts/agent/", lambda route: route.fulfill(body=busy))
    card.get_by_role("button", name="Train now").press("Enter")
    expect(page.get_by_text("A new job is queued.")).to_be_visible()
    expect(card.get_by_role("button", name="Train now")).to_be_disabled()  # until it is over
    usual = {"thumbs": "kto", "teacher": "base", "reanswer_hints": "own", "reanswer_sets": "needed"}
    settings = {"estimator": "topk", "topk_support": "student", **usual, "combine": "losses"}
    settings |= {"distill_weight": 0.5, "topk": 8}
    assert sent == [{"method": "opd", "settings": settings}]
