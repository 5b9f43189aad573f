"""What the tests need besides .venv: a Chromium, GNU gettext, Node with two npm packages, the base
model. `make test` runs it first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CLIENTS = Path(__file__).resolve().parent / "clients"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def chromium() -> str | None:
    """The system's Chromium; Playwright drives it by its path."""
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def install(*packages: str) -> None:
    """From the system's packages, where that is ours to do."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "--quiet"],
        ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *packages],
    ):
        run(command, env=environment)


def run(command: list[str], **options: Any) -> bool:
    """Whether it went well; what it said is shown where it did not."""
    print(f"prepare: {' '.join(command)}", flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        print(f"{done.stdout[-1000:]}{done.stderr[-2000:]}", flush=True)
    return done.returncode == 0


def npm_package() -> bool:
    """Whether the packages of the lock file lie beside it; installed when they do not."""
    there = CLIENTS / "node_modules" / ".package-lock.json"
    lock = CLIENTS / "package-lock.json"
    if there.exists() and there.stat().st_mtime >= lock.stat().st_mtime:
        return shutil.which("node") is not None
    if not (shutil.which("node") and shutil.which("npm")):
        install("nodejs", "npm")
    if not (shutil.which("node") and shutil.which("npm")):
        return False
    return run(["npm", "ci", "--no-audit", "--no-fund"], cwd=CLIENTS)


def missing(what: str, tests: str) -> bool:
    """Says so loudly; whether that is a failure."""
    print(f"prepare: NO {what} was found and none could be installed.", flush=True)
    if in_ci():
        print("prepare: in CI that is a failure.", flush=True)
        return True
    print(f"prepare: {tests} WILL BE SKIPPED. Install it to run them.", flush=True)
    return False


def main() -> int:
    if not chromium():
        install("chromium", "fonts-liberation")
    if not chromium() and missing("CHROMIUM", "THE BROWSER TESTS"):
        return 1
    if not shutil.which("xgettext"):
        install("gettext")
    if not shutil.which("xgettext") and missing("GETTEXT", "THE SEARCH FOR UNTRANSLATED TEXTS"):
        return 1
    if not npm_package() and missing("NPM PACKAGE openai OR axe-core", "THE TESTS OF THEM"):
        return 1
    # The tests' own model, whatever this shell's settings name.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("CLAWWEB_")}
    command = [sys.executable, "manage.py", "prepare"]
    return subprocess.run(command, env=plain, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
