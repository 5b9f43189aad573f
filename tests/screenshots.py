"""Pictures of every page, in both themes, at a desk and on a phone: `make screenshots`.

Each address that the router knows is asked for with the demo rows in it; what leads elsewhere or
is no page has no picture. The folder is written anew; small WebP files, because they are kept."""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from clawweb.config import ROOT
from tests.browser.demo import NOBODY, Demo, seeded
from tests.prepare import chromium
from tests.realstack import running

FOLDER = ROOT / "docs" / "screenshots"
SIZES = {1280: 860, 360: 740}
QUALITY = 72
SETTLED = 900  # ms for charts to be drawn
ADMIN = ["/jobs/", "/settings/", "/admin/"]


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawweb.settings")
    import django

    django.setup()
    with running("--parts", "web,valkey", vllm_url=NOBODY) as stack:
        demo = seeded(stack)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=sandbox)
            for width in SIZES:
                take_all(browser, demo, width)
            browser.close()
    total = sum(path.stat().st_size for path in FOLDER.iterdir())
    sys.stdout.write(f"{len(list(FOLDER.iterdir()))} pictures, {total / 2**20:.1f} MiB\n")
    return 0


def take_all(browser: Browser, demo: Demo, width: int) -> None:
    from clawweb.urls import pages

    seen: set[str] = set()
    wanted = [("ada", pattern.name, demo.address(pattern)) for pattern in pages]
    wanted += [("root", f"admin-{path.strip('/')}", path) for path in ADMIN]
    wanted += [("newcomer", "first-chat", "/chat/"), ("", "signin", "/signin/")]
    for username, name, path in wanted:
        context = demo.context(browser, username, viewport={"width": width, "height": SIZES[width]})
        answer = context.request.get(path, max_redirects=0)
        if answer.status == 200 and "html" in answer.headers["content-type"] and name not in seen:
            seen.add(name)
            page = context.new_page()
            page.goto(path)
            page.wait_for_timeout(SETTLED)
            for theme in ("light", "dark"):
                take(page, theme, FOLDER / f"{name}-{theme}-{width}.webp")
        context.close()


def take(page: Page, theme: str, path: Path) -> None:
    page.evaluate(
        """theme => {
          document.documentElement.dataset.theme = theme;
          document.dispatchEvent(new CustomEvent("theme"));
        }""",
        theme,
    )
    page.wait_for_timeout(SETTLED // 3)
    Image.open(io.BytesIO(page.screenshot())).save(path, "WEBP", quality=QUALITY, method=6)


if __name__ == "__main__":
    sys.exit(main())
