"""OpenClaw-RL's record files as we read them. Pure; writes none.

A line holds one main turn: session_id, turn, timestamp, messages (all of them), prompt_text,
response_text (rendered, with the template's control tokens), tool_calls, next_state. The scores
lie in a file beside it, whose name ends in _prm.jsonl.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from clawweb.records import Calls, Message, Name

# What chat templates put after a reply.
_END = re.compile(r"(?:\s*(?:<\|[A-Za-z_]{1,32}\|>|</s>|<eos>|<end_of_turn>))+\s*\Z")
_TOOL_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)


def _answered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not messages:
        raise ValueError("there is no message")
    return messages


class OpenClawTurn(BaseModel):
    session_id: Name
    turn: int = 0
    timestamp: str = ""  # of the machine that wrote it, without a zone
    messages: Annotated[list[Message], AfterValidator(_answered)]
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
        """When it was recorded, taken as UTC; None when the line does not say."""
        try:
            said = datetime.fromisoformat(self.timestamp)
        except ValueError:
            return None
        return said if said.tzinfo else said.replace(tzinfo=UTC)

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
