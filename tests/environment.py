"""A data folder of the unit tests' own; loaded before Django reads its settings (addopts)."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

VAR = Path(tempfile.mkdtemp(prefix="clawweb-unit-"))
atexit.register(shutil.rmtree, VAR, ignore_errors=True)

for name in [name for name in os.environ if name.startswith("CLAWWEB_")]:
    del os.environ[name]  # what a developer has set must not reach the tests
os.environ["CLAWWEB_VAR"] = str(VAR)
if "TESTS_DATABASE_URL" in os.environ:  # tests/services.py names servers for the tests
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")  # one for each process
    os.environ["CLAWWEB_DATABASE_URL"] = os.environ["TESTS_DATABASE_URL"]
    os.environ["CLAWWEB_REDIS_URL"] = f"{os.environ['TESTS_REDIS_URL']}/{number}"
