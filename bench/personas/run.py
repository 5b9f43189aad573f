"""Simulated people rate replies; how soon does each recipe give them what they want?

    make bench-personas                                   # all recipes on three people, one seed
    make bench-personas ARGS="--recipes opd memory --people short greets --seeds 0 1 --turns 16"
    make bench-personas ARGS="--quick"                    # one person, eight ratings, must learn

One cell is a recipe, a person and a seed. Replies come from vLLM (its ids and log-probs train),
training is the project's own `training.trainer`, in this process. Each cell ends as one line of
results/cells.jsonl; cells that are there are not run again. Held-out questions are never rated.

Per number of rated turns: `satisfied`, the share of held-out first answers that keep to all wishes;
`nll`, the base's mean negative log-prob per token of those answers under the hinted prompt (low is
fluent and on topic). Per update: seconds. At the end: what the gate measures (drift, repetition …).
`three`: rated turns until three in a row passed; nobody's gate stops a version here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.personas.people import PEOPLE, Answer, Person
from bench.personas.recipes import RECIPES, Recipe
from bench.personas.report import write_report
from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.engines.base import Engine
from rollouts.hints import hinted_messages
from rollouts.types import BASE, Message, Policy, Rollout, Sample, SamplingParams
from tests.realstack import new_stack
from training.adapters import attach, detach, save_version
from training.advantages import Baseline
from training.base import Base, load_base
from training.forward import response_logprobs
from training.gate import decide, measure, neutral_prompts
from training.optimizer import save_optimizer
from training.trainer import train

HERE = Path(__file__).parent
MAX_TOKENS, TEMPERATURE, HELD_OUT = 160, 0.7, 24
EVALS = (0, 4, 8, 16, 32, 64)
FIRST_STAGE = ("short", "greets", "recipes")
REPLAYED = 8  # as the product does
QUICK_TURNS, QUICK_GAIN = 8, 0.25


class Lab:
    """A served model, the same model to train, and a folder for versions."""

    def __init__(self, engine: Engine, base: Base, folder: Path) -> None:
        self.engine, self.base, self.folder = engine, base, folder
        self.first_evals: dict[tuple[str, int], dict[str, Any]] = {}  # by person and seed

    def ask(
        self, prompts: Sequence[Sequence[Message]], policy: Policy, *, seed: int
    ) -> list[Rollout]:
        """One sampled reply to each, all at once."""

        async def all_of_them() -> list[Rollout]:
            return await asyncio.gather(
                *(
                    self.engine.generate(
                        prompt,
                        policy=policy,
                        params=SamplingParams(
                            temperature=TEMPERATURE, max_tokens=MAX_TOKENS, seed=seed + i
                        ),
                    )
                    for i, prompt in enumerate(prompts)
                )
            )

        return asyncio.run(all_of_them())

    def score(self, prompt_ids: Sequence[int], ids: Sequence[int], policy: Policy) -> list[float]:
        return asyncio.run(self.engine.score(prompt_ids, ids, policy=policy))

    def serve(self, policy: Policy, instead_of: Policy) -> None:
        asyncio.run(self.engine.load(policy))
        if not instead_of.is_base:
            asyncio.run(self.engine.unload(instead_of))


def asked(question: str, hints: Sequence[str] = ()) -> list[Message]:
    """The question, with the hints under their marker."""
    return hinted_messages(
        [Message(role="user", content=question)], hint="\n".join(hints), correction=None
    )


def questions_for(person: Person, seed: int) -> tuple[list[str], list[str]]:
    """(to be rated, in this seed's order; held out)."""
    data = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))
    train, held_out = data["train"], data["held_out"]
    if person.recipes:
        half = len(data["recipes"])
        train = train[:half] + data["recipes"]
        held_out = held_out[: HELD_OUT // 2] + data["recipes_held_out"][: HELD_OUT // 2]
    return random.Random(seed).sample(train, len(train)), held_out[:HELD_OUT]


def is_recipe(question: str) -> bool:
    data = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))
    return question in data["recipes"] or question in data["recipes_held_out"]


def answer_of(question: str, rollout: Rollout) -> Answer:
    return Answer(
        question=question,
        text=rollout.text,
        tokens=len(rollout.response_ids),
        has_ended=rollout.finish_reason == "stop",
        is_recipe=is_recipe(question),
    )


