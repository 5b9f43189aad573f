"""Makes what all contestants are given: a batch of the base's own replies, and an adapter.

A process of its own, so that the one that waits for the contestants holds no model.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from rollouts.hints import hinted_messages
from rollouts.types import Message, Sample
from training.adapters import adapter_tensors, attach, save_version
from training.base import Base, load_base
from training.config import TrainConfig
from training.sampling import sample_replies

HINT = "Please answer in one or two short sentences, at most 30 words. No lists."
QUESTIONS = Path(__file__).parent.parent / "everyday" / "questions.json"
REPLIES, SEED = 8, 0
SPREAD = 0.002  # of the adapter's B: away from the base, so that no log-ratio is 0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Tokens of a prompt, at least, of which so many are a system prompt that all share, and of
    each reply. What agents are told of their tools is far longer still."""

    prompt: int
    reply: int
    system: int = 0


SHAPES = {
    "short": Shape(prompt=0, reply=64),
    "long": Shape(prompt=200, reply=160),
    "agent": Shape(prompt=0, reply=64, system=160),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--spread", type=float, default=SPREAD)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    base = load_base(args.base, device=args.device)
    config = TrainConfig()
    model = attach(base, config, None)
    settings = {
        "rank": config.rank,
        "alpha": config.alpha,
        "lr": config.lr,
        "beta1": config.beta1,
        "beta2": config.beta2,
        "grad_clip": config.grad_clip,
        "kto_beta": config.kto_beta,
    }
    for name in args.shapes:
        batch = {"settings": settings, "rows": rows(base, model, SHAPES[name])}
        (args.out / f"{name}.json").write_text(json.dumps(batch), encoding="utf-8")
    torch.manual_seed(SEED)
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            if not bool(tensor.any()):
                tensor.normal_(std=args.spread)
    save_version(model, args.out / "adapter")


def rows(base: Base, model: PeftModel, shape: Shape) -> list[dict[str, Any]]:
    """Replies of one length each, so that a mean over tokens is also one over replies."""
    questions = json.loads(QUESTIONS.read_text(encoding="utf-8"))["train"]
    found: list[dict[str, Any]] = []
    for start in range(0, len(questions), REPLIES):
        asked = [
            prompt(base, questions, number, shape)
            for number in range(start, min(start + REPLIES, len(questions)))
        ]
        replies = sample_replies(
            base,
            model,
            [base.render(messages) for messages in asked],
            temperature=0.7,
            max_new_tokens=shape.reply,
            seed=SEED + start,
            check=lambda: None,
        )
        for messages, reply in zip(asked, replies, strict=True):
            if len(reply.ids) == shape.reply and len(found) < REPLIES:
                found.append(row(base, messages, reply.ids, liked=len(found) % 2 == 0))
        if len(found) == REPLIES:
            return found
    raise SystemExit(f"the base has not given {REPLIES} replies of {shape.reply} tokens")


def prompt(base: Base, questions: list[str], number: int, shape: Shape) -> list[Message]:
    """The question, after as many others as its prompt's length takes."""
    system = instructions(base, questions, shape.system)
    before: list[str] = []
    while True:
        said = " ".join([*before, questions[number]])
        messages = [*system, Message(role="user", content=said)]
        if len(base.render(messages)) >= shape.prompt:
            return messages
        before.append(questions[(number + len(before) + 1) % len(questions)])


def instructions(base: Base, questions: list[str], tokens: int) -> list[Message]:
    """A system prompt of at least so many tokens, 0 being none."""
    if not tokens:
        return []
    said = "You help people with questions such as these:"
    for question in questions:
        if len(base.encode(said)) >= tokens:
            break
        said += f"\n- {question}"
    return [Message(role="system", content=said)]


def row(
    base: Base, messages: list[Message], ids: tuple[int, ...], *, liked: bool
) -> dict[str, Any]:
    hinted = hinted_messages(messages, hint=HINT, correction=None)
    return {
        "messages": messages,
        "hint": HINT,
        "hint_block": hinted[-1]["content"].removeprefix(messages[-1]["content"]),
        "prompt_ids": base.render(messages),
        "hinted_prompt_ids": base.render(hinted),
        "response_ids": ids,
        "liked": liked,
    }


def sample_of(
    base: Base, number: int, row: dict[str, Any], *, reward: float, hint: str | None
) -> Sample:
    """A row as the trainer takes it."""
    return Sample(
        id=number,
        messages=row["messages"],
        prompt_ids=row["prompt_ids"],
        response_ids=row["response_ids"],
        rollout_logprobs=None,
        temperature=0.7,
        template_hash=base.template_hash,
        reward=reward,
        hint=hint,
        correction=None,
    )


if __name__ == "__main__":
    main()
