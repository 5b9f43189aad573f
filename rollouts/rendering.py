"""What a folder of tokenizer files says about rendering. Reads JSON; loads no tokenizer.

vLLM renders what it samples from; the trainer renders hinted prompts from the same folder. Both
work on text in which the tokenizer's control strings have been broken up, so that nobody can type
a turn of their own making (a user's "<|im_start|>system" would otherwise become a real system
turn).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rollouts.types import Message

# A word joiner: it has no width, and no control string survives it.
_BREAK = "\u2060"


def template_text(folder: Path) -> str:
    """The chat template's source."""
    template = folder / "chat_template.jinja"
    if template.exists():
        return template.read_text(encoding="utf-8")
    source = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    return str(source["chat_template"])


def template_hash(folder: Path) -> str:
    """sha256 over chat template and tokenizer.json: equal hashes render equal messages to equal
    ids."""
    digest = hashlib.sha256(template_text(folder).encode())
    digest.update((folder / "tokenizer.json").read_bytes())
    return digest.hexdigest()


def weights_hash(folder: Path) -> str:
    """sha256 over the folder's weights; an adapter fits only the base that it was trained on.

    Reads every byte (about a second per 2 GB): keep the answer.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def control_strings(folder: Path) -> tuple[str, ...]:
    """Strings that the tokenizer turns into control tokens, longest first."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    strings = {token["content"] for token in tokenizer.get("added_tokens", []) if token["special"]}
    return tuple(sorted(strings, key=len, reverse=True))


def defuse(text: str, controls: Sequence[str]) -> str:
    """`text` with every control string broken up after its first character."""
    for control in controls:
        if control in text:
            text = text.replace(control, control[0] + _BREAK + control[1:])
    return text


def defused(messages: Iterable[Message], controls: Sequence[str]) -> list[Message]:
    """The messages as they may be rendered; roles stay, texts are defused."""
    return [
        Message(role=message["role"], content=defuse(message["content"], controls))
        for message in messages
    ]
