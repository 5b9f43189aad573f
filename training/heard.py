"""Hints that name a kind of request, and whether the teacher hears which kind.

To a small base "When I ask for a recipe, answer with a list." is "Answer with a list.": distilled
where it was said, it goes on into all other requests. A teacher that hears the condition is moved
more where it was said than where the user liked a reply as it was. One that does not has nothing
to teach by it: thumbs, which say where it was meant, train those replies alone. docs/LOG.md, Left
to thumbs.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle, islice

import torch
from jinja2 import TemplateError
from peft import PeftModel

from rollouts.hints import NOTE, hinted_messages
from rollouts.types import Sample
from training.adapters import wearing
from training.base import Base
from training.batching import Pair
from training.config import TrainConfig
from training.forward import kl_between, response_hidden
from training.prepare import HINT_NO_EFFECT, NO_SIGNAL, liked_elsewhere
from training.small_talk import sentences

COMPARED = 8  # newest replies of each side
FEWEST = 3  # of each: of less nothing is seen
LEAST = 1e-6  # nats per token
# By what is asked for or about. Rather too few than too many: what is missed is distilled as ever.
_NO_KIND = r"""(?!(?:
    (?:it|this|that|them|me|you|help|advice|information|stuff|(?:some|any|every)thing)\b
    | an?\ (?:answer|reply)\b
    | (?:one|some|any|more|less|details|examples)(?:[,.;:!?]|$)
))"""
_IN_ENGLISH = rf"""
    (?<!even\ )(?<!also\ )\b(?:when|whenever|if|unless|(?:each|every|any)\ time)\ (?:
        (?:i|we|someone|somebody)\b[^,.;:]{{0,25}}\b(?:
            (?:ask|want|need|talk|speak|chat|request)\w*\b[^,.;:]{{0,25}}?\b(?:for|about)
                \ {_NO_KIND}
            | (?:want|need)\ an?\ (?!
                (?:(?:\w+er|short|long|quick|brief|detailed)\ )?
                (?:answer|reply|response|explanation|example|one)(?:[,.;:!?]|$|\ (?:i|we|you|it)\b)
            )
        )
        | (?:it|this|that|they|(?:the|my|a)\ \w+)(?:
            (?:\ is|'s|\ are)\ (?:not\ )?about | \ comes\ (?:down\ )?to
        )\b
        | asked\ (?:for|about)\ {_NO_KIND}
    )
    | (?<!not\ )\b(?:only|except)\ for\ (?!(?:this|that|the|these|now|once|me|us|my|you|today)\b)
    | (?:
        ^(?:please\ |and\ |but\ |no,?\ )?for(?=[^,]*,)
            (?!\ (?:starters,|(?:gods|heavens|goodness)\b))
        | \b(?:lists?|tables?|bullets?|points|steps|prose|paragraphs?|emojis?)\ (?:only\ )?for
    )\ (?:(?:all|any)\ )?(?!(?:this|kids|beginners|adults|others|years|times|purposes|cases|reasons
        |answers|replies|questions|requests|messages|examples|details)\b)
        [a-z]+(?<![sui])s\b
    """
_IN_GERMAN = r"""
    (?<!auch\ )\b(?:wenn|falls|sobald)\ (?:
        (?:ich|wir|man|jemand)\b[^,.;:]{0,25}\b(?:nach|um|über)
            \ (?!(?:etwas|hilfe|rat|(?:mehr|details)(?=\ frag))\b)[^,.;:]{1,40}
            \ (?:frag|bitte|such|will|möchte|spreche|rede)
        | es\b[^,.;:]{0,20}\bum\ [^,.;:]{1,40}\ geht\b
        | nach\ [^,.;:]{1,40}\ gefragt\b
    )
    | \bwenn's\ um\ [^,.;:]{1,40}\ geht\b
    | (?<!nicht\ )\b(?:nur|außer|ausser)\ (?:bei|für)
        \ (?!(?:mir|mich|uns|dies\w*|das|de[mnr]|jetzt|heute|ein\w*)\b)
    | (?:
        ^(?:bitte\ |und\ |aber\ |nein,?\ )?bei
        | \b(?:listen?|tabellen?|aufzählung(?:en)?|schritte|absätze|emojis?)\ (?:bei|für)
    )\ (?!(?:allen?|alles|jede\w|deine\w|antworten|fragen|kinder|laien|leute)\b)
        \w+(?:en|ern|eln|e)\b
    """
_KINDS = re.compile(f"{_IN_ENGLISH} | {_IN_GERMAN}", re.IGNORECASE | re.VERBOSE)


def names_kind(hint: str) -> bool:
    """Whether it is said, in English or German, of a kind of request and not of all."""
    return any(_KINDS.search(sentence) for sentence in sentences(hint))


def without_unheard(
    base: Base,
    model: PeftModel,
    samples: Sequence[Sample],
    config: TrainConfig,
    check: Callable[[], None] = lambda: None,
) -> tuple[list[Sample], frozenset[int]]:
    """The samples with hints that name a kind of request left out, unless the teacher hears such.

    Left out: such hints are put into each sample's `unheard`. Also returned: the ids of the samples
    whose own hint was left out and that nothing else teaches. Where nothing was liked to compare
    with, all stays. `samples` are oldest first, `model` is as before the job; `check` may raise.
    """
    named = {
        hint
        for sample in samples
        for hint in (sample.hint, *sample.other_hints, *sample.prompted_hints)
        if hint and names_kind(hint)
    }
    meant = [sample for sample in samples if sample.hint in named]
    liked = liked_elsewhere(samples, [each for each in samples if each.hint or each.correction])
    if not named or not liked or not config.hint_heard_min or not config.distils:
        return list(samples), frozenset()
    teacher = wearing(model, None) if config.teacher == "base" else nullcontext()
    with torch.no_grad(), teacher:
        if _is_heard(base, model, meant, liked, config, check):
            return list(samples), frozenset()
    left = [replace(sample, unheard=tuple(sorted(named))) for sample in samples]
    of_hint = {sample.id for sample in meant}
    return left, frozenset(each.id for each in left if each.id in of_hint and not each.is_hinted)


def unheard_among(dropped: Mapping[int, str], unheard: frozenset[int]) -> dict[int, str]:
    """The reasons; that of one that nobody voted on, too, is the hint: without it nothing was
    said. What keeps a thumb from training stays said so."""
    return {
        number: HINT_NO_EFFECT if number in unheard and why == NO_SIGNAL else why
        for number, why in dropped.items()
    }


def t_statistic(some: Sequence[float], others: Sequence[float]) -> float:
    """Student's two-sample t of the logarithms: how many standard errors `some` lie above `others`.

    t = (mean ln a - mean ln b) / (s sqrt(1/n_a + 1/n_b)), s the pooled standard deviation. Values
    below LEAST count as LEAST. Needs three values or more, both groups together.
    """
    a, b = ([math.log(max(each, LEAST)) for each in group] for group in (some, others))
    above = statistics.fmean(a) - statistics.fmean(b)
    squares = sum((each - statistics.fmean(group)) ** 2 for group in (a, b) for each in group)
    s = math.sqrt(squares / (len(a) + len(b) - 2))
    return above / max(s * math.sqrt(1 / len(a) + 1 / len(b)), LEAST)


def _is_heard(
    base: Base,
    model: PeftModel,
    meant: Sequence[Sample],
    liked: Sequence[Sample],
    config: TrainConfig,
    check: Callable[[], None],
) -> bool:
    """Whether such hints move the teacher on the replies they were said of by more than on liked
    replies: Student's t must be above `hint_heard_min`."""
    newest = [(sample, sample.hint or "") for sample in reversed(meant)]
    hints = cycle([hint for _, hint in newest])
    there = _moved(base, model, newest, config, check)
    elsewhere = _moved(base, model, zip(reversed(liked), hints, strict=False), config, check)
    if min(len(there), len(elsewhere)) < FEWEST:
        return False
    return t_statistic(there, elsewhere) > config.hint_heard_min


def _moved(
    base: Base,
    model: PeftModel,
    asked: Iterable[tuple[Sample, str]],
    config: TrainConfig,
    check: Callable[[], None],
) -> list[float]:
    """KL(under a note || under the hint) on the first COMPARED replies that can be read, nats per
    token."""
    readable = (pairs for sample, hint in asked if (pairs := _pairs(base, sample, hint, config)))
    found: list[float] = []
    for pairs in islice(readable, COMPARED):
        check()
        states = (response_hidden(base, model, [pair]) for pair in pairs)
        found.append(float(kl_between(base, *states).mean()))
    return found


def _pairs(base: Base, sample: Sample, hint: str, config: TrainConfig) -> list[Pair]:
    """The reply under a note and under the hint; none where that cannot be read."""
    reply = tuple(sample.response_ids[: config.rated_tokens])
    if not reply or sample.template_hash != base.template_hash:
        return []
    try:
        said = (hinted_messages(sample.messages, hint=h, correction=None) for h in (NOTE, hint))
        pairs: list[Pair] = [
            (base.render(messages, sample.tools, sample.at), reply) for messages in said
        ]
    except (ValueError, TemplateError):  # nothing a user said, or not what the template takes
        return []
    return pairs if max(len(ids) for ids, _ in pairs) + len(reply) <= config.max_tokens else []
