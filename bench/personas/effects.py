"""How far each hint moves the base on replies that were given without it: wishes and small talk.

    PYTHONPATH=. python bench/personas/effects.py --base var/models/SmolLM2-135M-Instruct

Per hint, over sampled replies, in nats per token, means and ranges: KL(base || hinted base), the
log-ratio of the replies' own words, and KL(base under a note that asks for nothing || hinted base),
with the share of replies where that is below `hint_effect_min`: there the hint is dropped.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

from bench.personas.people import PEOPLE
from rollouts.hints import hinted_messages, noted_messages
from rollouts.types import Message
from training.adapters import attach, detach
from training.base import Base, load_base
from training.config import TrainConfig
from training.forward import kl_between, response_hidden, response_logprobs
from training.sampling import sample_replies

OTHER_WISHES = ("too long", "Don't apologise.", "Use metric units.", "No, that's wrong.")
SMALL_TALK = (
    "My cat is called Tom.", "Today is Tuesday.", "I like the colour blue.", "asdf qwer zxcv",
    "hello", "haha", "ok", "Yes, exactly.", "Answer my question.", "What?", "Thank you.",
)  # fmt: skip


def replies_of(
    base: Base, prompts: list[tuple[int, ...]], *, tokens: int = 64
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
    notes = [base.render(noted_messages(messages)) for messages in asked]
    for hint in [*sorted(wishes), *OTHER_WISHES, *SMALL_TALK]:
        effects, ratios, beyond = [], [], []
        for messages, plain, note, ids in zip(asked, prompts, notes, replies, strict=True):
            hinted = base.render(hinted_messages(messages, hint=hint, correction=None))
            plain_TH, note_TH, hinted_TH = (
                response_hidden(base, base.model, [(p, ids)]) for p in (plain, note, hinted)
            )
            effects.append(float(kl_between(base, plain_TH, hinted_TH).mean()))
            beyond.append(float(kl_between(base, note_TH, hinted_TH).mean()))
            pairs = [response_logprobs(base, base.model, (p, ids)) for p in (plain, hinted)]
            ratios.append(float((pairs[1] - pairs[0]).mean()))
        dropped = statistics.fmean(nats < TrainConfig().hint_effect_min for nats in beyond)
        print(
            f"{shown(effects)}  {statistics.fmean(ratios):+.3f}"
            f"  {shown(beyond)} dropped {dropped:.2f}  {hint}",
            flush=True,
        )


def shown(nats: list[float]) -> str:
    return f"{statistics.fmean(nats):.3f} ({min(nats):.3f}-{max(nats):.3f})"


if __name__ == "__main__":
    main()
