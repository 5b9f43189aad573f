"""How far each hint moves the base on replies that were given without it: wishes and small talk.

    PYTHONPATH=. python bench/personas/effects.py --base var/models/SmolLM2-135M-Instruct --before 4

Per hint, over sampled replies, means and ranges: KL(base || hinted base) and the log-ratio of the
replies' own words, nats per token; and the hint's own share, KL(base under a note that asks for
nothing || hinted base) / KL(base || hinted base), with how many replies have it below
`hint_effect_min`: there the hint is dropped. `--before`: exchanges that come before the question.
`--about`: recipes instead of what anybody asks, to see whether a hint moves only what it is about.
What else might tell a wish from small talk: `--notes`, of which the nearest counts; `--after`, the
tokens of a reply that are left out.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

from bench.personas.people import PEOPLE
from bench.personas.questions import all_questions
from rollouts.hints import NOTE, hinted_messages
from rollouts.types import Message
from training.adapters import attach, detach
from training.base import Base, load_base
from training.config import TrainConfig
from training.forward import kl_between, response_hidden, response_logprobs
from training.sampling import sample_replies
from training.teacher import own_share

WISHES = sorted({wish.hint for person in PEOPLE.values() for wish in person.wishes})
OTHER_WISHES = ("too long", "Don't apologise.", "Use metric units.", "No, that's wrong.")
SMALL_TALK = (
    "My cat is called Tom.", "Today is Tuesday.", "I like the colour blue.", "asdf qwer zxcv",
    "hello", "haha", "ok", "Yes, exactly.", "Answer my question.", "What?", "Thank you.",
)  # fmt: skip


def replies_of(
    base: Base, prompts: list[tuple[int, ...]], *, tokens: int = 64, seed: int = 1
) -> list[tuple[int, ...]]:
    """One sampled reply of the base to each prompt."""
    model = attach(base, TrainConfig(), None)
    try:
        sampled = sample_replies(
            base,
            model,
            prompts,
            temperature=0.7,
            max_new_tokens=tokens,
            seed=seed,
            check=lambda: None,
        )
    finally:
        detach(base, model)
    return [reply.ids for reply in sampled]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=5)
    parser.add_argument("--about", choices=["train", "recipes"], default="train")
    parser.add_argument("--hints", nargs="+", default=[*WISHES, *OTHER_WISHES, *SMALL_TALK])
    parser.add_argument("--before", type=int, default=0)
    parser.add_argument("--notes", nargs="+", default=[NOTE])
    parser.add_argument("--after", type=int, default=0)
    args = parser.parse_args()
    base = load_base(args.base, threads=1)
    questions = all_questions()[args.about][: args.questions]
    asked = [[Message(role="user", content=question)] for question in questions]
    for turn in range(args.before):
        said = replies_of(base, [base.render(messages) for messages in asked])
        asked = [
            [*messages, answered(base, ids), Message(role="user", content=next_one)]
            for messages, ids, next_one in zip(
                asked, said, [*questions[turn + 1 :], *questions[: turn + 1]], strict=True
            )
        ]
    prompts = [base.render(messages) for messages in asked]
    replies = replies_of(base, prompts)
    notes = [
        [
            response_hidden(base, base.model, [(under(base, messages, note), ids)])
            for note in args.notes
        ]
        for messages, ids in zip(asked, replies, strict=True)
    ]
    for hint in args.hints:
        effects, ratios, shares = [], [], []
        for messages, plain, noted, ids in zip(asked, prompts, notes, replies, strict=True):
            hinted = under(base, messages, hint)
            plain_TH, hinted_TH = (
                response_hidden(base, base.model, [(p, ids)]) for p in (plain, hinted)
            )
            moved_T = kl_between(base, plain_TH, hinted_TH)[args.after :]
            effects.append(float(moved_T.mean()))
            own = (kl_between(base, note_TH, hinted_TH)[args.after :] for note_TH in noted)
            shares.append(min(own_share(own_T, moved_T) for own_T in own))
            pairs = [response_logprobs(base, base.model, (p, ids)) for p in (plain, hinted)]
            ratios.append(float((pairs[1] - pairs[0]).mean()))
        dropped = statistics.fmean(share < TrainConfig().hint_effect_min for share in shares)
        print(
            f"{shown(effects, 3)}  {statistics.fmean(ratios):+.3f}"
            f"  {shown(shares, 2)} dropped {dropped:.2f}  {hint}",
            flush=True,
        )


def answered(base: Base, ids: tuple[int, ...]) -> Message:
    return Message(role="assistant", content=base.tokenizer.decode(ids, skip_special_tokens=True))


def under(base: Base, messages: list[Message], hint: str) -> tuple[int, ...]:
    return base.render(hinted_messages(messages, hint=hint, correction=None))


def shown(values: list[float], digits: int) -> str:
    ends = f"{min(values):.{digits}f}-{max(values):.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ({ends})"


if __name__ == "__main__":
    main()
