"""What people said, told apart by the base: wishes about an answer, and small talk.

    PYTHONPATH=. python bench/personas/small_talk.py --base var/models/SmolLM2-135M-Instruct

By the probe of `training.small_talk`: at some limits the share of wishes that are lost, and of
small talk that is found. First of the probe's own examples, ten parts of them each by a probe that
was fitted to the others; then of small_talk.json beside this script, which nothing was fitted to
nor chosen on, and of three others', who had seen none of it; then of what the simulated people and
the tests say, by a probe without it. And what is nearest to the wrong side. Last, what speaks of
the reply before it ("of the reply", a question and what was said of the answer), the same after
another question's reply, and small talk: how many are taken for small talk by their words, and how
many still after the reply was looked at.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from bench.personas.effects import replies_of
from bench.personas.people import PEOPLE
from training.base import Base, load_base
from training.batching import Pair
from training.drift import asked
from training.small_talk import (
    Probe,
    example_features,
    examples,
    features,
    fitted,
    said_ids,
    sentences,
    talk_nats,
)

LIMITS = (3.0, 2.0, 1.5, 1.0, 0.5, 0.0)
PARTS = 10
SHOWN = 12
REMARKS = ["My cat is called Tom.", "Today is Tuesday.", "I like the colour blue."]

TOKENS = 48  # of each reply
OTHER = 7  # questions on
OF_TALK = (3.0, 4.0, 5.0, 6.0)  # nats

Said = tuple[str, str]  # a question, and what was said of its reply
Judged = list[tuple[float, str]]  # nats and words, lowest first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    told = Examples(load_base(parser.parse_args().base, threads=1))
    tell("the probe's examples, ten parts", *told.crosswise())
    unseen = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    tell("not looked at", *(told.judged(unseen[name]) for name in ("wishes", "small talk")))
    for whose in ("another's", "a third's", "a fourth's"):
        tell(whose, *(told.judged(unseen[f"{whose} {kind}"]) for kind in ("wishes", "small talk")))
    people = sorted({wish.hint for person in PEOPLE.values() for wish in person.wishes})
    tell("the simulated people", told.judged(people), told.judged(REMARKS))
    tell_of_replies(told, unseen["of the reply"], unseen["small talk"])


class Examples:
    """What the probe is fitted to, and what it says without some of it."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self.said = [sentence for sentence, _ in examples()]
        self.features_NF, self.kinds_N = example_features(base, base.model)

    def probe_without(self, texts: Iterable[str]) -> Probe:
        left_out = set(texts)
        kept_N = torch.tensor([sentence not in left_out for sentence in self.said])
        return fitted(self.features_NF[kept_N], self.kinds_N[kept_N])

    def judged(self, texts: Sequence[str]) -> Judged:
        """Of each text's sentences the highest: one wish is enough."""
        probe = self.probe_without(part for text in texts for part in sentences(text))
        found = [
            (
                float(probe(features(self.base, self.base.model, said_ids(self.base, text))).max()),
                text,
            )
            for text in texts
        ]
        return sorted(found)

    def crosswise(self) -> tuple[Judged, Judged]:
        """Wishes and small talk, each sentence once."""
        told = dict.fromkeys(self.said)
        parts = torch.randperm(len(told), generator=torch.Generator().manual_seed(0)) % PARTS
        part_of = dict(zip(told, parts.tolist(), strict=True))
        found: dict[str, tuple[float, float]] = {}
        for part in range(PARTS):
            left_out = [sentence for sentence in told if part_of[sentence] == part]
            nats_N = self.probe_without(left_out)(self.features_NF)
            for sentence, kind, nats in zip(self.said, self.kinds_N, nats_N, strict=True):
                if part_of[sentence] == part:
                    found[sentence] = float(kind), float(nats)
        wishes, remarks = (
            sorted((nats, sentence) for sentence, (kind, nats) in found.items() if kind == which)
            for which in (1.0, -1.0)
        )
        return wishes, remarks


def tell_of_replies(told: Examples, spoken: Sequence[Said], remarks: Sequence[str]) -> None:
    """Each after the base's reply to its question, or to the one `OTHER` on."""
    base, said = told.base, [words for _, words in spoken]
    prompts = [base.render(asked(question)) for question, _ in spoken]
    talks: list[Pair] = list(
        zip(prompts, replies_of(base, prompts, tokens=TOKENS, seed=0), strict=True)
    )
    elsewhere = [*talks[OTHER:], *talks[:OTHER]]
    after = [talks[place % len(talks)] for place in range(len(remarks))]
    kinds = {
        "of the reply": (said, talks),
        "of another": (said, elsewhere),
        "small talk": (remarks, after),
    }
    for name, (texts, before) in kinds.items():
        words = {text: nats for nats, text in told.judged(texts)}
        context = [
            max(talk_nats(base, base.model, talk, sentence) for sentence in said_ids(base, text))
            for text, talk in zip(texts, before, strict=True)
        ]
        print(f"{name}: {len(texts)}")
        for limit in LIMITS:
            low = [nats for text, nats in zip(texts, context, strict=True) if words[text] < -limit]
            kept = {least: sum(nats > least for nats in low) for least in OF_TALK}
            print(f"  by more than {limit}: {len(low)}, of these kept by their reply: {kept}")
        print("  by their reply:", shown(sorted(zip(context, texts, strict=True))), flush=True)


def tell(name: str, wishes: Judged, remarks: Judged) -> None:
    print(f"{name}: {len(wishes)} wishes, {len(remarks)} small talk")
    for limit in LIMITS:
        below = [sum(value < -limit for value, _ in found) for found in (wishes, remarks)]
        print(f"  by more than {limit}: {below[0]} wishes, {below[1]} small talk")
    print("  lowest wishes:", shown(wishes[:SHOWN]))
    print("  highest small talk:", shown(remarks[::-1][:SHOWN]), flush=True)


def shown(found: Judged) -> str:
    return ", ".join(f"{value:.1f} {text}" for value, text in found)


if __name__ == "__main__":
    main()
