"""How far a version has moved from the base on subjects that nobody rated, and how far it may.

Drift is KL(base || version) per token on the base's greedy replies to the neutral prompts. What a
user asked for explains some of it: the limit is what the base itself drifts with the hints in its
prompt, or after an example of what they wrote instead if that is more; and a margin.
What is measured is kept in `Base.cache`.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jinja2 import TemplateError
from peft import PeftModel
from torch import Tensor

from rollouts.hints import demonstrated_messages, hinted_messages, joined
from rollouts.types import Demonstration, Message
from training.adapters import adapter_tensors, wearing
from training.base import Base
from training.config import HINT_TOKENS, TrainConfig
from training.forward import hidden_of, kl_between
from training.sampling import sample_replies

NEWEST_HINTS = 4  # that a perfect student is taken to follow at once
NEWEST_EXAMPLES = 2  # of corrections: each is a whole exchange before every neutral prompt

Prompts = tuple[tuple[int, ...], ...]  # the neutral ones, told something
Pairs = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a user asked for, newest first: in hints, and in questions with the replies that they
    wrote instead of the model's."""

    hints: tuple[str, ...] = ()
    examples: tuple[Demonstration, ...] = ()


def drift(
    base: Base,
    model: PeftModel,
    neutral: Sequence[str],
    config: TrainConfig,
    check: Callable[[], None],
) -> float:
    """KL(base || what `model` is now) in nats per token."""
    place = ("drift", weights_sha256(model), tuple(neutral), config.gate_tokens)
    found = base.cache.get(place)
    if isinstance(found, float):
        return found
    pairs = _greedy_pairs(base, model, neutral, config, check)
    value = _drift_of(base, model, neutral, pairs, check)
    base.cache[place] = value
    return value


def drift_limit(
    base: Base,
    model: PeftModel,
    neutral: Sequence[str],
    wishes: Wishes,
    config: TrainConfig,
    check: Callable[[], None],
) -> float:
    """The most that a version may drift: what the user's wishes explain, and `gate_drift_margin`.

    What they explain is the larger of two drifts of the base itself: with the newest hints in its
    prompt (as many as fit; of a long one its beginning), and after an example of what the user
    wrote instead (the mean over the newest ones that fit). 0 without any wish.
    """
    said = filter(None, (hint.strip() for hint in wishes.hints))
    newest = list(dict.fromkeys(said))[:NEWEST_HINTS]
    room = config.max_tokens - config.gate_tokens

    def fits(prompts: Prompts) -> bool:
        return bool(prompts) and max(map(len, prompts)) <= room

    kept: list[str] = []
    for hint in newest:
        ways = (hint, base.beginning(hint, HINT_TOKENS))
        fitting = (each for each in ways if fits(_under(base, [*kept, each], neutral)))
        kept += islice(fitting, 1)
    shown = (_after(base, example, neutral) for example in wishes.examples)

    def explained(ways: Iterable[Prompts]) -> float:
        each = [_prompted_drift(base, model, neutral, way, config, check) for way in ways]
        return statistics.fmean(each) if each else 0.0

    told = [_under(base, kept, neutral)] if kept else []
    own = max(explained(told), explained(islice(filter(fits, shown), NEWEST_EXAMPLES)))
    return own + config.gate_drift_margin


def _under(base: Base, hints: Sequence[str], neutral: Sequence[str]) -> Prompts:
    hint = joined(hints)
    told = (hinted_messages(asked(each), hint=hint, correction=None) for each in neutral)
    return tuple(base.render(messages) for messages in told)


def _after(base: Base, example: Demonstration, neutral: Sequence[str]) -> Prompts:
    """The neutral prompts after the example; none where the template takes no exchange."""
    shown = (demonstrated_messages(asked(each), [example], hint=None) for each in neutral)
    try:
        return tuple(base.render(messages) for messages in shown)
    except (ValueError, TemplateError):
        return ()


def asked(prompt: str) -> list[Message]:
    return [Message(role="user", content=prompt)]


def _greedy_pairs(
    base: Base,
    model: PeftModel,
    neutral: Sequence[str],
    config: TrainConfig,
    check: Callable[[], None],
) -> Pairs:
    """Neutral prompts with the base's greedy replies; sampled once per base."""
    place = ("greedy", tuple(neutral), config.gate_tokens)
    found = base.cache.get(place)
    if isinstance(found, tuple):
        return found
    prompts = [base.render(asked(prompt)) for prompt in neutral]
    with wearing(model, None):
        replies = sample_replies(
            base,
            model,
            prompts,
            temperature=0.0,
            max_new_tokens=config.gate_tokens,
            seed=0,
            check=check,
        )
    pairs = tuple((prompt, reply.ids) for prompt, reply in zip(prompts, replies, strict=True))
    base.cache[place] = pairs
    return pairs


def _drift_of(
    base: Base,
    model: PeftModel,
    neutral: Sequence[str],
    pairs: Pairs,
    check: Callable[[], None],
) -> float:
    """KL(base || what `model` is now), mean over the tokens of `pairs`, nats."""
    place = ("hidden", tuple(reply for _, reply in pairs))
    base_NH = base.cache.get(place)
    if not isinstance(base_NH, Tensor):
        plain = [base.render(asked(prompt)) for prompt in neutral]
        with wearing(model, None):
            base_NH = hidden_of(base, model, tuple(zip(plain, place[1], strict=True)), check)
        base.cache[place] = base_NH
    return float(kl_between(base, base_NH, hidden_of(base, model, pairs, check)).mean())


def _prompted_drift(
    base: Base,
    model: PeftModel,
    neutral: Sequence[str],
    prompts: Prompts,
    config: TrainConfig,
    check: Callable[[], None],
) -> float:
    """What a perfect student would drift: the base that is asked the neutral prompts so."""
    told = hashlib.sha256(repr(prompts).encode()).hexdigest()  # not the long prompts themselves
    place = ("prompted drift", told, config.gate_tokens)
    found = base.cache.get(place)
    if isinstance(found, float):
        return found
    replies = [reply for _, reply in _greedy_pairs(base, model, neutral, config, check)]
    with wearing(model, None):
        pairs = tuple(zip(prompts, replies, strict=True))
        value = _drift_of(base, model, neutral, pairs, check)
    base.cache[place] = value
    return value


def weights_sha256(model: PeftModel) -> str:
    """Of the adapter as it is saved: the same for a candidate and for the parent it becomes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(adapter_tensors(model).items()):
        digest.update(name.encode())
        digest.update(tensor.detach().to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes())
    return digest.hexdigest()
