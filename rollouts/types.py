"""The plain records of a rollout. Data only: no model, no table, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NotRequired, TypedDict


class Message(TypedDict):
    """One chat message as the OpenAI API writes it; content is always text here."""

    role: str
    content: str
    name: NotRequired[str]  # who of several in this role speaks
    # An assistant's: {"id", "type": "function", "function": {"name", "arguments": JSON as text}}
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]  # a tool's: which call this is the result of


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What answers: the base model (version 0, no adapter) or base plus one adapter version."""

    adapter: str | None = None  # the name it is served under; never reused
    version: int = 0
    path: str | None = None  # absolute folder of the adapter's files


BASE = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a reply is sampled. The defaults sample from the model's own distribution at T = 0.7."""

    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    max_tokens: int | None = 512  # None = whatever the context has left
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[str, float], ...] = ()
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    constrained: bool = False  # a grammar says what may be sampled (ReplyShape.is_constrained)
    parallel_tool_calls: bool = True
    top_logprobs: int | None = None  # alternatives shown to the caller; None = asked for nothing

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SamplingParams:
        """The params that `dataclasses.asdict` made, after a trip through JSON (tuples became
        lists)."""
        bias = tuple((str(token), float(value)) for token, value in values.get("logit_bias", ()))
        return cls(**{**values, "stop": tuple(values.get("stop", ())), "logit_bias": bias})

    @property
    def keeps_behaviour_logprobs(self) -> bool:
        """Whether log-softmax(logits / T) is the distribution that was sampled from."""
        return (
            self.temperature > 0
            and self.top_p >= 1.0
            and self.top_k == 0
            and self.presence_penalty == 0
            and self.frequency_penalty == 0
            and not self.logit_bias
            and self.min_p == 0
            and self.repetition_penalty == 1
            and not self.constrained
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyShape:
    """What a reply may be, as OpenAI writes it: tools that it may call, a format of its text."""

    tools: Sequence[dict[str, Any]] = ()  # rendered into the prompt, whatever the choice
    tool_choice: str | Mapping[str, Any] | None = None  # None = auto
    response_format: Mapping[str, Any] | None = None

    def is_constrained(self, *, parallel_tool_calls: bool = True) -> bool:
        """Whether the engine samples under a grammar."""
        if self.response_format and self.response_format.get("type") != "text":
            return True
        if not self.tools or self.tool_choice == "none":
            return False
        is_strict = any(tool["function"].get("strict") for tool in self.tools)
        return self.tool_choice not in (None, "auto") or is_strict or not parallel_tool_calls


PLAIN = ReplyShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of a reply as it is sampled."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    prompt_ids: tuple[int, ...] | None = None  # in the first delta only
    reasoning: str = ""  # the model's own; no caller sees it
    tool_calls: tuple[dict[str, Any], ...] = ()  # OpenAI's deltas: an index, and what is new of it
    shown_logprobs: tuple[dict[str, Any], ...] = ()  # OpenAI's entries of `text`, when asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled reply with the ids and log-probs of the engine that sampled it."""

    text: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None  # None when the engine gave none; never filled up
    finish_reason: str  # "stop", "length", "tool_calls"
    policy: Policy
    params: SamplingParams
    reasoning: str = ""  # stands before the text, and in the ids
    tool_calls: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """An earlier exchange that shows what the user wants."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One rated turn as the trainer sees it. Everything but `messages` comes from sampling,
    verbatim."""

    id: int
    messages: Sequence[Message]  # the unhinted prompt, already defused (rollouts.rendering)
    prompt_ids: Sequence[int]  # what was sampled from: of `messages` under `prompted_hints`
    response_ids: Sequence[int]
    rollout_logprobs: Sequence[float] | None  # log-softmax(logits / T) of the sampled ids, or None
    temperature: float
    template_hash: str
    reward: float | None  # +1, -1 or None (no vote)
    hint: str | None  # what the user said about the reply, one or two sentences
    correction: str | None  # what the user wanted instead
    other_hints: Sequence[str] = ()  # candidates beside `hint`; the trainer chooses one of all
    prompted_hints: Sequence[str] = ()  # stood in the prompt; defused, as `hint` is
    taken_back: Sequence[str] = ()  # those of them that hold no more: they teach nothing
    unheard: Sequence[str] = ()  # hints that are not distilled: training/heard.py says which
    tools: Sequence[dict[str, Any]] = ()  # stood in the prompt; defused, too
    demonstrations: Sequence[Demonstration] = ()  # the teacher sees them before the question
    at: datetime | None = None  # when it was asked (aware): templates may print the date
    version_age: int = 0  # versions between the one that answered and the parent being trained

    @property
    def told(self) -> tuple[str, ...]:
        """What was said of this reply, or what it was told and followed."""
        followed = [hint for hint in self.prompted_hints if hint not in self.taken_back]
        return lessons(self.hint, self.correction, self.reward, followed)

    @property
    def lessons(self) -> tuple[str, ...]:
        """The hints that teach this reply."""
        return tuple(hint for hint in self.told if hint not in self.unheard)

    @property
    def is_hinted(self) -> bool:
        return bool(self.lessons or self.correction)


def lessons(
    hint: str | None, correction: str | None, reward: float | None, followed: Sequence[str]
) -> tuple[str, ...]:
    """A rated reply's own hint; when it was liked without a word, the hints that it followed."""
    if hint or correction:
        return (hint,) if hint else ()
    return tuple(followed) if reward is not None and reward > 0 else ()
