"""What it saves to round frozen weights to bf16 once: a pass with its gradient, and re-answers.
And what laying them out once saves re-answers, and plain products the attention of such a pass.

    PYTHONPATH=. python bench/trainer/rounding.py --base var/models/SmolLM2-135M-Instruct

For CPUs with bf16. Both ways take turns; a ratio is of one pair of turns, above 1 where ours takes
less CPU time, which other work on the machine changes least. One torch thread, four sequences of
40 + 56 random tokens, as a job has.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from peft import PeftModel

from bench.trainer.report import ratios
from training.adapters import attach, merged
from training.base import Base, load_base
from training.config import TrainConfig
from training.forward import response_hidden
from training.sampling import sample_replies

ROWS, PROMPT, REPLY = 4, 40, 56


def a_pass(base: Base, model: PeftModel) -> None:
    """Forward and back, without the output layer."""
    ids = torch.randint(5, 5000, (ROWS, PROMPT + REPLY)).tolist()
    pairs = [(row[:PROMPT], row[PROMPT:]) for row in ids]
    response_hidden(base, model, pairs).float().sum().backward()  # type: ignore[no-untyped-call]
    model.zero_grad()


def reanswers(base: Base, model: PeftModel) -> None:
    prompts = torch.randint(5, 5000, (ROWS, PROMPT)).tolist()
    sample_replies(
        base, model, prompts, temperature=0.7, max_new_tokens=REPLY, seed=1, check=lambda: None
    )


Work = Callable[[Base, PeftModel], None]


def rounding_anew(work: Work, base: Base, model: PeftModel) -> None:
    """Every product rounds the weights that it needs."""
    with (
        mock.patch.object(Base, "lowered", Base.autocast),
        mock.patch("training.sampling.merged", lambda model, low: merged(model)),
    ):
        work(base, model)


def laying_out_anew(work: Work, base: Base, model: PeftModel) -> None:
    """Every product puts its weights, rounded once, into oneDNN's order."""
    with mock.patch("training.adapters._LAYS_OUT", False):
        work(base, model)


def with_torchs_attention(work: Work, base: Base, model: PeftModel) -> None:
    """As transformers has it by default."""
    with mock.patch("training.forward.PLAIN_ATTENTION", 0):
        work(base, model)


def seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    base = load_base(args.base, device="cpu", threads=1)
    if base.autocast_dtype is None:
        raise SystemExit("this CPU has no bf16: nothing is rounded on it")
    model = attach(base, TrainConfig(), None)
    compare(a_pass, rounding_anew, base, model, args.rounds)
    compare(reanswers, rounding_anew, base, model, args.rounds)
    compare(reanswers, laying_out_anew, base, model, args.rounds)
    compare(a_pass, with_torchs_attention, base, model, args.rounds)


def compare(
    work: Work,
    other: Callable[[Work, Base, PeftModel], None],
    base: Base,
    model: PeftModel,
    rounds: int,
) -> None:
    """Prints the seconds of the work as it is and the other way."""
    pairs = []
    for turn in range(rounds + 1):
        torch.manual_seed(turn)
        ours = seconds(lambda: work(base, model))
        torch.manual_seed(turn)
        pairs.append((seconds(lambda: other(work, base, model)), ours))
    del pairs[0]  # the first one warms up
    old, new = zip(*pairs, strict=True)
    print(
        f"{work.__name__}, {other.__name__}: {statistics.median(old):.2f} CPU s,"
        f" ours {statistics.median(new):.2f} s; {ratios(old, new)} times as fast"
    )


if __name__ == "__main__":
    main()
