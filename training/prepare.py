"""Samples to Items: what can train, and why the rest cannot. Renders prompts; runs no model."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jinja2 import TemplateError

from rollouts.hints import (
    NOTE,
    demonstrated_messages,
    hinted_messages,
    joined,
    prompted_messages,
    unasked_messages,
)
from rollouts.types import Message, Sample
from training.advantages import Baseline, reward_advantage
from training.base import Base
from training.batching import Item
from training.config import COLLECTED, HINT_TOKENS, TrainConfig
from training.corrections import word_weights
from training.small_talk import said_ids, sentences

NO_SIGNAL = "no_signal"  # neither vote nor hint, or no reply to learn from
NO_LOGPROBS = "no_logprobs"  # trains by reward, but what it was sampled with is not known
GREEDY = "greedy"  # trains by reward, but was not drawn from a distribution
TOO_LONG = "too_long"
STALE = "stale"  # answered by a version too far behind
# Small talk, or it moves the base as a note that asks for nothing, or has no place in the prompt.
HINT_NO_EFFECT = "hint_no_effect"
TEMPLATE_CHANGED = "template_changed"  # the prompt renders to other ids than were sampled from

CORRECTED = "\0"  # stands for the wish of who writes the reply instead


def prepare(
    base: Base,
    samples: Sequence[Sample],
    config: TrainConfig,
    *,
    baseline: Baseline,
    again: frozenset[str] = frozenset(),
) -> tuple[list[Item], dict[int, str]]:
    """The items that can train, in the order given, and the drop reason of each other id.

    `again`: hints that the user says although a version has learned them."""
    items: list[Item] = []
    dropped: dict[int, str] = {}
    for sample in samples:
        made = _item(base, sample, config, baseline, again)
        if isinstance(made, str):
            dropped[sample.id] = made
        else:
            items.append(made)
    return items, dropped


def shortened(base: Base, sample: Sample, config: TrainConfig) -> Sample:
    """The sample with at most `earlier_exchanges` of its conversation before the user's newest
    message, and fewer where prompt, hint and reply are longer than training takes: system messages
    and all from some message of the user's on are left.

    What was sampled stays as it is, and so does the sample where nothing older can go, where even
    the newest message is too long, or where the prompt renders otherwise than it did.
    """
    asked = [place for place, each in enumerate(sample.messages) if each["role"] == "user"]
    if len(asked) < 2:
        return sample
    first = next(place for place, each in enumerate(sample.messages) if each["role"] != "system")

    def since(place: int) -> Sample:
        messages = [*sample.messages[:first], *sample.messages[place:]]
        prompt = prompted_messages(messages, sample.prompted_hints)
        prompt_ids = base.render(prompt, sample.tools, sample.at)
        return replace(sample, messages=messages, prompt_ids=prompt_ids)

    newer = asked[1:][-config.earlier_exchanges - 1 :]
    try:
        is_whole = len(asked) <= config.earlier_exchanges + 1 and _fits(base, sample, config)
        if is_whole or not _renders_as_sampled(base, sample):
            return sample
        begins = bisect_left(newer, True, key=lambda place: _fits(base, since(place), config))
    except (ValueError, TemplateError):  # what the template does not take
        return sample
    return since(newer[begins]) if begins < len(newer) else sample


def _fits(base: Base, sample: Sample, config: TrainConfig) -> bool:
    """Whether the reply, or another, may follow the prompt, and what teaches it stand there."""
    reply = max(len(sample.response_ids), config.reanswer_tokens)
    if len(sample.prompt_ids) + reply > config.max_tokens:
        return False
    hint = base.beginning(joined(sample.lessons) or "", HINT_TOKENS)
    correction = base.beginning(sample.correction or "", config.correction_tokens)
    told = hinted_messages(sample.messages, hint=hint, correction=correction)
    return len(base.render(told, sample.tools, sample.at)) + reply <= config.max_tokens


def said_again(samples: Sequence[Sample], learned: Sequence[Sample]) -> frozenset[str]:
    """The hints of `samples` that were in `learned` too, and so were not learned well enough: said
    of replies of the version that has learned them, not of older ones.

    Of two wishes there is none: what is pushed is followed where the other is meant, too.
    """
    again = hints_of([each for each in samples if each.version_age == 0]) & hints_of(learned)
    return frozenset() if tells_several([*samples, *learned]) else again


def hints_of(samples: Sequence[Sample]) -> frozenset[str]:
    """What was said of them, each wording once."""
    return frozenset(hint for sample in samples for hint in sample.told)


def newest_wish(samples: Sequence[Sample]) -> int:
    """The place in `samples` (oldest first) at which the newest wish was first told; -1: none was.

    A sample tells a new wish when it says a sentence that none before it said; what repeats earlier
    sentences, alone or in another mixture, is no new one. All corrections without a hint count as
    one and the same wish. A thumb without a word from before that place says nothing of the wish.
    """
    newest, told = -1, set[str]()
    for place, sample in enumerate(samples):
        said = _sentences(sample.told)
        if not said and sample.correction:
            said = {CORRECTED}
        if said - told:
            newest = place
        told |= said
    return newest


def _sentences(hints: Sequence[str]) -> set[str]:
    """What they say, each sentence in small letters and without what ends it."""
    said = {part for hint in hints for part in sentences(hint.casefold())}
    return {part.strip(" .!?。！？") for part in said} - {""}


def liked_elsewhere(samples: Sequence[Sample], told: Sequence[Sample]) -> list[Sample]:
    """Those that were liked, but for replies to a prompt of what was `told` something: what was
    asked again until it was liked was not liked as it was."""
    prompts = [sample.messages for sample in told]
    return [each for each in samples if (each.reward or 0) > 0 and each.messages not in prompts]


def tells_several(samples: Sequence[Sample]) -> bool:
    """Whether more than one wish was told: each may be meant for some requests only."""
    return len(hints_of(samples)) > 1


def _item(
    base: Base,
    sample: Sample,
    config: TrainConfig,
    baseline: Baseline,
    again: frozenset[str],
) -> Item | str:
    """The sample's item, or the reason why it has none."""
    reason = _reason_against(sample, config)
    if reason is not None:
        return reason
    if not _renders_as_sampled(base, sample):
        return TEMPLATE_CHANGED
    prompt_ids = plain_prompt_ids(base, sample)
    distilled = sample.is_hinted and config.distils
    try:
        teacher_prompts = _teacher_prompts(base, sample, config) if distilled else [prompt_ids]
        noted = _noted(base, sample, config) if distilled and config.hint_effect_min else ()
        unasked = _unasked(base, sample) if distilled and config.question_boost else ()
    except (ValueError, TemplateError):  # nothing a user said, or nothing that the template takes
        return HINT_NO_EFFECT
    reply = tuple(sample.response_ids[: config.rated_tokens])
    told = [
        (ids, said_ids(base, hint or "") if noted else ())
        for ids, hint in zip(teacher_prompts, _candidate_hints(sample), strict=distilled)
    ]
    # A candidate that leaves no room is none, unless there is no other.
    fit = [each for each in told if len(each[0]) + len(reply) <= config.max_tokens] or told[:1]
    taught_by, said = zip(*fit, strict=True)
    has_logprobs = _without_logprobs(sample) is None
    advantage = None
    if (not distilled or config.method == "combine") and (has_logprobs or config.is_kto):
        advantage = _advantage(sample, config, baseline)
    written, weights = _correction(base, sample, len(prompt_ids), config) if distilled else ((), ())
    item = Item(
        sample_id=sample.id,
        prompt_ids=prompt_ids,
        response_ids=reply,
        teacher_prompt_ids=taught_by[0],
        other_prompts_ids=taught_by[1:],
        is_hinted=distilled,
        noted_prompt_ids=noted,
        said_ids=said[0],
        others_said_ids=said[1:],
        unasked_prompt_ids=unasked,
        correction_ids=written,
        correction_weights=weights,
        boost=config.hint_boost if again.isdisjoint(sample.lessons) else config.hint_boost_again,
        rollout_logprobs=tuple((sample.rollout_logprobs or ())[: config.rated_tokens])
        if has_logprobs
        else None,
        temperature=sample.temperature,
        advantage=advantage,
        reward=sample.reward,
        version_age=sample.version_age,
    )
    return TOO_LONG if item.length > config.max_tokens else item


