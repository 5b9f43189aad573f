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
for name in ("DATABASE_URL", "REDIS_URL"):  # tests/services.py names servers for the tests
    if url := os.environ.get(f"TESTS_{name}"):
        os.environ[f"CLAWWEB_{name}"] = url
