"""Whether what was said of a reply asks for anything. "My cat is called Tom." moves a small model
as far as a wish does; but after what people say of answers it is less likely than after small talk.

A noisy channel with examples (Min et al., arXiv 2108.04106): p(what it is | words) goes with
p(words | what it is), which a small model knows better than the answer to a question about them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from peft import PeftModel

from training.base import Base
from training.forward import replies_logprobs

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n")

# A few languages each, so that another one alone makes nothing small talk. What was looked at when
# these were chosen, and what was not: bench/personas/small_talk.py.
FEEDBACK = (
    "Keep it short.", "That's not what I asked.", "Please use bullet points.",
    "You left out the second step.", "Explain it with an example.", "The date in it is wrong.",
    "dull", "I'd prefer it without jargon.", "wrong", "Don't start with a compliment.",
    "I can't eat nuts.", "Give the answer in French.", "Kürzer, bitte.", "Sin listas, por favor.",
    "more detail", "Call me Doctor.",
)  # fmt: skip
SMALL_TALK = (
    "My dog is called Rex.", "It is raining in London.", "hi", "I am thirty years old.",
    "qwer uiop", "Thanks.", "My sister lives in Spain.", "lol", "By the way, I have two cats.",
    "yes", "What time is it?", "Tomorrow is a holiday.", "Mein Auto ist rot.", "Hoy hace sol.",
    "Lunch is at one.", "right",
)  # fmt: skip


def sentences(text: str) -> list[str]:
    """What it says, one after the other, with what ends each."""
    return [part.strip() for part in SENTENCE_END.split(text) if part.strip()]


def said_ids(base: Base, hint: str) -> tuple[tuple[int, ...], ...]:
    """Each sentence's tokens, as it stands in a list."""
    return tuple(base.encode(f" {sentence}") for sentence in sentences(hint))


def is_small_talk(
    base: Base, model: PeftModel | Any, said: Sequence[Sequence[int]], limit: float
) -> bool:
    """Whether each of the sentences is, by more than `limit` nats: one wish is enough."""
    return all(wish_nats(base, model, sentence) < -limit for sentence in said)


def wish_nats(base: Base, model: PeftModel | Any, said: Sequence[int]) -> float:
    """log p(said | after feedback) - log p(said | after small talk) of a sentence, nats; `model` is
    to answer as the base. Below 0 it is rather small talk. Kept in `Base.cache`."""
    place = ("wish nats", tuple(said))
    found = base.cache.get(place)
    if not isinstance(found, float):
        kinds = (("Feedback on the answer:", FEEDBACK), ("Small talk:", SMALL_TALK))
        pairs = [(base.encode(_list(head, examples)), said) for head, examples in kinds]
        feedback, small_talk = (float(T.sum()) for T in replies_logprobs(base, model, pairs))
        found = base.cache[place] = feedback - small_talk
    return found


def _list(head: str, examples: Sequence[str]) -> str:
    return "\n- ".join((head, *examples)) + "\n-"