def _renders_as_sampled(base: Base, sample: Sample) -> bool:
    if sample.template_hash != base.template_hash:
        return False  # and the other template may refuse what this one took
    try:
        messages = prompted_messages(sample.messages, sample.prompted_hints)
        return base.render(messages, sample.tools, sample.at) == tuple(sample.prompt_ids)
    except (ValueError, TemplateError):
        return False


def plain_prompt_ids(base: Base, sample: Sample) -> tuple[int, ...]:
    """The prompt without hints: what a version must answer well, whatever stood there before."""
    if not sample.prompted_hints:
        return tuple(sample.prompt_ids)
    return base.render(sample.messages, sample.tools, sample.at)


def _teacher_prompts(base: Base, sample: Sample, config: TrainConfig) -> list[tuple[int, ...]]:
    """The prompt under the hint first, then under each candidate that reads differently."""
    return [_told_prompt(base, sample, hint, config) for hint in _candidate_hints(sample)]


def _correction(
    base: Base, sample: Sample, prompt: int, config: TrainConfig
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The correction's tokens, up to the last one that trains and has room after the prompt, and
    the weight of each."""
    if not sample.correction or not config.correction_weight:
        return (), ()
    ids = base.answer_ids(sample.correction)[: config.max_tokens - prompt]
    has_ended = sample.response_ids[-1] in base.eos_ids
    weights = word_weights(sample.response_ids, ids, config, has_ended=has_ended)
    return ids[: len(weights)], weights


def _noted(base: Base, sample: Sample, config: TrainConfig) -> tuple[int, ...]:
    """The prompt under a mere note, to compare with; none where the user wrote what they wanted."""
    if sample.correction:
        return ()
    return _teacher_prompt(base, sample, NOTE, config)


def _unasked(base: Base, sample: Sample) -> tuple[int, ...]:
    return base.render(unasked_messages(sample.messages), sample.tools, sample.at)


def _candidate_hints(sample: Sample) -> list[str | None]:
    others = (hint for hint in sample.other_hints if hint not in sample.unheard)
    return list(dict.fromkeys([joined(sample.lessons), *others]))


def under_collected(
    base: Base, items: Sequence[Item], samples: Sequence[Sample], config: TrainConfig
) -> list[Item]:
    """The items, each under the newest other hints of `samples` (newest last) and then its own, so
    that what one reply is taught does not unlearn what another taught. Others are those said of two
    replies or more: who says it once may mean that reply alone. An item whose prompt has no room
    for them stays as it is."""
    by_id = {sample.id: sample for sample in samples}
    times = Counter(hint for sample in samples for hint in sample.lessons)
    # A hint that is said again is as new as its last time.
    newest_first = dict.fromkeys(
        hint for s in reversed(samples) for hint in reversed(s.lessons) if times[hint] > 1
    )
    return [_under(base, item, by_id[item.sample_id], list(newest_first), config) for item in items]


def _under(
    base: Base, item: Item, sample: Sample, newest_first: Sequence[str], config: TrainConfig
) -> Item:
    others = [hint for hint in newest_first if hint not in sample.lessons][:COLLECTED]
    if not others:
        return item
    own = _chosen_hint(base, item, sample, config)
    hint = joined([*reversed(others), *filter(None, [own])])
    prompt_ids = _teacher_prompt(base, sample, hint, config)
    has_room = _has_room(prompt_ids, sample, config)
    return replace(item, teacher_prompt_ids=prompt_ids) if has_room else item


def _chosen_hint(base: Base, item: Item, sample: Sample, config: TrainConfig) -> str | None:
    """Which of the sample's candidate hints teaches the item."""
    hints = _candidate_hints(sample)
    prompts = _teacher_prompts(base, sample, config)
    return hints[prompts.index(item.teacher_prompt_ids)]


def _told_prompt(
    base: Base, sample: Sample, hint: str | None, config: TrainConfig
) -> tuple[int, ...]:
    """The prompt under the hint; under the beginning of one that leaves no room."""
    prompt_ids = _teacher_prompt(base, sample, hint, config)
    if hint and not _has_room(prompt_ids, sample, config):
        return _teacher_prompt(base, sample, base.beginning(hint, HINT_TOKENS), config)
    return prompt_ids


def _teacher_prompt(
    base: Base, sample: Sample, hint: str | None, config: TrainConfig
) -> tuple[int, ...]:
    """The prompt under the hint, after the demonstrations if there is room for them; of a
    correction that leaves no room the beginning, as much as would be learned of it."""

    def ways() -> Iterator[list[Message]]:
        hinted = hinted_messages(sample.messages, hint=hint, correction=sample.correction)
        if sample.demonstrations:
            yield demonstrated_messages(hinted, sample.demonstrations, hint=hint)
        yield hinted
        if sample.correction:
            begun = base.beginning(sample.correction, config.correction_tokens)
            yield hinted_messages(sample.messages, hint=hint, correction=begun)

    for messages in ways():
        prompt_ids = base.render(messages, sample.tools, sample.at)
        if _has_room(prompt_ids, sample, config):
            break
    return prompt_ids


def _has_room(prompt_ids: tuple[int, ...], sample: Sample, config: TrainConfig) -> bool:
    """Whether the reply, and another to the same prompt, may follow."""
    reply = max(len(sample.response_ids[: config.rated_tokens]), config.reanswer_tokens)
    return len(prompt_ids) + reply <= config.max_tokens


def _advantage(sample: Sample, config: TrainConfig, baseline: Baseline) -> float | None:
    if sample.reward is None:
        return None
    return reward_advantage(
        sample.reward,
        baseline,
        sigma_floor=config.sigma_floor,
        positive_cap=config.positive_cap,
        negative_cap=config.negative_cap,
    )


def _reason_against(sample: Sample, config: TrainConfig) -> str | None:
    """What can be said without rendering anything."""
    distilled = sample.is_hinted and config.distils
    if not sample.response_ids or (sample.reward is None and not distilled):
        return NO_SIGNAL
    if sample.version_age > config.max_version_age:
        return STALE
    if len(sample.prompt_ids) + len(sample.response_ids) > config.max_tokens:
        return TOO_LONG
    needs_none = distilled and not config.distils_tokens  # over the vocabulary, whoever sampled it
    return None if needs_none or config.is_kto else _without_logprobs(sample)


def _without_logprobs(sample: Sample) -> str | None:
    """Why there is no probability that the reply was sampled with; None when there is one."""
    if sample.temperature <= 0:
        return GREEDY
    given = sample.rollout_logprobs or ()
    known = [value for value in given if value is not None and math.isfinite(value)]
    return None if len(known) == len(given) == len(sample.response_ids) else NO_LOGPROBS
