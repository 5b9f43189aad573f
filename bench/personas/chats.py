"""One cell whose rated turns are all of one chat: each is asked after all that was said before."""

from __future__ import annotations

from dataclasses import replace

from bench.personas.cell import Cell
from bench.personas.lab import asked
from rollouts.errors import PromptTooLong
from rollouts.types import Message, Rollout, Sample


class OneChat(Cell):
    """A cell in one chat, as the product has it: its memory loses its older half where the context
    is full. Held-out questions are asked alone, as everybody's are."""

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
        while True:
            prompt = [*self.talk, *asked(question)]
            try:
                (reply,) = self.lab.ask([prompt], self.policy, seed=self.seed * 10_000 + turn)
                break
            except PromptTooLong:
                if not self.talk:
                    raise
                self.talk = self.talk[(len(self.talk) + 2) // 4 * 2 :]  # two messages a turn
        self.prompts[turn] = prompt
        self.talk = (*prompt, Message(role="assistant", content=reply.text))
        return reply
