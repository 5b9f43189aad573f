"""May this version answer its user? Measures it against its parent and the base, then decides.

Everything is sampled here, in the trainer: weights that have not passed never reach the server.
The base's own replies and hidden states on the neutral prompts are kept in `Base.cache`, and so is
what a version's replies looked like when it was the candidate: as a parent it costs nothing again.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from peft import PeftModel

from rollouts.types import Sample
from training.adapters import attach, detach, round_to_saved, wearing
from training.base import Base
from training.config import TrainConfig
from training.drift import Wishes, asked, drift, drift_limit, weights_sha256
from training.forward import replies_logprobs, response_logprobs
from training.prepare import plain_prompt_ids, shortened
from training.sampling import Reply, sample_replies

PREFERENCE_NEEDS = 2  # liked and disliked replies each
QUESTION_NEEDS = 5.0  # nats of the base's own replies: below, its prompts tell them not apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure. `ok` is None where it was not judged, `value` where it was not even measured."""

    measure: str
    value: float | None
    limit: float | None
    ok: bool | None
    text: str  # in plain words


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """Whether the version may go live, and each reason against it in plain words."""

    accepted: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFigures:
    """What a version's replies to the neutral prompts look like."""

    empty: float  # share without any text
    cut: float  # share that reached the length limit without an end
    length: float  # tokens of the median reply, the end token included
    repeats: float  # mean share of 4-grams that stood in the same reply before
    count: int  # of replies
    question: float | None = None  # how much likelier its own prompt makes the median reply, nats


def measure(
    base: Base,
    model: PeftModel,
    parent: Path | None,
    held_back: Sequence[Sample],
    neutral: Sequence[str],
    wishes: Wishes,
    config: TrainConfig,
    check: Callable[[], None],
) -> list[Measure]:
    """All measures of the adapter that `model` wears, as it is saved (rounded to bf16).

    `parent`: folder of the version it was trained from, None for the base. `held_back`: rated
    replies that did not train. `wishes`: what the user asked for in this job and in those of its
    ancestors: the base that is told so sets the drift limit. `check` may raise.
    """
    round_to_saved(model)
    replies = reply_measures(base, model, parent, neutral, config, check)
    return [
        _preference(base, model, parent, held_back, config, check),
        _drift(base, model, neutral, wishes, config, check),
        *replies,
    ]


def warm(base: Base, neutral: Sequence[str], config: TrainConfig) -> None:
    """Do the base's share of every later gate now, before a job waits for it. About 20 s."""
    model = attach(base, config, None)
    try:
        with wearing(model, None):
            _figures(base, model, neutral, config, _nothing, key="base")
            drift(base, model, neutral, config, _nothing)
    finally:
        detach(base, model)


def _nothing() -> None:
    """Nobody waits for a warm-up, so nobody cancels it."""


def decide(measures: Sequence[Measure]) -> GateDecision:
    """Accepted when no measure failed; what was not measured stands in nobody's way."""
    reasons = tuple(m.text for m in measures if m.ok is False)
    return GateDecision(accepted=not reasons, reasons=reasons)


@cache
def neutral_prompts() -> tuple[str, ...]:
    """The prompts that ship with the project."""
    path = Path(__file__).with_name("neutral_prompts.json")
    return tuple(json.loads(path.read_text(encoding="utf-8"))["prompts"])


def repeated_share(ids: Sequence[int], *, size: int = 4) -> float | None:
    """Share of a reply's n-grams that occurred before in it; None when it has fewer than two."""
    grams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if len(grams) > 1 else None


def figures_of(
    replies: Sequence[Reply], texts: Sequence[str], question: float | None = None
) -> ReplyFigures:
    """Figures of at least one reply; a reply too short for 4-grams repeats nothing."""
    repeats = [repeated_share(reply.ids) or 0.0 for reply in replies]
    return ReplyFigures(
        empty=sum(not text.strip() for text in texts) / len(texts),
        cut=sum(not reply.is_finished for reply in replies) / len(replies),
        length=float(statistics.median(len(reply.ids) for reply in replies)),
        repeats=statistics.fmean(repeats),
        count=len(replies),
        question=question,
    )


