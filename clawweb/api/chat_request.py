"""What may stand in a chat completion request, and what it becomes."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from clawweb.api.openai_errors import Unacceptable, first_problem
from clawweb.config import config
from clawweb.records import CallersName, Several, storable
from rollouts.types import Message, ReplyShape, SamplingParams

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # OpenAI's, for functions and schemas

# OpenAI's fields that mean nothing here. Clients send them; what they ask for costs nobody anything
# when it does not happen.
WITHOUT_EFFECT = {
    *("metadata", "prediction", "prompt_cache_key", "prompt_cache_options"),
    *("prompt_cache_retention", "reasoning_effort", "safety_identifier", "service_tier", "store"),
    *("user", "verbosity"),
}
# Those that mean something that is not done: fine as null, refused as anything else.
NOT_HERE = {"audio", "function_call", "functions", "moderation", "web_search_options"}


def _json_object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise PydanticCustomError("object_expected", "an object is expected")
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as exc:  # no database keeps these
        raise PydanticCustomError("not_finite", "it holds a number that is too large") from exc
    return value


Object = Annotated[dict[str, Any], BeforeValidator(_json_object)]


class Part(BaseModel):
    """What every part of a request agrees on: no guessing of types; null is as not given."""

    model_config = ConfigDict(extra="ignore", strict=True)

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class Function(Part):
    name: str
    arguments: str = ""


class ToolCall(Part):
    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(Part):
    """One message; content is text or a list of text parts. Fields that only other servers write
    (refusal, annotations, reasoning_content, …) are left out."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Several[Object] | None = None
    name: str | None = None
    tool_calls: Several[ToolCall] | None = None
    tool_call_id: str | None = None

    def plain(self, where: str) -> Message:
        """As it is stored; `where` names the message in an error."""
        message = Message(
            role="system" if self.role == "developer" else self.role, content=self._text(where)
        )
        if self.name:
            message["name"] = self.name
        if self.role == "assistant" and self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.role == "tool":
            if not self.tool_call_id:
                raise Unacceptable(
                    f"Missing required parameter: '{where}.tool_call_id'.",
                    param=f"{where}.tool_call_id",
                    code="missing_required_parameter",
                )
            message["tool_call_id"] = self.tool_call_id
        return message

    def _text(self, where: str) -> str:
        if self.content is None:
            if self.role == "assistant":
                return ""
            raise Unacceptable(
                f"Invalid value for 'content': expected a string, got null. ({where})",
                param=f"{where}.content",
            )
        if isinstance(self.content, str):
            return self.content
        others = {str(part.get("type")) for part in self.content} - {"text"}
        if others:
            raise Unacceptable(
                f"Content of type {', '.join(sorted(others))} is not read here: send text.",
                param=f"{where}.content",
            )
        texts = [part.get("text") for part in self.content]
        if not all(isinstance(text, str) for text in texts):
            raise Unacceptable(
                "A part of type text has a string as its text.", param=f"{where}.content"
            )
        return "".join(map(str, texts))


class StreamOptions(Part):
    include_usage: bool = False
    include_obfuscation: bool = False  # without effect


class FunctionDefinition(Part):
    name: str
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Tool(Part):
    type: Literal["function"] = "function"
    function: FunctionDefinition

    def plain(self) -> dict[str, Any]:
        """With the fields and the order that vLLM hands to a chat template."""
        function = self.function.model_dump()
        if self.function.strict is None:
            del function["strict"]
        return {"type": "function", "function": function}


