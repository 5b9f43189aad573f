"""A reply out of the lines of vLLM's event stream. Pure: text in, records out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from rollouts.errors import BadReply, EngineRefused, EngineUnavailable
from rollouts.types import Delta, Policy, Rollout, SamplingParams


async def lines_of(texts: AsyncIterator[str]) -> AsyncIterator[str]:
    """The stream's lines, which end at a line feed alone: what a model writes may hold other
    characters at which `str.splitlines`, and so httpx, would end one."""
    parts: list[str] = []
    async for text in texts:
        first, *rest = text.split("\n")
        parts.append(first)
        for begun in rest:
            yield "".join(parts).removesuffix("\r")
            parts = [begun]
    if rest_of := "".join(parts):
        yield rest_of


class Gathered:
    """The pieces of a streamed reply, in order."""

    def __init__(self, *, shows_logprobs: bool = False) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.prompt_ids: tuple[int, ...] = ()
        self.finish_reason = ""
        # Entries of tokens whose text a parser of vLLM still holds back; None = nobody asked.
        self._withheld: list[dict[str, Any]] | None = [] if shows_logprobs else None

    def take(self, line: str) -> Delta | None:
        """One line of the event stream; None when it adds nothing to the reply."""
        if not line.startswith("data: ") or line == "data: [DONE]":
            return None
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise _error(chunk["error"])
        prompt_ids = tuple(chunk.get("prompt_token_ids") or ())
        self.prompt_ids = prompt_ids or self.prompt_ids
        if not chunk.get("choices"):
            return None
        choice = chunk["choices"][0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        said = choice["delta"]
        text = _storable(said.get("content"))
        reasoning = _storable(said.get("reasoning") or said.get("reasoning_content"))
        calls = tuple(self._call_delta(call) for call in said.get("tool_calls") or ())
        ids = tuple(choice.get("token_ids") or ())
        entries = (choice.get("logprobs") or {}).get("content") or ()
        logprobs = tuple(_number(entry["logprob"]) for entry in entries)
        self.text.append(text)
        self.reasoning.append(reasoning)
        self.ids.extend(ids)
        self.logprobs.extend(logprobs)
        if not (text or reasoning or calls or ids or prompt_ids):
            return None
        return Delta(
            text=text,
            token_ids=ids,
            logprobs=logprobs,
            prompt_ids=prompt_ids or None,
            reasoning=reasoning,
            tool_calls=calls,
            shown_logprobs=self._shown(choice, entries, text, is_other=bool(reasoning or calls)),
        )

    def _call_delta(self, call: dict[str, Any]) -> dict[str, Any]:
        """What is new of a tool call, with the fields that OpenAI gives; written down here, too.
        Its name and id come first and once."""
        index, function = call["index"], call.get("function") or {}
        arguments = _storable(function.get("arguments"))
        if index < len(self.calls):
            self.calls[index]["function"]["arguments"] += arguments
            return {"index": index, "function": {"arguments": arguments}}
        if index > len(self.calls) or not call.get("id") or not function.get("name"):
            raise BadReply("a tool call goes on that has not begun")
        begun = {"id": call["id"], "type": "function"}
        named = {"name": _storable(function["name"]), "arguments": arguments}
        self.calls.append({**begun, "function": named})
        return {"index": index, **begun, "function": dict(self.calls[index]["function"])}

    def _shown(
        self, choice: dict[str, Any], entries: Any, text: str, *, is_other: bool
    ) -> tuple[dict[str, Any], ...]:
        """The log-probs of `text`: not those of reasoning, of tool calls or of the end token."""
        if self._withheld is None:
            return ()
        shown = [*self._withheld, *entries]
        if choice.get("finish_reason") == "stop" and choice.get("stop_reason") is None:
            shown = shown[:-1]
        self._withheld = [] if text or is_other else shown
        return tuple(shown) if text and not is_other else ()

    def rollout(self, policy: Policy, params: SamplingParams) -> Rollout:
        if self.finish_reason in ("", "abort"):  # a server that is stopped aborts its replies
            raise EngineUnavailable("the stream ended before the reply did")
        if not self.prompt_ids:
            raise BadReply("the engine gave no prompt ids")
        whole = len(self.logprobs) == len(self.ids) and bool(self.ids)
        return Rollout(
            text="".join(self.text),
            prompt_ids=self.prompt_ids,
            response_ids=tuple(self.ids),
            logprobs=tuple(self.logprobs) if whole else None,
            finish_reason=self.finish_reason,
            policy=policy,
            params=params,
            reasoning="".join(self.reasoning),
            tool_calls=tuple(self.calls),
        )


def _error(said: Any) -> Exception:
    """What the server says in the place of a piece: its own fault, or a no."""
    said = said if isinstance(said, dict) else {"message": said}
    code, message = said.get("code"), str(said.get("message", said))
    is_fault = isinstance(code, int) and code >= 500
    return EngineUnavailable(message) if is_fault else EngineRefused(message)


def _storable(text: str | None) -> str:
    """A model may sample NUL, which PostgreSQL has no place for; ids stay as they were sampled."""
    return (text or "").replace("\0", "\ufffd")


def _number(logprob: float | None) -> float:
    """A server whose cache holds a NaN has none to tell: its text is not to be trusted either."""
    if logprob is None:
        raise BadReply("a sampled token has no log-prob")
    return float(logprob)