def question_gains(
    base: Base,
    model: PeftModel | Any,
    prompts: Sequence[tuple[int, ...]],
    replies: Sequence[tuple[int, ...]],
    check: Callable[[], None],
) -> list[float]:
    """Is each reply of its question? log pi(y | x) - log pi(y | x') by `model`, x' the next prompt,
    in nats: near 0 it would do for any question."""
    own, other = (
        replies_logprobs(base, model, tuple(zip(given, replies, strict=True)), check)
        for given in (prompts, [*prompts[1:], prompts[0]])
    )
    return [float((own_T - other_T).sum()) for own_T, other_T in zip(own, other, strict=True)]


def of_their_question(
    base: Base,
    model: PeftModel,
    prompts: Sequence[tuple[int, ...]],
    replies: Sequence[tuple[int, ...]],
    check: Callable[[], None],
) -> float | None:
    """The median of what the base finds, nats. None of a single prompt."""
    if len(prompts) < 2:
        return None
    with wearing(model, None):
        return statistics.median(question_gains(base, model, prompts, replies, check))


def _figures(
    base: Base,
    model: PeftModel,
    neutral: Sequence[str],
    config: TrainConfig,
    check: Callable[[], None],
    *,
    key: str | None = None,
) -> ReplyFigures:
    """Figures of what `model` answers now; kept under `key`, or under the adapter's own weights."""
    settings = (tuple(neutral), config.gate_tokens, config.gate_temperature, config.seed)
    place = ("figures", key or weights_sha256(model), settings)
    found = base.cache.get(place)
    if isinstance(found, ReplyFigures):
        return found
    prompts = [base.render(asked(prompt)) for prompt in neutral]
    replies = sample_replies(
        base,
        model,
        prompts,
        temperature=config.gate_temperature,
        max_new_tokens=config.gate_tokens,
        seed=config.seed,
        check=check,
    )
    texts = [base.tokenizer.decode(reply.ids, skip_special_tokens=True) for reply in replies]
    question = of_their_question(base, model, prompts, [reply.ids for reply in replies], check)
    figures = figures_of(replies, texts, question)
    base.cache[place] = figures
    return figures


def reply_measures(
    base: Base,
    model: PeftModel,
    parent: Path | None,
    neutral: Sequence[str],
    config: TrainConfig,
    check: Callable[[], None],
) -> list[Measure]:
    """What the replies look like, beside the parent's and the base's."""
    own = _figures(base, model, neutral, config, check)
    with wearing(model, None):
        bases = _figures(base, model, neutral, config, check, key="base")
    parents = bases
    if parent is not None:
        with wearing(model, parent):
            parents = _figures(base, model, neutral, config, check)
    return judged(own, parents, bases, config)


def judged(
    own: ReplyFigures, parent: ReplyFigures, base: ReplyFigures, config: TrainConfig
) -> list[Measure]:
    """Repetition is held against the base: against the parent, each version could add its own."""
    cut_limit = parent.cut + config.gate_cut_margin + _chance(own, parent, config)
    repeat_limit = base.repeats + config.gate_repeat_margin
    return [
        _at_most("empty", own.empty, config.gate_empty_max, "of its test replies are empty"),
        _cut_off(own, cut_limit),
        Measure(
            measure="length",
            value=own.length,
            limit=config.gate_length_min,
            ok=own.length >= config.gate_length_min,
            text=f"its test replies are {own.length:.0f} tokens long"
            f" (at least {config.gate_length_min:.0f})",
        ),
        _at_most("repetition", own.repeats, repeat_limit, "of its test replies is repetition"),
        _question(own, base, config),
    ]


def _cut_off(own: ReplyFigures, limit: float) -> Measure:
    """Of a version whose parent's replies nearly all reach the limit of length, this tells
    nothing."""
    claim = "of its test replies do not come to an end"
    if limit < 1:
        return _at_most("cut_off", own.cut, limit, claim)
    text = f"{own.cut:.0%} {claim}: not judged, as its parent's hardly ever do"
    return Measure(measure="cut_off", value=own.cut, limit=1.0, ok=None, text=text)


