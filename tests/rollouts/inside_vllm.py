"""Modules of ours that run inside vLLM's processes."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def inside_vllm(name: str) -> Any:
    """`rollouts.engines.{name}`, for a fixture: with a test file's other imports, vLLM's would take
    seconds in each process that collects tests. What it imports is out of date in places."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(f"rollouts.engines.{name}")