class Cell:
    """One person with one recipe, from no version to the last rated turn."""

    def __init__(self, lab: Lab, recipe: Recipe, person: Person, seed: int) -> None:
        self.lab, self.recipe, self.person, self.seed = lab, recipe, person, seed
        self.questions, self.held_out = questions_for(person, seed)
        self.policy: Policy = BASE
        self.baseline = Baseline()
        self.optimizer: Path | None = None
        self.learned: list[Sample] = []
        self.hints: list[str] = [person.hint] if recipe.learns == "hinted" else []
        self.passes: list[bool] = []
        self.updates: list[dict[str, Any]] = []
        self.label = f"{recipe.name}-{person.name}-{seed}".replace(" ", "").replace(",", "-")

    def run(self, turns: int) -> dict[str, Any]:
        evals = {"0": self.first()}
        for done in range(0, turns, self.recipe.batch):
            if self.recipe.learns in ("nothing", "hinted"):
                break
            self.learn(self.rate(done, self.recipe.batch))
            now = done + self.recipe.batch
            if now in EVALS or now >= turns:
                evals[str(now)] = self.evaluate()
            say(f"{self.label} {now}: {json.dumps(evals.get(str(now)))} {self.updates[-1:]}")
        cell = {
            "recipe": self.recipe.name,
            "person": self.person.name,
            "seed": self.seed,
            "turns": turns,
            "evals": evals,
            "three": three_in_a_row(self.passes),
            "updates": self.updates,
            "gate": self.gate(),
        }
        if not self.policy.is_base:
            asyncio.run(self.lab.engine.unload(self.policy))
        return cell

    def rate(self, done: int, count: int) -> list[Sample]:
        """The next turns, each with its verdict."""
        questions = [self.questions[(done + i) % len(self.questions)] for i in range(count)]
        prompts = [asked(question, self.shown()) for question in questions]
        replies = self.lab.ask(prompts, self.policy, seed=self.seed * 10_000 + done)
        samples = []
        for number, (question, reply) in enumerate(zip(questions, replies, strict=True)):
            answer = answer_of(question, reply)
            passed = self.person.is_satisfied(answer)
            self.passes.append(passed)
            hint = "" if passed or not self.recipe.words else self.person.says(answer)
            samples.append(
                Sample(
                    id=done + number,
                    messages=asked(question),
                    prompt_ids=reply.prompt_ids,
                    response_ids=reply.response_ids,
                    rollout_logprobs=reply.logprobs,
                    temperature=TEMPERATURE,
                    template_hash=self.lab.base.template_hash,
                    reward=1.0 if passed else -1.0,
                    hint=hint or None,
                    correction=None,
                )
            )
        return samples

    def shown(self) -> list[str]:
        """Hints that go into the prompt of the next replies."""
        return self.hints[:4] if self.recipe.learns in ("memory", "hinted") else []

    def learn(self, samples: list[Sample]) -> None:
        said = [sample.hint for sample in reversed(samples) if sample.hint]
        self.hints = list(dict.fromkeys([*said, *self.hints]))
        if self.recipe.learns == "memory":
            return
        if self.recipe.learns == "sft":
            samples = self.corrected(samples)
        if not any(sample.reward or sample.hint for sample in samples):
            return
        started = time.monotonic()
        config = replace(self.recipe.config, seed=self.seed * 1000 + len(self.updates))
        model = attach(self.lab.base, config, self.folder_of(self.policy))
        try:
            result = train(
                self.lab.base, model, samples, config,
                replay=self.learned[-REPLAYED:], parent_optimizer=self.optimizer,
                baseline=self.baseline, on_step=lambda step: None, check=lambda: None,
            )  # fmt: skip
            seconds = time.monotonic() - started
            version = self.policy.version + 1
            folder = self.lab.folder / f"{self.label}-v{version}"
            save_version(model, folder)
        finally:
            detach(self.lab.base, model)
        self.optimizer = folder.with_suffix(".adam")
        save_optimizer(result.optimizer, self.optimizer)
        self.baseline = result.baseline
        self.learned += [sample for sample in samples if sample.is_hinted]
        child = Policy(adapter=f"{self.label}-v{version}", version=version, path=str(folder))
        self.lab.serve(child, instead_of=self.policy)
        self.policy = child
        self.updates.append(
            {
                "seconds": round(seconds, 1),
                "steps": result.steps,
                "stopped": result.stopped,
                "dropped": sorted(result.dropped.values()),
                "liked": sum(sample.reward == 1.0 for sample in samples),
            }
        )

    def corrected(self, samples: Sequence[Sample]) -> list[Sample]:
        """For plain SFT: a corrected answer to each disliked reply, of the base under its hint."""
        wrong = [sample for sample in samples if sample.hint]
        prompts = [
            hinted_messages(sample.messages, hint=sample.hint, correction=None) for sample in wrong
        ]
        replies = self.lab.ask(prompts, BASE, seed=self.seed * 10_000 + 7000) if prompts else []
        return [
            replace(
                sample,
                response_ids=reply.response_ids,
                # Sampled from elsewhere: with its log-probs under the policy as it is, the
                # surrogate's gradient is that of plain cross-entropy.
                rollout_logprobs=self.lab.score(sample.prompt_ids, reply.response_ids, self.policy),
                temperature=1.0,
                reward=1.0,
                hint=None,
            )
            for sample, reply in zip(wrong, replies, strict=True)
        ]

    def first(self) -> dict[str, Any]:
        """Before any rating every recipe but "hinted" is the base model: answered once."""
        if self.recipe.learns == "hinted":
            return self.evaluate()
        key = (self.person.name, self.seed)
        if key not in self.lab.first_evals:
            self.lab.first_evals[key] = self.evaluate()
        return self.lab.first_evals[key]

    def evaluate(self) -> dict[str, Any]:
        prompts = [asked(question, self.shown()) for question in self.held_out]
        replies = self.lab.ask(prompts, self.policy, seed=self.seed * 10_000 + 5000)
        answers = [answer_of(*pair) for pair in zip(self.held_out, replies, strict=True)]
        kept = [self.person.is_satisfied(answer) for answer in answers]
        found: dict[str, Any] = {
            "satisfied": round(statistics.fmean(kept), 3),
            "nll": round(self.nll(replies), 3),
            "tokens": round(statistics.fmean(answer.tokens for answer in answers), 1),
            "passed": [int(each) for each in kept],
            "example": answers[0].text[:200],
        }
        if self.person.recipes:  # does one kind of request leak into the other?
            for kind in (True, False):
                part = [k for k, a in zip(kept, answers, strict=True) if a.is_recipe is kind]
                found["recipes" if kind else "rest"] = round(statistics.fmean(part), 3)
        return found

    def nll(self, replies: Sequence[Rollout]) -> float:
        losses: list[float] = []
        for question, reply in zip(self.held_out, replies, strict=True):
            prompt = self.lab.base.render(asked(question, [self.person.hint]))
            pair = (prompt, reply.response_ids)
            losses += (-response_logprobs(self.lab.base, self.lab.base.model, pair)).tolist()
        return statistics.fmean(losses)

    def gate(self) -> dict[str, Any] | None:
        """What the gate would have said about the last version, compared with the base."""
        if self.policy.is_base:
            return None
        config = self.recipe.config
        model = attach(self.lab.base, config, self.folder_of(self.policy))
        try:
            measures = measure(
                self.lab.base, model, None, (), neutral_prompts(), [self.person.hint], config,
                lambda: None,
            )  # fmt: skip
        finally:
            detach(self.lab.base, model)
        values = {m.measure: m.value and round(m.value, 3) for m in measures}
        limit = next(m.limit for m in measures if m.measure == "drift")
        return {**values, "drift_limit": limit, "accepted": decide(measures).accepted}

    @staticmethod
    def folder_of(policy: Policy) -> Path | None:
        return Path(policy.path) if policy.path else None


