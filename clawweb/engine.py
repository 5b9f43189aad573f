"""The one engine of this installation, from the settings; and its install id and tokenizer
facts."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from clawweb.config import config
from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.engines.base import Engine
from rollouts.rendering import control_strings, template_hash, weights_hash


@lru_cache(maxsize=1)
def get_engine() -> Engine:
    """The served model. Cheap: it keeps no connection open between calls."""
    settings = config()
    return build_engine(
        EngineConfig(url=settings.vllm, key=settings.secret("vllm_key", settings.vllm_key))
    )


@lru_cache(maxsize=1)
def tokenizer_controls() -> tuple[str, ...]:
    """Strings that must be broken up in any text that is not ours."""
    return control_strings(config().model_folder)


@lru_cache(maxsize=1)
def current_template_hash() -> str:
    return template_hash(config().model_folder)


@lru_cache(maxsize=1)
def base_hash() -> str:
    """sha256 of the base model's weights; takes a moment the first time."""
    return weights_hash(config().model_folder)


@lru_cache(maxsize=1)
def install_id() -> str:
    """Eight hex digits that tell this installation's adapters from another's on a shared server."""
    return hashlib.sha256(config().secret("install_id", "").encode()).hexdigest()[:8]
