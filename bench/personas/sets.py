"""How many sets of re-answers should a few complaints ask for? The default, by two rules.

    PYTHONPATH=. python bench/personas/sets.py --people short plain --seeds 0 1 --answers 2

Of n rated replies of which d were not liked a job takes ceil(6 d / n) sets ("share", as before
decision 0034) or ceil(6 sqrt(d / n)) ("root", the trainer's own). Per person, seed and rule: the
share of answers that satisfy after each job, to 96 held-out questions and so often as `--answers`
says, their mean length, and of each job so far how many replies were liked and how many steps it
made.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from bench.personas.cell import Cell
from bench.personas.lab import answer_of, asked, own_lab
from bench.personas.people import PEOPLE
from bench.personas.recipes import RECIPES
from bench.personas.rows import DEFAULT
from rollouts.types import Sample
from training.config import TrainConfig

RULES: dict[str, Callable[[float], float]] = {"share": lambda share: share, "root": math.sqrt}
ASKED = 96  # held-out questions


class Ruled(Cell):
    """A cell whose jobs take as many sets as `rule` says, and which is asked `answers` times."""

    rule = "share"
    answers = 1

    def train(self, samples: Sequence[Sample], config: TrainConfig, folder: Path) -> dict[str, Any]:
        unliked = sum(sample.is_hinted or sample.reward != 1.0 for sample in samples)
        sets = math.ceil((config.max_steps - 1) * RULES[self.rule](unliked / len(samples)))
        config = replace(config, reanswer_sets="all", max_steps=sets + 1)
        return super().train(samples, config, folder)

    def examine(self) -> dict[str, Any]:
        kept, tokens = [], []
        for number in range(self.answers):
            seed = self.seed * 10_000 + 5000 + 1000 * number
            replies = self.lab.ask([asked(q) for q in self.held_out], self.policy, seed=seed)
            for pair in zip(self.held_out, replies, strict=True):
                answer = answer_of(*pair)
                kept.append(self.person.is_satisfied(answer))
                tokens.append(answer.tokens)
        found = {"satisfied": statistics.fmean(kept), "tokens": statistics.fmean(tokens)}
        return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", nargs="+", default=["short"], choices=PEOPLE)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--turns", type=int, default=32)
    parser.add_argument("--answers", type=int, default=1)
    args = parser.parse_args()
    recipe = RECIPES[DEFAULT]
    with own_lab() as lab:
        each = range(recipe.batch, args.turns + 1, recipe.batch)
        for name, seed, rule in product(args.people, args.seeds, RULES):
            named = replace(recipe, name=f"{recipe.name}-{rule}")
            cell = Ruled(lab, named, PEOPLE[name], seed, ASKED, asked_at=each)
            cell.rule, cell.answers = rule, args.answers
            done = cell.run(args.turns, with_gate=False)
            jobs = [(update["liked"], update["steps"]) for update in done["updates"]]
            print(name, seed, rule, done["evals"], jobs, flush=True)


if __name__ == "__main__":
    main()
