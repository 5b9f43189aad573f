"""People who chat and rate while things break, and remember what they were told."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field

import httpx

from tests.loop.person import Person
from tests.realstack import Stack

QUESTIONS = ("How do I make tea?", "Why is the sky blue?", "What is inflation?", "What is gravity?")
PATIENCE = 90.0  # seconds for one reply


@dataclass
class Told:
    """What the system has acknowledged, and how often things were tried."""

    replies: dict[str, str] = field(default_factory=dict)
    ratings: dict[str, list[int]] = field(default_factory=dict)
    tries: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    failed: int = 0


class Chatter(threading.Thread):
    """One user: asks, rates, changes their mind; goes on when a request fails."""

    def __init__(self, stack: Stack, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.person = Person(stack, name)
        self.person.http.timeout = httpx.Timeout(PATIENCE)
        self.chance = random.Random(seed)
        self.told = Told()
        self.enough = threading.Event()

    def run(self) -> None:
        with self.person.http:
            while not self.enough.is_set():
                try:
                    self._act()
                except (httpx.HTTPError, KeyError, ValueError):
                    self.told.failed += 1
                self.enough.wait(self.chance.uniform(0.2, 1.0))

    def _act(self) -> None:
        if self.told.replies and self.chance.random() < 0.5:
            self._rate(self.chance.choice(list(self.told.replies)))
        else:
            self._ask()

    def _ask(self) -> None:
        self.told.asked += 1
        response = self.person.chat(self.chance.choice(QUESTIONS), max_tokens=8)
        if response.status_code != 200:
            self.told.failed += 1
            return
        body = response.json()
        text = body["choices"][0]["message"]["content"]
        if text and body["choices"][0]["finish_reason"] in ("stop", "length"):
            self.told.replies[body["id"]] = text

    def _rate(self, turn: str) -> None:
        value = self.chance.choice((-1, -1, -1, 1))
        said = {"value": value, **({"reasons": ["too_long"]} if value < 0 else {})}
        self.told.tries[turn] += 1
        response = self.person.http.post(f"/api/turns/{turn}/feedback", json=said)
        if response.status_code == 200:
            self.told.ratings.setdefault(turn, []).append(value)
        else:
            self.told.failed += 1
