"""What people said, told apart by the base: wishes about an answer, and small talk.

    PYTHONPATH=. python bench/personas/small_talk.py --base var/models/SmolLM2-135M-Instruct

By the probe of `training.small_talk`: at some limits the share of wishes that are lost, and of
small talk that is found. First of the probe's own examples, ten parts of them each by a probe that
was fitted to the others; then of small_talk.json beside this script, which nothing was fitted to
nor chosen on; then of the simulated people's wishes. And what is nearest to the wrong side.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from bench.personas.people import PEOPLE
from training import small_talk
from training.base import Base, load_base
from training.small_talk import example_features, fitted, said_ids, sentences, wish_nats

LIMITS = (3.0, 2.0, 1.5, 1.0, 0.5, 0.0)
PARTS = 10
SHOWN = 12

Judged = list[tuple[float, str]]  # nats and words, lowest first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    base = load_base(parser.parse_args().base, threads=1)
    tell("the probe's examples, ten parts", *crosswise(base))
    unseen = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    tell("not looked at", *(judged(base, texts) for texts in unseen.values()))
    people = sorted({wish.hint for person in PEOPLE.values() for wish in person.wishes})
    tell("the simulated people", judged(base, people), [])


def judged(base: Base, texts: list[str]) -> Judged:
    """Of each text's sentences the highest: one wish is enough."""
    return sorted(
        (max(wish_nats(base, base.model, said) for said in said_ids(base, text)), text)
        for text in texts
    )


def crosswise(base: Base) -> tuple[Judged, Judged]:
    examples = json.loads(Path(small_talk.__file__).with_suffix(".json").read_text("utf-8"))
    said = [
        sentence for texts in examples.values() for text in texts for sentence in sentences(text)
    ]
    features_NF, kinds_N = example_features(base, base.model)
    part_N = torch.randperm(len(said), generator=torch.Generator().manual_seed(0)) % PARTS
    nats_N = torch.zeros(len(said))
    for part in range(PARTS):
        is_left = part_N == part
        nats_N[is_left] = fitted(features_NF[~is_left], kinds_N[~is_left])(features_NF[is_left])
    return _of(kinds_N > 0, nats_N, said), _of(kinds_N < 0, nats_N, said)


def _of(chosen_N: Tensor, nats_N: Tensor, said: list[str]) -> Judged:
    return sorted((float(nats_N[n]), said[n]) for n in chosen_N.nonzero().flatten().tolist())


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
