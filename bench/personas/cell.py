"""One cell of the bench: one person with one recipe, from no version to the last rated turn."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import Tensor

from bench.personas.edits import answered_anew, edited
from bench.personas.lab import TEMPERATURE, Lab, answer_of, asked
from bench.personas.people import RULES, Person
from bench.personas.questions import HELD_OUT, elsewhere, questions_for
from bench.personas.recipes import Recipe, made_with
from bench.personas.rival import trl_update
from bench.personas.rows import three_in_a_row
from bench.personas.sft import sft_update
from rollouts.types import BASE, Demonstration, Policy, Rollout, Sample
from training.adapters import attach, detach, save_version
from training.advantages import Baseline
from training.config import CANDIDATES, REPLAYED, THUMBS_REPLAYED, TrainConfig
from training.demonstrations import correction_of
from training.drift import Wishes, drift, drift_limit
from training.forward import response_logprobs
from training.gate import decide, measure, neutral_prompts, question_gains
from training.optimizer import save_optimizer
from training.trainer import train
from training.way_back import step_back

AHEAD = 8  # turns that are answered in one go
MOST_SHOWN = 4  # hints in a prompt
ASIDE_EVERY, ASIDE = 5, 8  # ratings that the product keeps for its gate: services/feedback.py
EVALS = (0, 4, 8, 16, 32, 64)
ABOUT_FROM = 32  # rated turns: what replies are about takes two passes over each


class Cell:
    """One person with one recipe, from no version to the last rated turn."""

    def __init__(
        self,
        lab: Lab,
        recipe: Recipe,
        person: Person,
        seed: int,
        held_out: int = HELD_OUT,
        asked_at: Sequence[int] = EVALS,
    ) -> None:
        self.lab, self.recipe, self.person, self.seed = lab, recipe, person, seed
        self.asked_at = asked_at  # rated turns after which the held-out questions are asked
        self.questions, self.held_out = questions_for(person, seed, held_out)
        self.policy: Policy = BASE
        self.baseline = Baseline()
        self.optimizer: Path | None = None
        self.learned: list[Sample] = []
        self.hints: list[str] = [person.hint] if recipe.learns == "hinted" else []
        self.wanted: dict[int, str] = {}  # by turn: what the person would say of the reply
        self.examples: list[Demonstration] = []  # what they wrote instead, newest first
        self.waiting: list[Sample] = []  # for the batch to be full
        self.aside: list[Sample] = []  # for the gate
        self.refused: set[int] = set()  # turns that the gate turned down once
        self.seen: tuple[Any, dict[str, Any]] = (None, {})  # what answered, and how it did
        self.replies: Sequence[Rollout] = ()  # that it gave
        self.ahead: dict[Any, Rollout] = {}  # by turn and what answers: to turns yet to come
        self.passes: list[bool] = []
        self.updates: list[dict[str, Any]] = []
        self.label = f"{recipe.name}-{person.name}-{seed}".replace(" ", "").replace(",", "-")

    def run(self, turns: int, *, with_gate: bool = True) -> dict[str, Any]:
        """The cell's line for the results. Without the gate, nor `about`, it is brief."""
        evals, done = {"0": self.first(with_about=with_gate)}, 0
        while done < turns and self.recipe.is_rated:
            then = min(done + self.to_update(done), turns)
            # No update comes in between: what answers now is what would answer then.
            evals |= {str(n): self.evaluate() for n in self.asked_at if done < n < then}
            self.take(self.rate(done, then - done))
            done = then
            if done in self.asked_at or done == turns:
                evals[str(done)] = self.evaluate()
                if with_gate and done >= ABOUT_FROM:
                    self.add_about(evals[str(done)])
            print(self.label, done, json.dumps(evals.get(str(done))), self.updates[-1:], flush=True)
        if with_gate:
            self.add_about(evals[str(done)])
        cell = {
            "recipe": self.recipe.name,
            "person": self.person.name,
            "seed": self.seed,
            "turns": turns,
            "made_with": made_with(self.recipe),
            "rules": RULES,
            "dtype": self.lab.dtype,
            "evals": evals,
            "texts": [reply.text for reply in self.replies[:HELD_OUT]],  # of the last evaluation
            "three": three_in_a_row(self.passes),
            "updates": self.updates,
            "gate": self.gate() if with_gate else None,
        }
        self.lab.unload(self.policy)
        return cell

    def to_update(self, done: int) -> int:
        """Turns that are answered by what answers now, if they all count: until the next update."""
        if self.recipe.at_once:
            return 1
        count, aside, missing = 0, len(self.aside), max(1, self.recipe.batch - len(self.waiting))
        while missing > 0:
            aside += (kept := self.is_kept_aside(done + count))
            missing -= not kept or aside > ASIDE  # then the oldest trains
            count += 1
        return count

    def is_kept_aside(self, turn: int) -> bool:
        """Whether this rating (turns count from 0) is the gate's, and trains nothing."""
        is_tested = self.recipe.as_served and self.policy.adapter is not None
        return is_tested and (turn + 1) % ASIDE_EVERY == 0

    def rate(self, done: int, count: int) -> list[Sample]:
        """The next turns, each with its verdict."""
        questions = self.turns(done, count)
        replies = self.replies_to(done, count)
        samples, left = [], self.recipe.edits
        for number, (question, reply) in enumerate(zip(questions, replies, strict=True)):
            answer = answer_of(question, reply)
            passed = self.person.is_satisfied(answer)
            self.passes.append(passed)
            said = "" if passed else self.person.says(answer)
            self.wanted[done + number] = said
            written = None if passed or left == 0 else edited(self.person, answer) or None
            left -= written is not None
            samples.append(
                Sample(
                    id=done + number,
                    messages=asked(question),
                    prompted_hints=self.shown(),
                    prompt_ids=reply.prompt_ids,
                    response_ids=reply.response_ids,
                    rollout_logprobs=reply.logprobs,
                    temperature=TEMPERATURE,
                    template_hash=self.lab.base.template_hash,
                    reward=1.0 if passed else -1.0,
                    hint=(self.recipe.words and said) or None,
                    correction=written,
                )
            )
        return samples

    def turns(self, done: int, count: int) -> list[str]:
        """What is asked in the next turns."""
        return [self.questions[(done + i) % len(self.questions)] for i in range(count)]

    def replies_to(self, done: int, count: int) -> list[Rollout]:
        """Sampled replies in the next turns. Where each turn may change the next, more are sampled
        at once in case it does not: the same replies, sooner."""
        at = self.answering()
        wanted = [(done + i, at) for i in range(count)]
        if not all(key in self.ahead for key in wanted):
            may_change = self.recipe.batch == 1 or self.recipe.at_once
            more = max(count, AHEAD) if may_change else count
            prompts = [asked(question, self.shown()) for question in self.turns(done, more)]
            replies = self.lab.ask(prompts, self.policy, seed=self.seed * 10_000 + done)
            self.ahead = {(done + i, at): reply for i, reply in enumerate(replies)}
        return [self.ahead[key] for key in wanted]

    def shown(self) -> list[str]:
        """Hints that go into the prompt of the next replies."""
        if self.recipe.at_once:
            said = [sample.hint for sample in reversed(self.waiting) if sample.hint]
            return list(dict.fromkeys(said))[:MOST_SHOWN]
        return self.hints[:MOST_SHOWN] if self.recipe.learns in ("memory", "hinted") else []

    def take(self, samples: Sequence[Sample]) -> None:
        """Into the batch with those that count; when it is full, it is learned."""
        counts = self.recipe.counts_unhinted
        self.aside += [sample for sample in samples if self.is_kept_aside(sample.id)]
        trains = [sample for sample in samples if not self.is_kept_aside(sample.id)]
        trains, self.aside = [*self.aside[:-ASIDE], *trains], self.aside[-ASIDE:]
        self.waiting += [sample for sample in trains if sample.hint or counts]
        if trains and len(self.waiting) >= self.recipe.batch:
            batch, self.waiting = self.waiting, []
            self.learn(batch)

    def learn(self, samples: list[Sample]) -> None:
        said = [sample.hint for sample in reversed(samples) if sample.hint]
        self.hints = list(dict.fromkeys([*said, *self.hints]))
        if self.recipe.learns == "memory":
            return
        if self.recipe.corrects:
            samples = self.corrected(samples)
        elif self.recipe.edits:
            self.show(samples)
        if not samples:  # nothing was to be corrected
            return
        version = len(self.updates) + 1
        folder = self.lab.folder / f"{self.label}-v{version}"
        started = time.monotonic()
        facts = self.update(samples, folder)
        facts["seconds"] = round(time.monotonic() - started, 1)
        facts["liked"] = sum(sample.reward == 1.0 for sample in samples)
        self.updates.append(facts)
        if not facts.get("accepted", True):  # once more with one newer rating, then never again
            self.waiting = [sample for sample in samples if sample.id not in self.refused]
            self.refused |= {sample.id for sample in samples}
            return
        self.learned += samples
        child = Policy(adapter=f"{self.label}-v{version}", version=version, path=str(folder))
        self.lab.serve(child, instead_of=self.policy)
        self.policy = child

    def update(self, samples: Sequence[Sample], folder: Path) -> dict[str, Any]:
        """The next version in `folder`, by the recipe's trainer, and what came of it."""
        config = replace(self.recipe.config, seed=self.seed * 1000 + len(self.updates))
        parent = self.folder_of(self.policy)
        if self.recipe.learns == "sft":
            steps = len(sft_update(self.lab.base, samples, config, parent=parent, out=folder))
        elif self.recipe.learns == "trl":
            rate = self.recipe.rate
            if rate is not None:
                samples = [*self.reminders(samples), *samples]  # as ours has them
            steps = trl_update(self.lab.base, samples, config, lr=rate, parent=parent, out=folder)
        else:
            return self.train(samples, config, folder)
        return {"steps": steps, "stopped": "steps", "dropped": []}

    def train(self, samples: Sequence[Sample], config: TrainConfig, folder: Path) -> dict[str, Any]:
        """Our trainer: the next version in `folder`, and what came of it."""
        parent = self.folder_of(self.policy)
        model = attach(self.lab.base, config, parent)
        try:
            result = train(
                self.lab.base, model, samples, config,
                replay=self.reminders(samples), parent_optimizer=self.optimizer,
                baseline=self.baseline, on_step=lambda step: None, check=quiet,
            )  # fmt: skip
            dropped = sorted(result.dropped.values())
            facts = {"steps": result.steps, "stopped": result.stopped, "dropped": dropped}
            if self.recipe.steps_back:
                told = neutral_prompts(), self.wishes(), config, quiet
                facts["way"] = round(step_back(self.lab.base, model, parent, *told), 3)
            if self.recipe.as_served:
                facts["accepted"] = self.is_accepted(model, config)
            save_version(model, folder)
        finally:
            detach(self.lab.base, model)
        if facts.get("accepted", True):
            self.optimizer = folder.with_suffix(".adam")
            save_optimizer(result.optimizer, self.optimizer)
            self.baseline = result.baseline
        return facts

    def is_accepted(self, model: PeftModel, config: TrainConfig) -> bool:
        """By the gate of the product, which would not let anybody talk to it otherwise."""
        parent, aside = self.folder_of(self.policy), self.aside
        told = neutral_prompts(), self.wishes(), config, quiet
        return decide(measure(self.lab.base, model, parent, aside, *told)).accepted

    def reminders(self, samples: Sequence[Sample]) -> list[Sample]:
        """Earlier samples that take part again: the newest hinted, and the newest liked; the newest
        of all where nothing was said, and by "combine" beside them."""
        hinted = [sample for sample in self.learned if sample.is_hinted][-REPLAYED:]
        if self.recipe.is_thumb or not (hinted or any(sample.is_hinted for sample in samples)):
            return self.learned[-THUMBS_REPLAYED:]
        beside = [sample for sample in self.learned if sample.reward == 1.0][-CANDIDATES:]
        if self.recipe.config.method == "combine":
            beside = self.learned[-THUMBS_REPLAYED:]
        return sorted({s.id: s for s in (*hinted, *beside)}.values(), key=lambda sample: sample.id)

    def corrected(self, samples: Sequence[Sample]) -> list[Sample]:
        """With a corrected answer to each disliked reply, where there is one: beside the hint, or,
        for plain SFT, in the reply's place and nothing else."""
        seed = self.seed * 10_000 + 7000
        found = answered_anew(self.lab, self.person, samples, self.wanted, seed=seed)
        written = [
            replace(sample, correction=found[sample.id].text) if sample.id in found else sample
            for sample in samples
        ]
        self.show(written)
        if self.recipe.learns != "sft":
            return written
        return [
            replace(
                sample, response_ids=right.response_ids, rollout_logprobs=right.logprobs, hint=None
            )
            for sample in samples
            if (right := found.get(sample.id))
        ]

    def show(self, samples: Sequence[Sample]) -> None:
        """What was written instead of them shows what is wanted."""
        shown = [each for sample in reversed(samples) if (each := correction_of(sample))]
        self.examples = [*shown, *self.examples]

    def wishes(self) -> Wishes:
        """What was said so far: it explains drift."""
        return Wishes(hints=tuple(self.hints), examples=tuple(self.examples))

    def first(self, *, with_about: bool) -> dict[str, Any]:
        """Before any rating every recipe but "hinted" is the base model: answered once."""
        if self.recipe.learns == "hinted":
            return self.evaluate()
        key = (self.person.name, self.seed)
        if key not in self.lab.first_evals:
            self.lab.first_evals[key] = self.evaluate()
            if with_about:
                self.add_about(self.lab.first_evals[key])
        self.seen = self.answering(), self.lab.first_evals[key]
        return self.lab.first_evals[key]

    def answering(self) -> tuple[Policy, tuple[str, ...]]:
        """What the next reply depends on."""
        return self.policy, tuple(self.shown())

    def evaluate(self) -> dict[str, Any]:
        """How the held-out questions are answered now; asked anew only if something changed."""
        if self.seen[0] != self.answering():
            self.seen = self.answering(), self.examine()
        return self.seen[1]

    def examine(self) -> dict[str, Any]:
        prompts = [asked(question, self.shown()) for question in self.held_out]
        self.replies = replies = self.lab.ask(prompts, self.policy, seed=self.seed * 10_000 + 5000)
        answers = [answer_of(*pair) for pair in zip(self.held_out, replies, strict=True)]
        kept = [self.person.is_satisfied(answer) for answer in answers]
        found: dict[str, Any] = {
            "satisfied": round(statistics.fmean(kept), 3),
            "nll": round(self.nll(replies), 3),
            "tokens": round(statistics.fmean(answer.tokens for answer in answers), 1),
            "passed": [int(each) for each in kept],
            "example": answers[0].text[:200],
        }
        if len(self.person.wishes) > 1:
            each = [[wish.kept(answer) for answer in answers] for wish in self.person.wishes]
            found["wishes"] = [round(statistics.fmean(kept), 3) for kept in each]
        if self.person.recipes:  # does one kind of request leak into the other?
            for kind in (True, False):
                part = [k for k, a in zip(kept, answers, strict=True) if a.is_recipe is kind]
                found["recipes" if kind else "rest"] = round(statistics.fmean(part), 3)
        return found

    def nll(self, replies: Sequence[Rollout]) -> float:
        losses: list[float] = []
        for question, reply in zip(self.held_out, replies, strict=True):
            losses += (-self.logprobs(question, reply, [self.person.hint])).tolist()
        return statistics.fmean(losses)

    def add_about(self, found: dict[str, Any]) -> None:
        if "about" not in found:
            found["about"] = self.about()

    def about(self) -> list[float]:
        """Of the last replies, up to HELD_OUT, how much likelier its own question makes each than
        the next one, in nats by the base."""
        base = self.lab.base
        prompts = [base.render(asked(question)) for question in self.held_out[:HELD_OUT]]
        replies = [tuple(reply.response_ids) for reply in self.replies[:HELD_OUT]]
        gains = question_gains(base, base.model, prompts, replies, quiet)
        return [round(gain, 1) for gain in gains]

    def logprobs(self, question: str, reply: Rollout, hints: Sequence[str] = ()) -> Tensor:
        """The base's, of the reply's tokens."""
        pair = (self.lab.base.render(asked(question, hints)), reply.response_ids)
        return response_logprobs(self.lab.base, self.lab.base.model, pair)

    def gate(self) -> dict[str, Any] | None:
        """What the gate would have said about the last version, compared with the base."""
        if self.policy.adapter is None:
            return None
        config = self.recipe.config
        hints = (self.person.hint,) if self.recipe.words else ()  # a thumb explains no drift
        wishes = Wishes(hints=hints, examples=tuple(self.examples))
        model = attach(self.lab.base, config, self.folder_of(self.policy))
        try:
            measures = measure(
                self.lab.base, model, None, (), neutral_prompts(), wishes, config, quiet,
            )  # fmt: skip
            # The way back ends at the limit of the gate's own prompts: what of others?
            there = self.lab.base, model, elsewhere()
            value = drift(*there, config, quiet)
            limit = drift_limit(*there, wishes, config, quiet)
        finally:
            detach(self.lab.base, model)
        found = {m.measure: m.value and round(m.value, 3) for m in measures}
        found |= {"drift_elsewhere": round(value, 3), "drift_elsewhere_limit": round(limit, 3)}
        own = next(m.limit for m in measures if m.measure == "drift")
        found["drift_limit"] = own and round(own, 3)
        return {**found, "accepted": decide(measures).accepted}

    @staticmethod
    def folder_of(policy: Policy) -> Path | None:
        return Path(policy.path) if policy.path else None


def quiet() -> None:
    """The check of a job that nobody cancels."""
