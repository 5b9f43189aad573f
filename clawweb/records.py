"""Records as files hold them: one JSON object a line, described in docs/records.md.

Pure: knows no database, no file and no clock. What comes in is anybody's: every line is checked
before anything is made of it, and a line that is wrong says why in words.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, TypeVar

from django.utils.translation import gettext_noop
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from clawweb import sentences
from rollouts.rendering import whole_text

VERSION = 1
MAX_LINE = 8 * 1024 * 1024  # bytes; a request of at most 4 MB and its reply fit
MAX_DEPTH = 32  # of lists and objects in each other
MAX_SESSION_NAME = 128  # as a client calls a session
Line = dict[str, Any]
Shape = TypeVar("Shape", bound=BaseModel)
Item = TypeVar("Item")
# The first wrong item is told; an error for each of a million would take gigabytes.
Several = Annotated[list[Item], Field(fail_fast=True)]


class BadLine(ValueError):
    """A line that cannot be taken; the message says why."""


def parse_line(raw: bytes) -> Line:
    """One line of a file as an object whose texts any database can hold; BadLine otherwise."""
    if len(raw) > MAX_LINE:
        raise BadLine(sentences.LINE_TOO_LONG % {"n": MAX_LINE // 1024 // 1024})
    try:
        line = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_number)
    except UnicodeDecodeError as exc:
        raise BadLine(gettext_noop("it is not UTF-8 text")) from exc
    except RecursionError as exc:
        raise BadLine(_TOO_DEEP) from exc
    except ValueError as exc:
        raise BadLine(sentences.NOT_JSON % {"why": str(exc)[:120]}) from exc
    if not isinstance(line, dict):
        raise BadLine(gettext_noop("it is not a JSON object"))
    _check(line, 0)
    return dict(storable(line))


def kind_of(line: Line) -> Literal["session", "turn", "openclaw", "openclaw_score"]:
    """What the line is: one of ours, or one of OpenClaw-RL's record files; BadLine otherwise."""
    if line.get("type") in ("session", "turn"):
        if line.get("version") != VERSION:
            raise BadLine(sentences.OTHER_FORMAT % {"n": VERSION})
        return "session" if line["type"] == "session" else "turn"
    if isinstance(line.get("session_id"), str):
        if "messages" in line:
            return "openclaw"
        if {"score", "accepted", "votes"} & set(line):
            return "openclaw_score"
    raise BadLine(gettext_noop("it is no session or turn of ours, and no record of OpenClaw-RL"))


def shape_of(line: Line) -> str:
    """The shape of the file that such a line comes from."""
    return "openclaw" if kind_of(line).startswith("openclaw") else "conversations"


_TOO_DEEP = sentences.LINE_TOO_DEEP % {"n": MAX_DEPTH}
_TOO_LARGE = gettext_noop("it holds a number that is too large")


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON's")


def _check(value: Any, depth: int) -> None:
    """BadLine where it nests deeper, or holds a larger number, than a row can."""
    if depth > MAX_DEPTH:
        raise BadLine(_TOO_DEEP)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadLine(_TOO_LARGE)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
        raise BadLine(_TOO_LARGE)
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, depth + 1)


def storable(value: Any) -> Any:
    """The value with what databases refuse in a text replaced: NUL and halves of surrogate pairs.
    ValueError when it nests too deep to be read."""
    try:
        return _storable(value)
    except RecursionError as exc:
        raise ValueError("it nests too deep") from exc


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return _storable_text(value)
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {_storable_text(name): _storable(item) for name, item in value.items()}
    return value


def _storable_text(text: str) -> str:
    return whole_text(text).replace("\0", "\ufffd")


# JSON lets them stand in a string, and many readers end a line at them.
LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def write_line(line: Mapping[str, Any]) -> str:
    """The object as a line of a file, with its end."""
    text = json.dumps(line, ensure_ascii=False, default=_as_text, allow_nan=False)
    return text.translate(LINE_ENDS) + "\n"


def _as_text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no JSON")


# Our own shape: a line for each session, then one for each of its turns, parents first


