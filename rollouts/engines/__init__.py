"""Engines: served models. `build_engine` imports only the one that is asked for."""

from __future__ import annotations

from rollouts.config import EngineConfig
from rollouts.engines.base import Engine


def build_engine(config: EngineConfig) -> Engine:
    """The engine that `config` names."""
    if config.kind == "vllm":
        from rollouts.engines.vllm import VllmEngine

        return VllmEngine(config)
    if config.kind == "scripted":
        from rollouts.engines.scripted import ScriptedEngine

        return ScriptedEngine()
    raise ValueError(f"no engine is called {config.kind!r}; there are 'vllm' and 'scripted'")
