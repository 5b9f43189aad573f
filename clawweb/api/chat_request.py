"""What may stand in a chat completion request, and what it becomes."""

from __future__ import annotations

from typing import Any, Literal

from django.http import HttpRequest
from pydantic import BaseModel, ConfigDict, Field

from clawweb.config import config
from rollouts.types import Message, SamplingParams

MAX_SESSION_NAME = 128
MAX_ONCE = 255
_YES = ("1", "true", "yes", "on")


class Unacceptable(Exception):
    """A request that cannot be served; becomes OpenAI's error shape."""

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class ChatMessage(BaseModel):
    """One message; content is text or a list of text parts."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None

    def plain(self) -> Message:
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str) or self.content is None:
            return Message(role=role, content=self.content or "")
        others = {str(part.get("type")) for part in self.content} - {"text"}
        if others:
            raise Unacceptable(
                f"Content of type {', '.join(sorted(others))} is not read here: send text.",
                param="messages",
            )
        texts = [part.get("text") for part in self.content]
        if not all(isinstance(text, str) for text in texts):
            raise Unacceptable("A part of type text has a string as its text.", param="messages")
        return Message(role=role, content="".join(map(str, texts)))


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """The fields of OpenAI's request that are served; others are ignored, as clients expect."""

    model_config = ConfigDict(extra="ignore")

    model: str = "agent"
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int = Field(1, ge=1, le=8)
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    tools: list[dict[str, Any]] | None = None
    session_id: str | None = Field(None, min_length=1, max_length=MAX_SESSION_NAME)
    turn_type: Literal["main", "side"] | None = None
    session_done: bool = False

    def plain_messages(self) -> list[Message]:
        """Roles and texts; the last one is what is answered."""
        if self.tools:
            raise Unacceptable("This agent has no tools yet: leave `tools` out.", param="tools")
        messages = [message.plain() for message in self.messages]
        if messages[-1]["role"] == "assistant":
            raise Unacceptable("The last message must not be the assistant's.", param="messages")
        return messages

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> list[SamplingParams]:
        """One set of parameters per choice; a seed counts on, so that the choices differ."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        limit = self.max_completion_tokens or self.max_tokens or config().max_reply_tokens
        return [
            SamplingParams(
                temperature=0.7 if self.temperature is None else self.temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                top_k=self.top_k or 0,
                max_tokens=limit,
                seed=None if self.seed is None else self.seed + index,
                stop=tuple(stop),
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=tuple((self.logit_bias or {}).items()),
            )
            for index in range(self.n)
        ]


def headers_of(request: HttpRequest) -> dict[str, str]:
    """Session, turn type, done and what marks a re-sent request, from the headers, checked; absent
    ones are left out."""
    found: dict[str, str] = {}
    session = request.headers.get("X-Session-Id", "")
    if session:
        if len(session) > MAX_SESSION_NAME or not session.isprintable():
            raise Unacceptable(f"X-Session-Id has at most {MAX_SESSION_NAME} printable characters.")
        found["session"] = session
    kind = request.headers.get("X-Turn-Type", "").lower()
    if kind:
        if kind not in ("main", "side"):
            raise Unacceptable("X-Turn-Type is main or side.")
        found["turn_type"] = kind
    if request.headers.get("X-Session-Done", "").lower() in _YES:
        found["done"] = "yes"
    once = request.headers.get("Idempotency-Key", "")
    if once:
        if len(once) > MAX_ONCE or not once.isprintable():
            raise Unacceptable(f"Idempotency-Key has at most {MAX_ONCE} printable characters.")
        found["once"] = once
    retries = request.headers.get("X-Stainless-Retry-Count", "")
    if retries.isdecimal() and int(retries[:9]) > 0:
        found["retried"] = "yes"
    return found
