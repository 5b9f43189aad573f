"""How the chat page bears a long chat and a fast reply: opening, typing, long tasks, memory.

    make bench-chat                    # or, with other numbers:
    PYTHONPATH=. python bench/chat/run.py --turns 2000 --rate 200 --seconds 30

A real server and a real Chromium; no model. The chat's turns are rows made beforehand, the reply
comes from `tests/writer.py` at the given rate. While it streams, keys are pressed in the message
box one after the other: typing latency is from the key's event to the first frame after it. A
long task is one of more than 50 ms on the page's main thread, as the browser itself reports them.
Memory is the page's JavaScript heap after a collection, before the reply and after it; of the time
between the main thread is busy for one share, and lays the page out for another.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

from tests.browser.demo import NOBODY, Demo
from tests.prepare import chromium
from tests.realstack import running

SEED = """
import json
from bench.chat.run import seed
seed({turns})
"""
MEASURE = """() => {
  window.tasks = [];
  window.keys = [];
  window.frames = [];
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) tasks.push(duration);
  }).observe({ type: "longtask" });
  document.getElementById("say").addEventListener("keydown", () => {
    const pressed = performance.now();
    requestAnimationFrame(() => setTimeout(() => keys.push(performance.now() - pressed)));
  });
  let last = performance.now();
  const tick = (now) => { frames.push(now - last); last = now; requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
}"""


def seed(turns: int) -> None:
    """A user with one chat of so many turns; prints their cookie and the chat's id."""
    from clawweb.models import Turn, User
    from clawweb.services import sessions
    from tests.demo import cookie
    from tests.factories import make_turn, up

    user = User.objects.create_user("reader")
    session = sessions.open_session(user=user)
    reply = "It depends on the weather, on the soil and on what you want.\n\n" * 3
    first = make_turn(user, "What should I plant, and when?", session=session, reply=reply)
    up(first)
    last = first
    for _ in range(turns - 1):
        copy = Turn.objects.get(pk=first.pk)
        copy.pk, copy._state.adding = None, True
        copy.public_id = Turn._meta.get_field("public_id").get_default()
        copy.parent = last
        copy.save()
        last = copy
    facts = {"cookies": {"reader": cookie(user)}, "session_id": session.public_id}
    sys.stdout.write(f"{json.dumps(facts)}\n")


def run(turns: int, rate: float, seconds: float) -> dict[str, Any]:
    """The figures; times in milliseconds, memory in MiB."""
    with running("--parts", "web,valkey", vllm_url=NOBODY) as stack:
        code = SEED.format(turns=turns)
        facts = json.loads(stack.manage("shell", "-v", "0", "--command", code, timeout=900))
        demo = Demo(stack=stack, cookies=facts.pop("cookies"), places=facts)
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        with sync_playwright() as playwright, demo.writing(rate):
            browser = playwright.chromium.launch(executable_path=chromium(), args=sandbox)
            page = demo.context(browser, "reader", viewport={"width": 1280, "height": 800})
            figures = measure(page.new_page(), demo, rate, seconds)
            browser.close()
        return {"turns": turns, "asked_rate": rate, **figures}


def measure(page: Page, demo: Demo, rate: float, seconds: float) -> dict[str, Any]:
    address = f"/chat/{demo.places['session_id']}/"
    opened = [open_chat(page, address) for _ in range(4)][1:]  # the first one fills the cache
    page.evaluate(MEASURE)
    cdp = page.context.new_cdp_session(page)
    before = counters(cdp)
    words = int(rate * seconds)
    page.get_by_label("Your message").fill(" ".join(f"word{n % 100}" for n in range(words)))
    page.keyboard.press("Enter")
    reply = page.locator(".turn").last.locator(".reply")
    reply.filter(has_text="word1").wait_for()
    page.evaluate("tasks.length = keys.length = frames.length = 0")
    started, typed = time.monotonic(), 0
    while time.monotonic() - started < seconds * 0.8:
        page.keyboard.press("abcdefgh "[typed % 9])
        typed += 1
        page.wait_for_timeout(100)
    shown = len(reply.inner_text().split())
    took = time.monotonic() - started
    told = page.evaluate("({ tasks, keys, frames })")
    after = counters(cdp)
    whole = after["Timestamp"] - before["Timestamp"]
    return {
        "opening_ms": round(statistics.median(opened)),
        "shown_rate": round(shown / took),
        "typing_p95_ms": round(statistics.quantiles(told["keys"], n=20)[-1], 1),
        "keys": len(told["keys"]),
        "longest_task_ms": round(max(told["tasks"], default=0)),
        "tasks_over_50_ms": len(told["tasks"]),
        "frame_p95_ms": round(statistics.quantiles(told["frames"], n=20)[-1], 1),
        "busy_share": round((after["TaskDuration"] - before["TaskDuration"]) / whole, 2),
        "layout_share": round((after["LayoutDuration"] - before["LayoutDuration"]) / whole, 2),
        "layouts_a_second": round((after["LayoutCount"] - before["LayoutCount"]) / whole),
        "heap_before_mib": round(before["JSHeapUsedSize"] / 2**20, 1),
        "heap_after_mib": round(after["JSHeapUsedSize"] / 2**20, 1),
    }


def open_chat(page: Page, address: str) -> float:
    """Milliseconds from asking for the page until its newest turn and its box can be used."""
    started = time.monotonic()
    page.goto(address, wait_until="commit")
    page.locator(".turn").last.wait_for()
    page.locator("#say:focus").wait_for()  # the scripts have run
    return 1000 * (time.monotonic() - started)


def counters(cdp: CDPSession) -> dict[str, float]:
    """What the browser counts of the main thread, in seconds and bytes, garbage collected."""
    cdp.send("HeapProfiler.collectGarbage")
    cdp.send("Performance.enable")
    return {each["name"]: each["value"] for each in cdp.send("Performance.getMetrics")["metrics"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=200.0, help="words a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    figures = run(asked.turns, asked.rate, asked.seconds)
    for name, value in {**figures, "load_before": round(load, 2)}.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
