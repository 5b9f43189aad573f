"""The one engine of this installation and its judge, from the settings; its install id and
tokenizer facts."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clawweb.config import config
from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.engines.base import Engine
from rollouts.engines.replicas import Replicas
from rollouts.judge import Judge, load_judge
from rollouts.judge_model import ModelJudge, is_loopback
from rollouts.rendering import (
    control_strings,
    template_hash,
    template_options,
    template_text,
    weights_hash,
)

if TYPE_CHECKING:
    from rollouts.tokens import Decoder

log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def get_replicas() -> tuple[Engine, ...]:
    """The servers of the model. Cheap: they keep no connection open between calls."""
    settings = config()
    key = settings.secret("vllm_key", settings.vllm_key)
    template = template_text(settings.model_folder, settings.template_file)
    told = template_options(template, thinks=settings.thinks)
    configs = [EngineConfig(url=url, key=key, template_options=told) for url in settings.vllms]
    return tuple(build_engine(each) for each in configs)


@lru_cache(maxsize=1)
def get_engine() -> Engine:
    """The served model: its one server, or all of them as one."""
    replicas = get_replicas()
    return replicas[0] if len(replicas) == 1 else Replicas(replicas)


@lru_cache(maxsize=1)
def get_judge() -> Judge | None:
    """Who judges replies; None when nobody does. ValueError says what is wrong with the settings.

    One of your own may load whatever it needs: only where replies are judged.
    """
    settings = config()
    if settings.judge:
        return load_judge(settings.judge)
    if not settings.judge_url:
        return None
    return ModelJudge(url=settings.judge_url, model=settings.judge_model, key=settings.judge_key)


def judge_name() -> str:
    """What people call the judge; empty when there is none."""
    settings = config()
    host = urlsplit(settings.judge_url).hostname or ""
    return (settings.judge or (f"{settings.judge_model} at {host}" if host else ""))[:120]


def judge_is_elsewhere() -> bool:
    """Whether judging sends texts out of this machine, as far as the settings tell."""
    return bool(config().judge_url) and not is_loopback(config().judge_url)


@lru_cache(maxsize=1)
def tokenizer_controls() -> tuple[str, ...]:
    """Strings that must be broken up in any text that is not ours."""
    return control_strings(config().model_folder)


@lru_cache(maxsize=1)
def current_template_hash() -> str:
    settings = config()
    return template_hash(settings.model_folder, settings.template_file, thinks=settings.thinks)


@lru_cache(maxsize=1)
def decoder() -> Decoder | None:
    """What gives token ids their texts back; None where the tokenizer's file is of another kind."""
    from rollouts.tokens import Decoder  # most processes never need it

    try:
        return Decoder(config().model_folder)
    except Exception:  # the library raises just this for a file that it cannot read
        log.warning("tokens are shown as numbers: the tokenizer cannot be read", exc_info=True)
        return None


@lru_cache(maxsize=1)
def base_hash() -> str:
    """sha256 of the base model's weights. Reading them all takes a moment: the first process that
    does it leaves the answer in the data folder, where it holds while no file has changed."""
    settings = config()
    stats = [(path, path.stat()) for path in sorted(settings.model_folder.glob("*.safetensors"))]
    seen = [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
    note = settings.var / "base-weights.json"
    with suppress(OSError, ValueError):
        noted = json.loads(note.read_text())
        if isinstance(noted, dict) and noted.get("files") == seen and noted.get("sha256"):
            return str(noted["sha256"])
    found = weights_hash(settings.model_folder)
    with suppress(OSError):  # a folder that cannot be written makes it slow, not wrong
        fresh = note.with_name(f".{note.name}.{os.getpid()}")
        fresh.write_text(json.dumps({"files": seen, "sha256": found}))
        fresh.replace(note)
    return found


def get_ready() -> None:
    """Work out now what the first reply would wait two seconds for."""
    base_hash()
    tokenizer_controls()
    current_template_hash()


@lru_cache(maxsize=1)
def install_id() -> str:
    """Eight hex digits that tell this installation's adapters from another's on a shared server."""
    return hashlib.sha256(config().secret("install_id", "").encode()).hexdigest()[:8]