class ChatRequest(Part):
    """OpenAI's request, our own fields (session_id, turn_type, session_done) and vLLM's sampling.
    Any other field is refused, as OpenAI does."""

    model: str = "agent"
    messages: Several[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int = Field(1, ge=1, le=8)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | Several[str] | None = None
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = Field(None, min_length=1, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | Object | None = None
    parallel_tool_calls: bool = True
    response_format: Object | None = None
    modalities: Several[Literal["text"]] | None = None
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    session_id: CallersName | None = None
    turn_type: Literal["main", "side"] | None = None
    session_done: bool = False

    @classmethod
    def read(cls, body: bytes) -> ChatRequest:
        """The request in `body`, checked; raises Unacceptable in OpenAI's words."""
        try:
            request = cls.model_validate_json(body)
        except ValidationError as exc:
            raise first_problem(exc) from exc
        request._check()
        return request

    @model_validator(mode="before")
    @classmethod
    def only_known_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        absent = {name for name in NOT_HERE if data.get(name) is None}
        if old := sorted({"functions", "function_call"} & set(data) - absent):
            raise Unacceptable(
                f"'{old[0]}' is not read here: send 'tools' and 'tool_choice'.", param=old[0]
            )
        known = {*cls.model_fields, *WITHOUT_EFFECT, *absent}
        unknown = [name for name in data if name not in known]
        if unknown:
            s = "s" if len(unknown) > 1 else ""
            names = ", ".join(name[:64] for name in unknown[:8])
            raise Unacceptable(f"Unrecognized request argument{s} supplied: {names}")
        # A session's name is refused instead, below.
        return {name: data[name] if name == "session_id" else storable(data[name]) for name in data}

    def _check(self) -> None:
        """What no single field can say."""
        if self.stream_options is not None and not self.stream:
            raise Unacceptable(
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                param="stream_options",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise Unacceptable(
                "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
                param="top_logprobs",
            )
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise Unacceptable(
                "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not "
                "supported.",
                param="max_tokens",
                code="invalid_parameter_combination",
            )
        _check_stop(self.stop_strings)
        _check_bias(self.logit_bias or {})
        _check_tools(self.tools, self.tool_choice)
        _check_format(self.response_format)

    def plain_messages(self) -> list[Message]:
        """Roles, texts, tool calls and their results; the last one is what is answered."""
        messages = [m.plain(f"messages[{i}]") for i, m in enumerate(self.messages)]
        if messages[-1]["role"] == "assistant":
            raise Unacceptable("The last message must not be the assistant's.", param="messages")
        calling = False
        for i, message in enumerate(messages):
            if message["role"] == "tool" and not calling:
                raise Unacceptable(
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceding message with 'tool_calls'.",
                    param=f"messages.[{i}].role",
                )
            if message["role"] != "tool":
                calling = bool(message.get("tool_calls"))
        return messages

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def shape(self) -> ReplyShape:
        """Tools and format of the reply."""
        form = self.response_format
        return ReplyShape(
            tools=tuple(tool.plain() for tool in self.tools or ()),
            tool_choice=self.tool_choice,
            response_format=None if (form or {}).get("type") == "text" else form,
        )

    def sampling(self) -> list[SamplingParams]:
        """One set of parameters per choice; a seed counts on, so that the choices differ."""
        limit = self.max_completion_tokens or self.max_tokens or config().max_reply_tokens
        constrained = self.shape().is_constrained(parallel_tool_calls=self.parallel_tool_calls)
        temperature = 0.7 if self.temperature is None else self.temperature
        if temperature:
            temperature = max(temperature, 0.01)  # less is 0.01 to the server: what it samples by
        return [
            SamplingParams(
                temperature=temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                top_k=max(self.top_k or 0, 0),
                max_tokens=limit,
                seed=None if self.seed is None else _as_int64(self.seed + index),
                stop=tuple(self.stop_strings),
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=tuple((self.logit_bias or {}).items()),
                min_p=self.min_p or 0.0,
                repetition_penalty=self.repetition_penalty or 1.0,
                constrained=constrained,
                parallel_tool_calls=self.parallel_tool_calls,
                top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            )
            for index in range(self.n)
        ]


def _as_int64(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63


def _check_stop(stop: list[str]) -> None:
    if len(stop) > 4:
        raise Unacceptable(
            "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an "
            f"array with length {len(stop)} instead.",
            param="stop",
            code="array_above_max_length",
        )
    if not all(stop):
        raise Unacceptable("Invalid 'stop': a stop sequence is not empty.", param="stop")


def _check_bias(bias: dict[str, float]) -> None:
    for token, value in bias.items():
        if not (token.isascii() and token.isdigit()):
            raise Unacceptable(
                f"Invalid key in 'logit_bias': {token[:20]}. You should only be submitting "
                "non-negative integers.",
                param="logit_bias",
            )
        if not -100 <= value <= 100:
            raise Unacceptable(
                f"Invalid 'logit_bias': the bias of {token} is between -100 and 100.",
                param="logit_bias",
            )


def _check_tools(tools: list[Tool] | None, choice: str | dict[str, Any] | None) -> None:
    names = [tool.function.name for tool in tools or ()]
    for i, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise Unacceptable(
                f"Invalid 'tools[{i}].function.name': string does not match pattern. Expected a "
                f"string that matches the pattern '^{_NAME.pattern}$'.",
                param=f"tools[{i}].function.name",
                code="invalid_value",
            )
    if choice is None:
        return
    if not tools:
        raise Unacceptable(
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are "
            "specified.",
            param="tool_choice",
        )
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if (kind := choice.get("type", "function")) != "function":
            words = f"Tool choice of type {str(kind)[:40]!r} is not read here: send only the tools"
            raise Unacceptable(f"{words} that are allowed, or name one.", param="tool_choice")
        if name not in names:
            raise Unacceptable(
                f"Tool choice '{name}' not found in 'tools' parameter.", param="tool_choice"
            )


def _check_format(asked: dict[str, Any] | None) -> None:
    if asked is None or asked.get("type") in ("text", "json_object"):
        return
    if asked.get("type") != "json_schema":
        raise Unacceptable(
            f"Invalid value: '{str(asked.get('type'))[:40]}'. Supported values are: 'json_object', "
            "'json_schema', and 'text'.",
            param="response_format.type",
            code="invalid_value",
        )
    schema = asked.get("json_schema")
    for field, kind in (("name", str), ("schema", dict)):
        if not isinstance(schema, dict) or not isinstance(schema.get(field), kind):
            raise Unacceptable(
                f"Missing required parameter: 'response_format.json_schema.{field}'.",
                param=f"response_format.json_schema.{field}",
                code="missing_required_parameter",
            )
