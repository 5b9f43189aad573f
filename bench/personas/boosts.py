"""What the boosted teacher itself does: how often it keeps a wish, and how fluent it is.

    PYTHONPATH=. python bench/personas/boosts.py --base var/models/SmolLM2-135M-Instruct \\
        --people short plain greets --boosts 0 0.3 0.6 1 --held-out 24

Replies to held-out questions are drawn, at the bench's temperature, from the base's logits under
the hint and `boost` times further: z_h + b (z_h - z_p). Per boost: the share that satisfies, the
base's nll of the replies under the hint, their mean length, and how far the boosted base itself is
from the base on the gate's neutral prompts. No adapter, no server.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel

from bench.personas.cell import MAX_TOKENS, TEMPERATURE, asked, is_recipe, questions_for, quiet
from bench.personas.people import PEOPLE, Answer, Person
from training.adapters import attach
from training.base import Base, load_base
from training.config import TrainConfig
from training.drift import _greedy_pairs, _hidden
from training.forward import boosted, kl_between, response_logprobs
from training.gate import neutral_prompts
from training.sampling import Reply, _Decoder, _draw


@torch.no_grad()
def boosted_replies(
    base: Base,
    model: PeftModel,
    hinted: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    boost: float,
) -> list[Reply]:
    """One to each pair of prompts: both are read side by side and go on with the same words."""
    generator = torch.Generator().manual_seed(7)
    words: list[list[int]] = [[] for _ in hinted]
    rows = torch.arange(len(hinted))
    with base.autocast(), model.disable_adapter():
        decoder = _Decoder(base, model, [*hinted, *plain])
        for _ in range(MAX_TOKENS):
            hinted_BV, plain_BV = decoder.logits_BV.chunk(2)
            next_B = _draw(hinted_BV + boost * (hinted_BV - plain_BV), TEMPERATURE, generator)
            for row, token in zip(rows.tolist(), next_B.tolist(), strict=True):
                words[row].append(token)
            going_B = torch.isin(next_B, torch.tensor(base.eos_ids), invert=True)
            rows = rows[going_B]
            if not len(rows):
                break
            decoder.advance(next_B.repeat(2), going_B.repeat(2))
    return [Reply(ids=tuple(ids), is_finished=ids[-1] in base.eos_ids) for ids in words]


@torch.no_grad()
def drift_of(base: Base, model: PeftModel, person: Person, boost: float) -> float:
    """KL(base || boosted base) per token, nats: what the gate would say to a perfect student."""
    neutral, config = neutral_prompts(), TrainConfig()
    replies = [pair[1] for pair in _greedy_pairs(base, model, neutral, config, quiet)]
    plain = [base.render(asked(prompt)) for prompt in neutral]
    hinted = [base.render(asked(prompt, [person.hint])) for prompt in neutral]
    with model.disable_adapter():
        plain_NH, hinted_NH = (
            _hidden(base, model, tuple(zip(prompts, replies, strict=True)), quiet)
            for prompts in (plain, hinted)
        )
    return float(kl_between(base, plain_NH, boosted(hinted_NH, plain_NH, boost=boost)).mean())


def line_of(base: Base, model: PeftModel, person: Person, boost: float, held_out: int) -> str:
    questions = questions_for(person, 0, held_out)[1]
    hinted = [base.render(asked(question, [person.hint])) for question in questions]
    plain = [base.render(asked(question)) for question in questions]
    replies = boosted_replies(base, model, hinted, plain, boost)
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
    losses = [
        -value
        for prompt, reply in zip(hinted, replies, strict=True)
        for value in response_logprobs(base, base.model, (prompt, reply.ids)).tolist()
    ]
    satisfied = statistics.fmean(person.is_satisfied(answer) for answer in answers)
    tokens = statistics.fmean(answer.tokens for answer in answers)
    drift = drift_of(base, model, person, boost)
    nll = statistics.fmean(losses)
    return f"{boost:g}: {satisfied:.2f} / {nll:.2f}, {tokens:.0f} tokens, drift {drift:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--people", nargs="+", default=["short"], choices=PEOPLE)
    parser.add_argument("--boosts", nargs="+", type=float, default=[0.0, 0.3, 0.6, 1.0])
    parser.add_argument("--held-out", type=int, default=24)
    args = parser.parse_args()
    base = load_base(args.base)
    model = attach(base, TrainConfig(), None)
    for name in args.people:
        for boost in args.boosts:
            line = line_of(base, model, PEOPLE[name], boost, args.held_out)
            print(name, line, flush=True)


if __name__ == "__main__":
    main()
