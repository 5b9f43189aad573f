"""What a folder of tokenizer files says about rendering. Reads JSON and templates; loads no
tokenizer.

vLLM renders what it samples from; the trainer renders hinted prompts from the same folder. Both
work on text in which the tokenizer's control strings have been broken up, so that nobody can type
a turn of their own making (a user's "<|im_start|>system" would otherwise become a real system
turn).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta

from rollouts.types import Message

# A word joiner: it has no width, and no control string survives it.
_BREAK = "\u2060"
# Tokens of this form begin or end a turn, or a part of one, whether called special or not.
_BARS = ("<|", "<｜")
MOST_NESTED = 100  # lists and objects in each other, in a tool call's arguments


def template_text(folder: Path, override: Path | None = None) -> str:
    """The chat template's source: of the file that stands in its place, else the folder's own."""
    if override is not None:
        return override.read_text(encoding="utf-8")
    template = folder / "chat_template.jinja"
    if template.exists():
        return template.read_text(encoding="utf-8")
    source = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    return str(source["chat_template"])


# What templates call the switch that lets their model think before it answers.
_SWITCHES = ("enable_thinking", "thinking")
_GENERATION = re.compile(r"\{%-? *(end)?generation *-?%\}")  # transformers' own tag


def template_options(template: str, *, thinks: bool = False) -> dict[str, bool]:
    """What a template is told beside the messages, by server and trainer alike: that the model does
    not think first, unless it shall. Empty for a template without such a switch, or that does not
    parse."""
    if thinks:
        return {}
    jinja = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        tree = jinja.parse(_GENERATION.sub("", template))
    except TemplateSyntaxError:
        return {}
    # As vLLM looks, which drops what a template would not read.
    read = meta.find_undeclared_variables(tree)
    return {name: False for name in _SWITCHES if name in read}


def template_hash(folder: Path, override: Path | None = None, *, thinks: bool = False) -> str:
    """sha256 over chat template, what it is told and tokenizer.json: equal hashes render equal
    messages to equal ids."""
    template = template_text(folder, override)
    digest = hashlib.sha256(template.encode())
    if options := template_options(template, thinks=thinks):
        digest.update(json.dumps(options, sort_keys=True).encode())
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
    """Strings that the tokenizer turns into control tokens, longest first.

    Some tokenizers (DeepSeek's) do not call special what begins a turn: it is known by its bars.
    `<think>` and the like, which a template reads in what was said, are left.
    """
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = tokenizer.get("added_tokens", [])
    strings = {
        token["content"]
        for token in added
        if token["special"] or token["content"].startswith(_BARS)
    }
    return tuple(sorted(strings, key=len, reverse=True))


def defuse(text: str, controls: Sequence[str]) -> str:
    """`text` with every control string broken up after its first character."""
    for control in controls:
        if control in text:
            text = text.replace(control, control[0] + _BREAK + control[1:])
    return text


def defused(messages: Iterable[Message], controls: Sequence[str]) -> list[Message]:
    """The messages as they may be rendered; roles stay, everything else that is text is defused."""
    return [_defused(message, controls) for message in messages]


def _defused(message: Message, controls: Sequence[str]) -> Message:
    safe = Message(role=message["role"], content=defuse(message["content"], controls))
    if "name" in message:
        safe["name"] = defuse(message["name"], controls)
    if "tool_call_id" in message:
        safe["tool_call_id"] = defuse(message["tool_call_id"], controls)
    if message.get("tool_calls"):
        safe["tool_calls"] = [_defused_call(call, controls) for call in message["tool_calls"]]
    return safe


def _defused_call(call: dict[str, Any], controls: Sequence[str]) -> dict[str, Any]:
    """Its arguments are defused as what they mean: an escape such as \\u003c hides a control
    string until a template has parsed it."""
    name, arguments = call["function"]["name"], call_arguments(call["function"]["arguments"])
    safe = json.dumps(defused_json(arguments, controls), ensure_ascii=False)
    return {
        "id": defuse(call["id"], controls),
        "type": "function",
        "function": {"name": defuse(name, controls), "arguments": safe},
    }


def defused_json(value: Any, controls: Sequence[str]) -> Any:
    """JSON with every string in it defused, names of fields too (tools and their schemas)."""
    if isinstance(value, str):
        return defuse(value, controls)
    if isinstance(value, dict):
        return {defuse(k, controls): defused_json(v, controls) for k, v in value.items()}
    if isinstance(value, list):
        return [defused_json(item, controls) for item in value]
    return value


def call_arguments(arguments: str) -> dict[str, Any]:
    """The arguments of a tool call as an object; what is none counts as empty, as in vLLM."""
    try:
        found = _renderable(json.loads(arguments) if arguments else {}, 0)
    except (ValueError, RecursionError):  # the latter: nested thousands of levels deep
        return {}
    return found if isinstance(found, dict) else {}


def whole_text(text: str) -> str:
    """With halves of surrogate pairs, which no encoding has, replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _renderable(value: Any, depth: int) -> Any:
    """With what no request can carry replaced: halves of surrogate pairs, which an escape may name.
    ValueError where it nests too deep to be gone through, wherever that is done."""
    if depth > MOST_NESTED:
        raise ValueError("it nests too deep")
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, dict):
        return {_renderable(k, depth): _renderable(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_renderable(item, depth + 1) for item in value]
    return value


_FUNCTION = ("name", "description", "parameters", "strict")


def template_tools(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools as vLLM hands them to a chat template, which dumps them as they are: a function's
    fields in its order. PostgreSQL's jsonb gives them back in another than they came in."""
    return [
        {
            "type": tool["type"],
            **tool,
            "function": {
                **{name: tool["function"][name] for name in _FUNCTION if name in tool["function"]},
                **tool["function"],
            },
        }
        for tool in tools
    ]


def template_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The messages as vLLM hands them to a chat template: arguments of tool calls are objects,
    and a call's fields are in its order, which a template that dumps a whole call shows."""
    return [_for_template(message) for message in messages]


def _for_template(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = dict(message)
    if "tool_calls" in plain:
        plain["tool_calls"] = [
            {
                "id": call["id"],
                "function": {
                    "arguments": call_arguments(call["function"]["arguments"]),
                    "name": call["function"]["name"],
                },
                "type": "function",
            }
            for call in plain["tool_calls"]
        ]
    return plain
