"""Pages without a model: web and Valkey alone, with the demo rows, started once per session."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from django.urls import URLPattern
from playwright.sync_api import Browser, BrowserContext

from clawweb.config import ROOT
from clawweb.stack import guard
from tests.realstack import Stack, running

NOBODY = "http://127.0.0.1:9/"  # where no model server answers
PATIENCE = 60_000  # ms, on two busy cores that may have to start a process first
SEED = "from tests.demo import main; main()"
WITH_OTHERS = "from tests.browser.others import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A running installation, and what `tests/demo.py` says about its rows."""

    stack: Stack
    # Of ada, with data; guest, with less; newcomer, without any; root, an admin; in tests also
    # of those of others.py
    cookies: dict[str, str]
    places: dict[str, str]  # what stands in the addresses of pages

    def context(self, browser: Browser, username: str = "", **options: Any) -> BrowserContext:
        """A browser of this person's own, signed in; of a stranger without a name."""
        context = browser.new_context(base_url=self.stack.url, **options)
        context.set_default_timeout(PATIENCE)
        if username:
            cookie = {"name": "sessionid", "value": self.cookies[username], "url": self.stack.url}
            context.add_cookies([cookie])  # type: ignore[list-item]
        return context

    def address(self, pattern: URLPattern) -> str:
        """The pattern's address, with what the demo rows have in it."""
        path = "/" + str(pattern.pattern)
        for name in pattern.pattern.converters:
            path = path.replace(f"<str:{name}>", self.places.get(name, f"no-{name}"))
        return path

    @contextmanager
    def writing(self, rate: float) -> Iterator[subprocess.Popen[bytes]]:
        """Replies are written meanwhile, so many words a second: each says what was asked."""
        command = [sys.executable, "-m", "tests.writer", "--rate", str(rate)]
        log = (self.stack.var / "writer.log").open("ab")
        with (
            log,
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.stack.env,
                stderr=log,
                # Should pytest be killed, this must not stay.
                preexec_fn=lambda: guard.prctl(guard.PR_SET_PDEATHSIG, signal.SIGTERM),
            ) as writer,
        ):
            try:
                yield writer
            finally:
                writer.terminate()


@pytest.fixture(scope="session")
def demo() -> Iterator[Demo]:
    """Starts in seconds: no model is loaded, and nothing answers in a chat."""
    with running("--parts", "web,valkey", vllm_url=NOBODY) as stack:
        yield seeded(stack, WITH_OTHERS)


def seeded(stack: Stack, command: str = SEED) -> Demo:
    """With the demo rows in its database."""
    printed = stack.manage("shell", "-v", "0", "--command", command, timeout=300)
    facts = json.loads(printed.splitlines()[-1])
    return Demo(stack=stack, cookies=facts.pop("cookies"), places=facts)
