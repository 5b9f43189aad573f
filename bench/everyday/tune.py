"""Tries training recipes on everyday questions with a simulated user; one JSON line per job.

    PYTHONPATH=. python bench/everyday/tune.py --base var/models/SmolLM2-135M-Instruct \
        --seed 0 --turns 32 --gate --set lr=2e-4

The user wants at most 35 words: a longer reply gets a thumb down with HINT, a shorter one a thumb
up. Eight rated turns make one job; each job starts from the last version with Adam's state.
Held-out questions are answered after 8 and after the last turns. `satisfied` counts replies of at
most 35 words, `satisfied_and_ended` those of them that also end by themselves (a run of emoji up to
the token limit is one word); `nll` is the frozen base's mean negative log-prob per token of the
replies under the hinted prompt (low: fluent and on topic); `mean_words` and `empty` show how it got
there. Everything is sampled in the trainer, without a server.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from rollouts.hints import hinted_messages
from rollouts.types import Message, Sample
from training.adapters import attach, detach, save_version
from training.advantages import Baseline
from training.base import Base, load_base
from training.config import TrainConfig
from training.drift import Wishes
from training.forward import logits, response_hidden, response_logprobs
from training.gate import decide, measure, neutral_prompts, warm
from training.logprobs import token_logprobs
from training.optimizer import save_optimizer
from training.sampling import sample_replies
from training.trainer import train
from training.types import StepMetrics

HINT = "Please answer in one or two short sentences, at most 30 words. No lists."
MAX_WORDS, MAX_TOKENS, TEMPERATURE, BATCH = 35, 96, 0.7, 8
QUESTIONS = Path(__file__).with_name("questions.json")


def nothing() -> None:
    """The check of a job that nobody cancels."""


def asked(question: str) -> list[Message]:
    return [Message(role="user", content=question)]


def text_of(base: Base, ids: Sequence[int]) -> str:
    return str(base.tokenizer.decode(ids, skip_special_tokens=True))


def rated_sample(
    base: Base, model: PeftModel, number: int, question: str, ids: tuple[int, ...]
) -> Sample:
    """The simulated user's verdict on one reply."""
    messages = asked(question)
    prompt_ids = base.render(messages)
    fits = len(text_of(base, ids).split()) <= MAX_WORDS
    with torch.no_grad():
        hidden_TH = response_hidden(base, model, [(prompt_ids, ids)])
        rolled = token_logprobs(
            logits(base, hidden_TH), torch.tensor(ids), temperature=TEMPERATURE
        ).tolist()
    return Sample(
        id=number,
        messages=messages,
        prompt_ids=prompt_ids,
        response_ids=ids,
        rollout_logprobs=rolled,
        temperature=TEMPERATURE,
        template_hash=base.template_hash,
        reward=1.0 if fits else -1.0,
        hint=None if fits else HINT,
        correction=None,
    )


def answer(
    base: Base, model: PeftModel, questions: Sequence[str], seed: int
) -> list[tuple[int, ...]]:
    prompts = [base.render(asked(question)) for question in questions]
    replies = sample_replies(
        base,
        model,
        prompts,
        temperature=TEMPERATURE,
        max_new_tokens=MAX_TOKENS,
        seed=seed,
        check=nothing,
    )
    return [reply.ids for reply in replies]


def evaluate(base: Base, model: PeftModel, questions: Sequence[str], seed: int) -> dict[str, Any]:
    replies = answer(base, model, questions, seed)
    words = [len(text_of(base, ids).split()) for ids in replies]
    ended = [
        n <= MAX_WORDS and ids[-1] in base.eos_ids for n, ids in zip(words, replies, strict=True)
    ]
    losses: list[float] = []
    for question, ids in zip(questions, replies, strict=True):
        hinted = base.render(hinted_messages(asked(question), hint=HINT, correction=None))
        with model.disable_adapter():
            losses += (-response_logprobs(base, model, (hinted, ids))).tolist()
    return {
        "satisfied": round(sum(n <= MAX_WORDS for n in words) / len(words), 3),
        "satisfied_and_ended": round(sum(ended) / len(words), 3),
        "nll": round(sum(losses) / len(losses), 3),
        "mean_words": round(sum(words) / len(words), 1),
        "empty": sum(n == 0 for n in words),
        "examples": [text_of(base, ids)[:160] for ids in replies[:4]],
    }


def run(base: Base, config: TrainConfig, args: argparse.Namespace, folder: Path) -> None:
    data = json.loads(args.questions.read_text(encoding="utf-8"))
    order = random.Random(args.seed).sample(data["train"], len(data["train"]))
    parent: Path | None = None
    optimizer: Path | None = None
    baseline = Baseline()
    if args.gate:
        warm(base, neutral_prompts(), config)
    for job in range(args.turns // BATCH):
        turn = job * BATCH
        questions = [order[(turn + i) % len(order)] for i in range(BATCH)]
        model = attach(base, dataclasses.replace(config, seed=args.seed * 1000 + job), parent)
        replies = answer(base, model, questions, seed=args.seed * 1000 + job)
        samples = [
            rated_sample(base, model, turn + i, question, ids)
            for i, (question, ids) in enumerate(zip(questions, replies, strict=True))
        ]
        steps: list[StepMetrics] = []
        began = time.monotonic()
        result = train(
            base, model, samples, dataclasses.replace(config, seed=args.seed * 1000 + job),
            parent_optimizer=optimizer, baseline=baseline, on_step=steps.append, check=nothing,
        )  # fmt: skip
        trained = time.monotonic() - began
        grandparent, parent = parent, folder / f"v{job + 1}"
        save_version(model, parent)
        optimizer = folder / f"v{job + 1}.adam"
        save_optimizer(result.optimizer, optimizer)
        baseline = result.baseline
        line: dict[str, Any] = {
            "turns": turn + BATCH,
            "liked": sum(s.reward == 1 for s in samples),
            "kl": [None if s.kl is None else round(s.kl, 3) for s in steps],
            "norm": [round(s.grad_norm, 2) for s in steps],
            "stopped": result.stopped,
            "train_s": round(trained, 1),
        }
        if args.gate:
            began = time.monotonic()
            wishes = Wishes(hints=(HINT,))
            measures = measure(
                base, model, grandparent, (), neutral_prompts(), wishes, config, nothing
            )
            decision = decide(measures)
            line["gate"] = {m.measure: m.value and round(m.value, 3) for m in measures}
            line["drift_limit"] = next(m.limit for m in measures if m.measure == "drift")
            line["accepted"], line["gate_s"] = decision.accepted, round(time.monotonic() - began, 1)
        if turn + BATCH in (8, args.turns):
            line |= evaluate(base, model, data["held_out"], seed=77)
        detach(base, model)
        print(json.dumps({"label": args.label, "seed": args.seed} | line), flush=True)


def overrides(pairs: Sequence[str]) -> dict[str, Any]:
    return {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in pairs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=32)
    parser.add_argument("--label", default="default")
    parser.add_argument("--gate", action="store_true", help="measure the gate after each job")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="FIELD=JSON", help="TrainConfig fields"
    )
    args = parser.parse_args()
    base = load_base(args.base)
    with tempfile.TemporaryDirectory() as folder:
        run(base, TrainConfig(**overrides(args.set)), args, Path(folder))


if __name__ == "__main__":
    main()