def three_in_a_row(passes: Sequence[bool]) -> int | None:
    """Rated turns until three in a row had passed (arXiv 2603.10165 v2); None when never."""
    for last in range(2, len(passes)):
        if all(passes[last - 2 : last + 1]):
            return last + 1
    return None


def say(text: str) -> None:
    print(text, flush=True)


def done_cells(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def quick(cells: Sequence[dict[str, Any]]) -> int:
    """The short form's verdict: 0 when eight ratings taught the person's wish."""
    (cell,) = cells
    before, after = (cell["evals"][turns]["satisfied"] for turns in ("0", str(QUICK_TURNS)))
    learned = after - before >= QUICK_GAIN
    say(f"satisfied {before} -> {after}: {'it learns' if learned else 'LEARNING IS BROKEN'}")
    return 0 if learned else 1


def main() -> int:
    args = arguments()
    if args.quick:
        args.recipes, args.people, args.seeds, args.turns = ["opd"], ["short"], [0], QUICK_TURNS
        args.out = Path(tempfile.mkdtemp()) / "cells.jsonl"
    found = done_cells(args.out)
    names = {(c["recipe"], c["person"], c["seed"]) for c in found if c["turns"] >= args.turns}
    wanted = [
        (recipe, person, seed)
        for seed in args.seeds
        for person in args.people
        for recipe in args.recipes
        if (recipe, person, seed) not in names
    ]
    number, of = (int(part) for part in args.shard.split("/"))
    if wanted:
        run_cells(wanted[number::of], args)
    cells = done_cells(args.out)
    if args.quick:
        return quick(cells)
    write_report(cells, args.report)
    return 0


def run_cells(wanted: Sequence[tuple[str, str, int]], args: argparse.Namespace) -> None:
    stack = new_stack()
    folder = Path(tempfile.mkdtemp(prefix="personas-"))
    try:
        url, key = args.vllm, args.vllm_key
        if not url:
            stack.start("--parts", "vllm")
            url, key = stack.config.vllm, stack.config.secret("vllm_key", stack.config.vllm_key)
        base = load_base(stack.config.model_folder, threads=args.threads)
        lab = Lab(build_engine(EngineConfig(url=url, key=key)), base, folder)
        for recipe, person, seed in wanted:
            cell = Cell(lab, RECIPES[recipe], PEOPLE[person], seed).run(args.turns)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(cell, ensure_ascii=False) + "\n")
    finally:
        stack.stop()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(stack.var, ignore_errors=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--people", nargs="+", default=list(FIRST_STAGE), choices=PEOPLE)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--turns", type=int, default=64, help="rated turns")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cells.jsonl")
    parser.add_argument("--report", type=Path, default=HERE.parent.parent / "docs" / "personas")
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth cell from the Ith on")
    parser.add_argument("--threads", type=int, default=1, help="of the trainer on a CPU")
    parser.add_argument("--vllm", default="", help="of a running server; empty: one is started")
    parser.add_argument("--vllm-key", default="")
    parser.add_argument("--quick", action="store_true", help="one person, eight ratings")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