def _question(own: ReplyFigures, base: ReplyFigures, config: TrainConfig) -> Measure:
    """How much of their questions is in the replies, as a share of what is in the base's."""
    limit = config.gate_question_min
    if own.question is None or base.question is None or base.question < QUESTION_NEEDS:
        text = "not measured: the base model's own test replies do not tell what was asked"
        return Measure(measure="question", value=None, limit=limit, ok=None, text=text)
    value = own.question / base.question
    text = f"its test replies fit what was asked {value:.0%} as well as the base model's"
    text += f" (at least {limit:.0%})"
    return Measure(measure="question", value=value, limit=limit, ok=value >= limit, text=text)


def _chance(own: ReplyFigures, parent: ReplyFigures, config: TrainConfig) -> float:
    """What chance may add to one of two shares of so few replies: z sqrt(p (1-p) (1/n + 1/m)).

    Twelve replies of the very same version differ by 0.19 on average when a third is cut off.
    """
    pooled = (own.cut * own.count + parent.cut * parent.count) / (own.count + parent.count)
    return config.gate_chance * math.sqrt(
        pooled * (1 - pooled) * (1 / own.count + 1 / parent.count)
    )


def _at_most(name: str, value: float, limit: float, claim: str) -> Measure:
    text = f"{value:.0%} {claim} (at most {limit:.0%})"
    return Measure(measure=name, value=value, limit=limit, ok=value <= limit, text=text)


def _preference(
    base: Base,
    model: PeftModel,
    parent: Path | None,
    held_back: Sequence[Sample],
    config: TrainConfig,
    check: Callable[[], None],
) -> Measure:
    """Liked minus disliked held-back replies, each the mean of log pi - log pi_parent per token."""
    liked = [s for s in held_back if s.reward is not None and s.reward > 0 and s.response_ids]
    disliked = [s for s in held_back if s.reward is not None and s.reward < 0 and s.response_ids]
    limit = -config.gate_preference_margin
    if min(len(liked), len(disliked)) < PREFERENCE_NEEDS:
        return Measure(
            measure="preference",
            value=None,
            limit=limit,
            ok=None,
            text=f"not measured: needs {PREFERENCE_NEEDS} liked and {PREFERENCE_NEEDS} disliked"
            " replies that were held back",
        )
    rated = [shortened(base, sample, config) for sample in (*liked, *disliked)]
    after = _mean_logprobs(base, model, rated, check)
    with wearing(model, parent):
        before = _mean_logprobs(base, model, rated, check)
    gains = [now - then for now, then in zip(after, before, strict=True)]
    value = statistics.fmean(gains[: len(liked)]) - statistics.fmean(gains[len(liked) :])
    return Measure(
        measure="preference",
        value=value,
        limit=limit,
        ok=value >= limit,
        text="replies you liked became "
        f"{'more' if value >= 0 else 'less'} likely than replies you did not like"
        f" ({value:+.2f}, at least {limit:+.2f})",
    )


def _mean_logprobs(
    base: Base, model: PeftModel, samples: Sequence[Sample], check: Callable[[], None]
) -> list[float]:
    means = []
    for sample in samples:
        check()
        pair = (plain_prompt_ids(base, sample), sample.response_ids)
        logprobs_T = response_logprobs(base, model, pair)
        means.append(float(logprobs_T.mean()))
    return means


def _drift(
    base: Base,
    model: PeftModel,
    neutral: Sequence[str],
    wishes: Wishes,
    config: TrainConfig,
    check: Callable[[], None],
) -> Measure:
    """KL(base || version) per token on the base's greedy replies, against what wishes explain."""
    value = drift(base, model, neutral, config, check)
    limit = drift_limit(base, model, neutral, wishes, config, check)
    return Measure(
        measure="drift",
        value=value,
        limit=limit,
        ok=value <= limit,
        text=f"on subjects you never rated it differs from the base model by {value:.2f}"
        f" (at most {limit:.2f}, what your wishes explain)",
    )
