"""TRL's environment, apart from ours: bench/trainer/.venv, made from requirements.txt beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "requirements"))

from install import VENV, torch_source, uv_environment  # noqa: E402  # it lies beside no package

TRL_VENV, PINS = HERE / ".venv", HERE / "requirements.txt"
__all__ = ["TRL_VENV", "VENV", "make_trl_venv"]


def make_trl_venv() -> None:
    """TRL beside the same torch, transformers and peft, in an environment of its own."""
    stamp = TRL_VENV / "installed"
    if stamp.exists() and stamp.read_text() == PINS.read_text():
        return
    uv, environment = VENV / "bin" / "uv", uv_environment("cpu")
    python = TRL_VENV / "bin" / "python"
    make = [uv, "venv", "--quiet", "--clear", "--python", VENV / "bin" / "python", TRL_VENV]
    subprocess.run(make, env=environment, check=True)
    sync = [uv, "pip", "sync", "--python", python, *torch_source("cpu"), PINS]
    subprocess.run(sync, env=environment, check=True)
    stamp.write_text(PINS.read_text())
