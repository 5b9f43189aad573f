"""Replies that the user liked, shown to the teacher: what their hint means, from their own chats.

A small model often cannot do what a hint says, and can follow an example of it. The examples are
the user's: replies they liked without a word, and corrections they wrote. Which of them belong to
a hint is measured: the hint makes such a reply more likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from peft import PeftModel

from rollouts.hints import hinted_messages, joined
from rollouts.types import Demonstration, Message, Sample
from training.adapters import wearing
from training.base import Base
from training.config import CANDIDATES, TrainConfig
from training.forward import response_logprobs


def with_demonstrations(
    base: Base,
    model: PeftModel,
    samples: Sequence[Sample],
    liked: Sequence[Sample],
    config: TrainConfig,
) -> list[Sample]:
    """The samples; a hinted one with up to `config.demonstrations` of `liked` (newest last) shown
    to its teacher: those that its hint makes more likely, by the largest mean log-ratio."""
    if not config.demonstrations or not config.distils:
        return list(samples)
    shown = [each for each in liked if _short(base, each, config)][-CANDIDATES:]
    plain = {each.id: _mean_logprob(base, model, each, None) for each in shown}
    ranked: dict[str, list[Sample]] = {}  # by hint: those that it makes more likely, best first
    taught = []
    for sample in samples:
        if hint := joined(sample.lessons):
            if hint not in ranked:
                gains = [_mean_logprob(base, model, e, hint) - plain[e.id] for e in shown]
                order = sorted(zip(gains, shown, strict=True), key=lambda pair: -pair[0])
                ranked[hint] = [each for gain, each in order if gain > 0]
            others = [each for each in ranked[hint] if each.id != sample.id]
            chosen = tuple(_shown(base, each) for each in others[: config.demonstrations])
            sample = replace(sample, demonstrations=chosen)
        taught.append(sample)
    return taught


def correction_of(sample: Sample) -> Demonstration | None:
    """What the user wrote instead of the reply to what they asked; None where that is not there."""
    question = _question(sample)
    if not sample.correction or question is None:
        return None
    return Demonstration(question=question, answer=sample.correction.strip())


def _answer_ids(base: Base, sample: Sample) -> tuple[int, ...]:
    """What the user wanted to read: the correction, else the reply that they liked."""
    if sample.correction:
        return base.answer_ids(sample.correction)
    return tuple(sample.response_ids)


def _short(base: Base, sample: Sample, config: TrainConfig) -> bool:
    """Whether it can be shown: liked or corrected, whole, and no longer than may be."""
    is_liked = sample.reward is not None and sample.reward > 0 and not sample.hint
    if not (is_liked or sample.correction) or _question(sample) is None:
        return False
    ids = _answer_ids(base, sample)
    return ids[-1] in base.eos_ids and 1 < len(ids) <= config.demonstration_tokens


def _question(sample: Sample) -> str | None:
    """What was asked, when the user asked it last; not a tool's result, say."""
    last = sample.messages[-1]
    return last["content"] if last["role"] == "user" else None


def _shown(base: Base, sample: Sample) -> Demonstration:
    answer = base.tokenizer.decode(_answer_ids(base, sample), skip_special_tokens=True)
    return Demonstration(question=_question(sample) or "", answer=answer.strip())


@torch.no_grad()
def _mean_logprob(base: Base, model: PeftModel, sample: Sample, hint: str | None) -> float:
    """The base's mean log-prob of the answer to the question alone, nats per token."""
    asked = [Message(role="user", content=_question(sample) or "")]
    prompt_ids = base.render(hinted_messages(asked, hint=hint, correction=None))
    with wearing(model, None):
        logprobs_T = response_logprobs(base, model, (prompt_ids, _answer_ids(base, sample)))
    return float(logprobs_T.mean())
