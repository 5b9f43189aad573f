"""Can the base tell that a newer hint contradicts what was liked before? By log-probs under it.

    PYTHONPATH=. python bench/personas/contradictions.py --base var/models/SmolLM2-135M-Instruct

Replies are sampled under a hint and so taken to be liked; per pair of hints: how much the second
one changes their mean log-prob per token, and the share of them that lose more than 0.1 nats.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from bench.personas.effects import replies_of
from rollouts.hints import hinted_messages
from rollouts.types import Message
from training.base import Base, load_base
from training.forward import response_logprobs

TOKENS = 32
WISHES = {
    "short": "Please answer in one or two short sentences, at most 30 words. No lists.",
    "long": "Please answer in detail, with at least 150 words and examples.",
    "lists": "Please answer with a numbered list.",
    "prose": "Please answer in plain prose, without lists or bold.",
}
OPPOSITES = {"short": "long", "long": "short", "lists": "prose", "prose": "lists"}
UNRELATED = {
    "a name": "My name is Sam and I live in Norway.",
    "units": "Please use metric units.",
    "cats": "By the way, I like cats.",
}


def prompts(base: Base, questions: list[str], hint: str | None) -> list[tuple[int, ...]]:
    asked = [[Message(role="user", content=question)] for question in questions]
    return [base.render(hinted_messages(m, hint=hint, correction=None)) for m in asked]


def change(base: Base, questions: list[str], ids: list[tuple[int, ...]], hint: str) -> list[float]:
    """Per reply the mean of log pi_0(y_t | x + hint) - log pi_0(y_t | x)."""
    pairs = zip(prompts(base, questions, None), prompts(base, questions, hint), ids, strict=True)
    return [
        float((logprobs_under - logprobs_plain).mean())
        for plain, hinted, reply in pairs
        for logprobs_plain, logprobs_under in [
            [response_logprobs(base, base.model, (prompt, reply)) for prompt in (plain, hinted)]
        ]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=8)
    args = parser.parse_args()
    base = load_base(args.base, threads=1)
    path = Path(__file__).with_name("questions.json")
    questions = json.loads(path.read_text(encoding="utf-8"))["train"][: args.questions]
    for name, wish in WISHES.items():
        ids = replies_of(base, prompts(base, questions, wish), tokens=TOKENS)
        others = {
            "itself": wish,
            f"its opposite ({OPPOSITES[name]})": WISHES[OPPOSITES[name]],
            **UNRELATED,
        }
        for label, hint in others.items():
            changes = change(base, questions, ids, hint)
            lost = statistics.fmean(value < -0.1 for value in changes)
            print(f"{name:6} {label:24} {statistics.fmean(changes):+.3f}  {lost:.2f}", flush=True)


if __name__ == "__main__":
    main()
