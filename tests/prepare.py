"""What the tests need besides .venv: a Chromium and the base model. `make test` runs it first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def chromium() -> str | None:
    """The system's Chromium; Playwright drives it by its path."""
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def install_chromium() -> None:
    """From the system's packages, where that is ours to do."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ["chromium", "fonts-liberation"]
    for command in (
        ["apt-get", "update", "--quiet"],
        ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *packages],
    ):
        print(f"prepare: {' '.join(command)}", flush=True)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{done.stdout[-1000:]}{done.stderr[-2000:]}", flush=True)


def main() -> int:
    if not chromium():
        install_chromium()
    if not chromium():
        print("prepare: NO CHROMIUM was found and none could be installed.", flush=True)
        if in_ci():
            print("prepare: in CI that is a failure.", flush=True)
            return 1
        print(
            "prepare: THE BROWSER TESTS WILL BE SKIPPED. Install Chromium to run them.", flush=True
        )
    # The tests' own model, whatever this shell's settings name.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("CLAWWEB_")}
    command = [sys.executable, "manage.py", "prepare"]
    return subprocess.run(command, env=plain, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
