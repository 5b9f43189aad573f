"""One cell whose rated turns are all of one chat: each is asked after all that was said before."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.personas.cell import Cell
from bench.personas.lab import answer_of, asked
from rollouts.errors import PromptTooLong
from rollouts.types import Message, Rollout, Sample


class OneChat(Cell):
    """A cell in one chat, as the product has it: its memory loses its older half where the context
    is full. Held-out questions are asked alone, as everybody's are, and each after that chat."""

    talk: tuple[Message, ...] = ()  # what the next question is asked after

    def rate(self, done: int, count: int) -> list[Sample]:
        self.prompts: dict[int, list[Message]] = {}
        rated = super().rate(done, count)
        return [replace(sample, messages=self.prompts[sample.id]) for sample in rated]

    def replies_to(self, done: int, count: int) -> list[Rollout]:
        questions = enumerate(self.turns(done, count), start=done)
        return [self.reply_to(turn, question) for turn, question in questions]

    def reply_to(self, turn: int, question: str) -> Rollout:
        """The reply to the turn's question, which the next turn is asked after."""
        (reply,) = self.replies_after([question], seed=self.seed * 10_000 + turn)
        self.prompts[turn] = [*self.talk, *asked(question)]
        self.talk = (*self.prompts[turn], Message(role="assistant", content=reply.text))
        return reply

    def replies_after(self, questions: Sequence[str], seed: int) -> Sequence[Rollout]:
        """The reply to each, asked after what was said, or as much of it as leaves room."""
        while True:
            prompts = [[*self.talk, *asked(question)] for question in questions]
            try:
                return self.lab.ask(prompts, self.policy, seed=seed)
            except PromptTooLong:
                if not self.talk:
                    raise
                self.talk = self.talk[(len(self.talk) + 2) // 4 * 2 :]  # two messages a turn

    def examine(self) -> dict[str, Any]:
        found = super().examine()
        if self.talk:
            replies = self.replies_after(self.held_out, seed=self.seed * 10_000 + 6000)
            answers = [answer_of(*pair) for pair in zip(self.held_out, replies, strict=True)]
            kept = [self.person.is_satisfied(answer) for answer in answers]
            found["in_chat"] = round(statistics.fmean(kept), 3)
        return found
