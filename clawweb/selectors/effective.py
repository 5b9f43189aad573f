"""Every setting as it is now: its value, its default, what it means and where it comes from."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from clawweb.config import Config, config
from clawweb.selectors.policy import training_policy

_FIELD = re.compile(r"^    ([a-z]\w*): .*?(?:#\s*(.*))?$")
_GROUP = re.compile(r"^    # ([A-Z].*)$")
_SECRET = re.compile(r"(^|_)(key|token|password|secret)$")  # not `tokens_…`
_LOGIN = re.compile(r"//[^/]*@")  # of a URL, to its last @: a password may have one
HIDDEN = "••••"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of clawweb.config.Config, to be shown. Secrets are hidden already."""

    name: str  # as the environment has it
    group: str
    value: str  # "" = empty
    default: str
    meaning: str
    source: str  # environment, file, policy (an admin's) or default


def effective() -> list[Setting]:
    """In the order of clawweb/config.py."""
    overruled = {"batch": training_policy().batch}
    return [
        Setting(
            name=f"CLAWWEB_{name.upper()}",
            group=group,
            value=_shown(name, overruled.get(name) or getattr(config(), name)),
            default=_shown(name, Config.model_fields[name].default),
            meaning=meaning,
            source="policy" if overruled.get(name) else _source(name),
        )
        for name, (group, meaning) in _meanings().items()
    ]


def _source(name: str) -> str:
    if name in config().model_fields_set:
        return "environment"
    is_made = _SECRET.search(name) and (config().var / name).exists()
    return "file" if is_made else "default"


def _shown(name: str, value: Any) -> str:
    text = str(value)
    if _SECRET.search(name):
        return HIDDEN if text else ""
    return _LOGIN.sub(f"//{HIDDEN}@", text).partition("?")[0]


@lru_cache(maxsize=1)
def _meanings() -> dict[str, tuple[str, str]]:
    """Each field's heading and comment in the source: said once, where the field is."""
    found: dict[str, tuple[str, str]] = {}
    group = ""
    for line in inspect.getsource(Config).splitlines():
        if heading := _GROUP.match(line):
            group = heading[1]
        elif (field := _FIELD.match(line)) and field[1] in Config.model_fields:
            found[field[1]] = group, field[2] or ""
    return found
