"""OpenClaw-RL's record files as we read them. Pure; writes none.

A line holds one main turn: session_id, turn, timestamp, messages (all of them), prompt_text,
response_text (rendered, with the template's control tokens), tool_calls, next_state. The scores
lie in a file beside it, whose name ends in _prm.jsonl.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from clawweb.records import Calls, Message, Name, Several, zoned

# What chat templates put after a reply.
_END = re.compile(r"(?:\s*(?:<\|[A-Za-z_]{1,32}\|>|</s>|<eos>|<end_of_turn>))+\s*\Z")
_TOOL_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)


def _answered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not messages:
        raise ValueError("there is no message")
    return messages


def _said_at(timestamp: str) -> datetime | None:
    """Taken as UTC where it names no zone; None when it is no time at all."""
    try:
        said = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return zoned(said)


def _in_range(timestamp: str) -> str:
    _said_at(timestamp)
    return timestamp


class OpenClawTurn(BaseModel):
    session_id: Name
    turn: int = 0
    # Of the machine that wrote it, without a zone
    timestamp: Annotated[str, AfterValidator(_in_range)] = ""
    messages: Annotated[Several[Message], AfterValidator(_answered)]
    response_text: str = ""
    tool_calls: Calls | None = None

    @property
    def reply(self) -> str:
        """The text alone: no reasoning, no control tokens, no calls (they are in `tool_calls`)."""
        text = _END.sub("", self.response_text).rpartition("</think>")[2]
        if self.tool_calls:
            text = _TOOL_CALL.sub("", text)
        return text.strip()

    @property
    def reasoning(self) -> str:
        before = self.response_text.rpartition("</think>")[0]
        return before.strip().removeprefix("<think>").strip()

    @property
    def at(self) -> datetime | None:
        """When it was recorded; None when the line does not say."""
        return _said_at(self.timestamp)

    @property
    def name(self) -> str:
        """Names the turn by its content: the numbers start again when upstream does."""
        plain = [self.session_id, self.turn, self.timestamp, self.messages, self.response_text]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


class OpenClawScore(BaseModel):
    session_id: Name
    turn: int
    score: Annotated[float, Field(ge=-1, le=1)] | None = None
    accepted: bool | None = None
    hint: str | None = None
