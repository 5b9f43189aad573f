"""How an engine is reached: one field per line, its meaning beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Where the served model is."""

    kind: str = "vllm"  # vllm | scripted (unit tests)
    url: str = "http://127.0.0.1:8100"  # of the server, without /v1
    key: str = ""  # bearer key of the server
    base_name: str = "base"  # the name under which the base model is served
    connect_seconds: float = 2.0  # until the server must have taken the connection
    silence_seconds: float = 120.0  # longest wait between two pieces of an answer
    list_seconds: float = 20.0  # the same for what needs no model: which adapters are loaded
    template_options: Mapping[str, bool] = field(default_factory=dict)  # see rendering.py

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"an engine's url starts with http:// or https://, not {self.url!r}")
