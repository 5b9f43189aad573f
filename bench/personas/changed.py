"""Is somebody heard who changes their mind? They like what comes first, and then have their wish.

    PYTHONPATH=. python bench/personas/changed.py --people short --content 8 --turns 24

By the default, and by the same without KTO after its hints: the share of held-out answers that
satisfy after each job, their nll and mean length, and of each job how many replies were liked and
how many steps it made.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product

from bench.personas.cell import Cell
from bench.personas.lab import own_lab
from bench.personas.people import PEOPLE
from bench.personas.questions import HELD_OUT
from bench.personas.recipes import RECIPES
from bench.personas.rows import DEFAULT
from rollouts.types import Sample

SHOWN = ("satisfied", "nll", "tokens")


class Changed(Cell):
    """Whoever rates the first `content` replies of it likes any."""

    content = 8

    def rate(self, done: int, count: int) -> list[Sample]:
        if done >= self.content:
            return super().rate(done, count)
        person, self.person = self.person, replace(self.person, wishes=())
        try:
            return super().rate(done, count)
        finally:
            self.person = person


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", nargs="+", default=["short"], choices=PEOPLE)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--content", type=int, default=8, help="replies that are liked; whole jobs")
    parser.add_argument("--turns", type=int, default=24)
    args = parser.parse_args()
    with own_lab() as lab:
        kinds = (DEFAULT, "combine-thumbless")
        for name, seed, kind in product(args.people, args.seeds, kinds):
            recipe = replace(RECIPES[kind], name=f"changed-{kind}")
            each = range(recipe.batch, args.turns + 1, recipe.batch)
            cell = Changed(lab, recipe, PEOPLE[name], seed, HELD_OUT, asked_at=each)
            cell.content = args.content
            done = cell.run(args.turns, with_gate=False)
            evals = {n: {what: found[what] for what in SHOWN} for n, found in done["evals"].items()}
            jobs = [(update["liked"], update["steps"]) for update in done["updates"]]
            print(name, seed, kind, evals, jobs, flush=True)


if __name__ == "__main__":
    main()
