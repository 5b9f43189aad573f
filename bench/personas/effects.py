"""How far each hint moves the base on replies that were given without it: wishes and small talk.

    PYTHONPATH=. python bench/personas/effects.py --base var/models/SmolLM2-135M-Instruct

Per hint: mean KL(base || hinted base) in nats per token over sampled replies with its range, and
the mean log-ratio of the replies' own words. Only hints below `hint_effect_min` are dropped.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

from bench.personas.people import PEOPLE
from rollouts.hints import hinted_messages
from rollouts.types import Message
from training.adapters import attach, detach
from training.base import Base, load_base
from training.config import TrainConfig
from training.forward import kl_between, response_hidden, response_logprobs
from training.sampling import sample_replies

SMALL_TALK = ("My cat is called Tom.", "Today is Tuesday.", "Thank you.", "ok", "asdf qwer zxcv")


def replies_of(
    base: Base, prompts: list[tuple[int, ...]], *, tokens: int = 48
) -> list[tuple[int, ...]]:
    """One sampled reply of the base to each prompt."""
    model = attach(base, TrainConfig(), None)
    try:
        sampled = sample_replies(
            base, model, prompts, temperature=0.7, max_new_tokens=tokens, seed=1, check=lambda: None
        )
    finally:
        detach(base, model)
    return [reply.ids for reply in sampled]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=5)
    args = parser.parse_args()
    base = load_base(args.base, threads=1)
    path = Path(__file__).with_name("questions.json")
    questions = json.loads(path.read_text(encoding="utf-8"))["train"][: args.questions]
    asked = [[Message(role="user", content=question)] for question in questions]
    prompts = [base.render(messages) for messages in asked]
    replies = replies_of(base, prompts)
    wishes = {wish.hint for person in PEOPLE.values() for wish in person.wishes}
    for hint in [*sorted(wishes), *SMALL_TALK]:
        effects, ratios = [], []
        for messages, plain, ids in zip(asked, prompts, replies, strict=True):
            hinted = base.render(hinted_messages(messages, hint=hint, correction=None))
            states = [response_hidden(base, base.model, [(p, ids)]) for p in (plain, hinted)]
            effects.append(float(kl_between(base, *states).mean()))
            pairs = [response_logprobs(base, base.model, (p, ids)) for p in (plain, hinted)]
            ratios.append(float((pairs[1] - pairs[0]).mean()))
        print(
            f"{statistics.fmean(effects):.3f} ({min(effects):.3f}-{max(effects):.3f})"
            f"  {statistics.fmean(ratios):+.3f}  {hint}",
            flush=True,
        )


if __name__ == "__main__":
    main()