def _message(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") not in ("system", "developer", "user", "assistant", "tool"):
        raise ValueError("a message's role is system, developer, user, assistant or tool")
    content = message.get("content")
    if isinstance(content, list):  # parts, as newer clients write them
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(part for part in parts if isinstance(part, str))
    if content is not None and not isinstance(content, str):
        raise ValueError("a message's content is text")
    known = {name: value for name, value in message.items() if value is not None}
    if not all(isinstance(known.get(name, ""), str) for name in ("name", "tool_call_id")):
        raise ValueError("a message's name and tool_call_id are text")
    if "tool_calls" in known:
        known["tool_calls"] = tool_calls(known["tool_calls"])
    return {**known, "content": content or ""}


def tool_calls(value: Any) -> list[dict[str, Any]]:
    """The calls as they are, their arguments as the text that OpenAI has them be."""
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
        raise ValueError("tool_calls is a list of objects")
    return [_call(call) for call in value]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(call.get("id"), str) or not isinstance(function, dict):
        raise ValueError("a tool call has an id and a function")
    arguments = function.get("arguments", "")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(function.get("name"), str) or not isinstance(arguments, str):
        raise ValueError("a tool call's function has a name, and arguments as text")
    return {**call, "function": {**function, "arguments": arguments}}


# Control, format and private characters, and halves of pairs. Not unassigned ones: which those are
# another library, another Python or another installation may see otherwise (the newest emoji).
_UNPRINTABLE = ("Cc", "Cf", "Co", "Cs")


def is_printable(text: str) -> bool:
    """Whether a caller may call something so: spaces of any width are letters, too, as French has
    them before a question mark; str.isprintable takes but the plain one."""
    return not any(unicodedata.category(letter) in _UNPRINTABLE for letter in text)


def _printable(name: str) -> str:
    if not is_printable(name):
        raise ValueError("a caller's name for a session is printable text")
    return name


def zoned(at: datetime) -> datetime | None:
    """A time without a zone counts as UTC; one that UTC has no year for is none. The calendar's
    first and last day are no times: many programs write them for "never", and a page would have to
    show them where the clock is behind or ahead."""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    try:
        at = at.astimezone(UTC)
    except OverflowError as exc:
        raise ValueError("a time lies between the years 1 and 9999") from exc
    return at if at.date() not in (date.min, date.max) else None


Message = Annotated[dict[str, Any], AfterValidator(_message)]
Time = Annotated[datetime, AfterValidator(zoned)]
Calls = Annotated[Several[dict[str, Any]], AfterValidator(tool_calls)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
CallersName = Annotated[
    str, Field(min_length=1, max_length=MAX_SESSION_NAME), AfterValidator(_printable)
]


class Reason(BaseModel):
    """A chip with the hint that it stood for when it was ticked."""

    slug: Annotated[str, Field(max_length=50)]
    hint: str = ""


class FeedbackLine(BaseModel):
    """What someone said about the reply, once. The last one counts."""

    value: Literal[1, -1] | None = None
    reasons: Several[Reason] = []
    comment: str = ""
    correction: str = ""
    final: bool = False
    source: Literal["ui", "api"] = "ui"
    adapter: Annotated[str, Field(max_length=120)] = ""
    content_hash: Annotated[str, Field(max_length=64)] = ""
    at: Time | None = None


class SessionLine(BaseModel):
    type: Literal["session"] = "session"
    version: Literal[1]
    id: Name
    external_id: CallersName | None = None
    title: Annotated[str, Field(max_length=200)] = ""
    locked: bool = False
    pinned: bool = False
    temporary: bool = False  # its texts are kept nowhere
    created_at: Time | None = None
    updated_at: Time | None = None
    closed_at: Time | None = None
    done: bool = False  # its client said that it is over


class TurnLine(BaseModel):
    type: Literal["turn"] = "turn"
    version: Literal[1]
    id: Name
    session: Name
    parent: Name | None = None
    # What lies before it was not in the prompt any more; the turn's own id: `input` is all of it
    context_start: Name | None = None
    turn_type: Literal["main", "side"] = "main"
    turn_type_from: Annotated[str, Field(max_length=40)] = ""
    source: Literal["ui", "api"] = "ui"
    model: Annotated[str, Field(pattern=r"^(agent|base|agent@v[0-9]{1,9})$")] = "agent"
    state: Literal["complete", "stopped", "interrupted", "failed"] = "complete"
    recorded: bool = True
    input: Several[Message] = []
    reply: str = ""
    tool_calls: Calls = []
    reasoning: str = ""
    tools: Several[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    prompted_hints: Several[str] = []
    instructions: str = ""
    trial: bool = False  # a version on trial gave it
    adapter: Annotated[str, Field(max_length=120)] = ""  # "" = the base model
    adapter_version: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    fallback: Annotated[str, Field(max_length=200)] = ""
    sampling: dict[str, Any] = {}
    finish_reason: Annotated[str, Field(max_length=16)] = ""
    error: str = ""
    error_code: Annotated[str, Field(max_length=40)] = ""
    created_at: Time | None = None
    started_at: Time | None = None
    first_token_at: Time | None = None
    finished_at: Time | None = None
    feedback: Several[FeedbackLine] = []


def checked(shape: type[Shape], line: Line) -> Shape:
    """The line as `shape`; BadLine names what is wrong first."""
    try:
        return shape.model_validate(line)
    except ValidationError as exc:
        first = exc.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = str(first["msg"]).removeprefix("Value error, ")
        raise BadLine(f"{where}: {what}" if where else what) from exc


# TRL's conversational shapes (its 1.x: "unpaired preference", "preference", "language modeling")


def kto_line(prompt: Sequence[Any], reply: Any, label: bool, more: Line) -> Line:
    return {"prompt": list(prompt), "completion": [reply], "label": label, **more}


def dpo_line(prompt: Sequence[Any], chosen: Any, rejected: Any, more: Line) -> Line:
    return {"prompt": list(prompt), "chosen": [chosen], "rejected": [rejected], **more}


def sft_line(prompt: Sequence[Any], reply: Any, more: Line) -> Line:
    return {"messages": [*prompt, reply], **more}
