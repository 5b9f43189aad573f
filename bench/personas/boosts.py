"""What the boosted teacher itself does: how often it keeps a wish, and how fluent it is.

    PYTHONPATH=. python bench/personas/boosts.py --base var/models/SmolLM2-135M-Instruct \\
        --people short plain greets --boosts 0 0.3 0.6 1 --question-boosts 0 0.5 --held-out 24

Replies to held-out questions are drawn, at the bench's temperature, from the base's logits under
the hint, b times further and its first words held c times to the question: z_h + b (z_h - z_p)
+ c (z_p - z_u).
Per b and c: the share that satisfies, the base's nll of the replies under the hint, their mean
length, how much likelier the median reply is after its own question than after the next (nats, by
the base; the share under 10), and how far that teacher itself is from the base on the gate's
neutral prompts. No adapter, no server.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
from peft import PeftModel

from bench.personas.cell import quiet
from bench.personas.lab import MAX_TOKENS, TEMPERATURE, asked
from bench.personas.people import PEOPLE, Answer, Person
from bench.personas.questions import is_recipe, questions_for
from training.adapters import attach
from training.base import Base, load_base
from training.config import TrainConfig
from training.drift import _greedy_pairs
from training.forward import boosted, held_to_question, hidden_of, kl_between, response_logprobs
from training.gate import neutral_prompts, question_gains
from training.sampling import Reply, _Decoder, _draw


@torch.no_grad()
def boosted_replies(
    base: Base,
    model: PeftModel,
    hinted: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    unasked: Sequence[Sequence[int]],
    config: TrainConfig,
) -> list[Reply]:
    """One to each three prompts: they are read side by side and go on with the same words."""
    generator = torch.Generator().manual_seed(7)
    words: list[list[int]] = [[] for _ in hinted]
    rows = torch.arange(len(hinted))
    with base.autocast(), model.disable_adapter():
        decoder = _Decoder(base, model, [*hinted, *plain, *unasked])
        for place in range(MAX_TOKENS):
            held = config.question_boost if place < config.question_tokens else 0.0
            hinted_BV, plain_BV, unasked_BV = decoder.logits_BV.chunk(3)
            # Logits are as linear as states.
            taught_BV = boosted(hinted_BV, plain_BV, boost=config.hint_boost)
            taught_BV = held_to_question(taught_BV, plain_BV, unasked_BV, boost=held)
            next_B = _draw(taught_BV, TEMPERATURE, generator)
            for row, token in zip(rows.tolist(), next_B.tolist(), strict=True):
                words[row].append(token)
            going_B = torch.isin(next_B, torch.tensor(base.eos_ids), invert=True)
            rows = rows[going_B]
            if not len(rows):
                break
            decoder.advance(next_B.repeat(3), going_B.repeat(3))
    return [Reply(ids=tuple(ids), is_finished=ids[-1] in base.eos_ids) for ids in words]


@torch.no_grad()
def drift_of(base: Base, model: PeftModel, person: Person, config: TrainConfig) -> float:
    """KL(base || teacher) per token, nats: what the gate would say to a perfect student."""
    neutral = neutral_prompts()
    replies = [pair[1] for pair in _greedy_pairs(base, model, neutral, config, quiet)]
    with model.disable_adapter():
        hinted_NH, plain_NH, unasked_NH = (
            hidden_of(base, model, tuple(zip(prompts, replies, strict=True)), quiet)
            for prompts in three_prompts(base, person, neutral)
        )
    places_N = torch.cat([torch.arange(len(reply)) for reply in replies])
    held_N = config.question_boost * (places_N < config.question_tokens)
    taught_NH = boosted(hinted_NH, plain_NH, boost=config.hint_boost)
    taught_NH = held_to_question(taught_NH, plain_NH, unasked_NH, boost=held_N.unsqueeze(-1))
    return float(kl_between(base, plain_NH, taught_NH).mean())


def three_prompts(
    base: Base, person: Person, questions: Sequence[str]
) -> tuple[list[tuple[int, ...]], ...]:
    """Each question under the hint, plain, and left out."""
    return (
        [base.render(asked(question, [person.hint])) for question in questions],
        [base.render(asked(question)) for question in questions],
        [base.render(asked("")) for _ in questions],
    )


def line_of(
    base: Base, model: PeftModel, person: Person, config: TrainConfig, held_out: int
) -> str:
    questions = questions_for(person, 0, held_out)[1]
    hinted, plain, unasked = three_prompts(base, person, questions)
    replies = boosted_replies(base, model, hinted, plain, unasked, config)
    answers = [
        Answer(
            question=question,
            text=base.tokenizer.decode(reply.ids, skip_special_tokens=True),
            tokens=len(reply.ids),
            has_ended=reply.is_finished,
            is_recipe=is_recipe(question),
        )
        for question, reply in zip(questions, replies, strict=True)
    ]

    ids = [reply.ids for reply in replies]
    pairs = zip(hinted, ids, strict=True)
    nll = -float(torch.cat([response_logprobs(base, base.model, pair) for pair in pairs]).mean())
    about = question_gains(base, base.model, plain, ids, quiet)
    satisfied = statistics.fmean(person.is_satisfied(answer) for answer in answers)
    tokens = statistics.fmean(answer.tokens for answer in answers)
    drift = drift_of(base, model, person, config)
    return (
        f"{config.hint_boost:g}, {config.question_boost:g}: {satisfied:.2f} / {nll:.2f},"
        f" {tokens:.0f} tokens, of the question {statistics.median(about):.0f}"
        f" (under 10: {statistics.fmean(nats < 10 for nats in about):.2f}), drift {drift:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--people", nargs="+", default=["short"], choices=PEOPLE)
    parser.add_argument("--boosts", nargs="+", type=float, default=[0.0, 0.3, 0.6, 1.0])
    parser.add_argument("--question-boosts", nargs="+", type=float, default=[0.0])
    parser.add_argument("--question-tokens", type=int, default=TrainConfig().question_tokens)
    parser.add_argument("--held-out", type=int, default=24)
    args = parser.parse_args()
    base = load_base(args.base)
    model = attach(base, TrainConfig(), None)
    for name in args.people:
        for b, c in product(args.boosts, args.question_boosts):
            config = TrainConfig(
                hint_boost=b, question_boost=c, question_tokens=args.question_tokens
            )
            line = line_of(base, model, PEOPLE[name], config, args.held_out)
            print(name, line, flush=True)


if __name__ == "__main__":
    main()
