"""People who chat and rate while things break, and remember what they were told."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from rollouts.types import Message
from tests.loop.person import Person
from tests.realstack import Stack

QUESTIONS = ("How do I make tea?", "Why is the sky blue?", "What is inflation?", "What is gravity?")
PATIENCE = 90.0  # seconds for one reply
TALK = 4  # messages before a new one, at most


@dataclass
class Told:
    """What the system has acknowledged, and how often things were tried."""

    replies: dict[str, tuple[str, str]] = field(default_factory=dict)  # after which message
    ratings: dict[str, list[int]] = field(default_factory=dict)
    tries: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    failed: int = 0
    unexplained: list[str] = field(default_factory=list)  # refusals that said nothing


class Chatter(threading.Thread):
    """One user: asks, goes on, rates, changes their mind; goes on when a request fails."""

    def __init__(self, stack: Stack, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.person = Person(stack, name)
        self.person.http.timeout = httpx.Timeout(PATIENCE)
        self.chance = random.Random(seed)
        self.told = Told()
        self.talk: list[Message] = []
        self.enough = threading.Event()

    def run(self) -> None:
        with self.person.http:
            while not self.enough.is_set():
                try:
                    self._act()
                except (httpx.HTTPError, KeyError, ValueError):
                    self.told.failed += 1
                self.enough.wait(self.chance.uniform(0.2, 1.0))

    def give_up(self, *states: str) -> None:
        """Let nothing more be learned, and cancel the jobs in these states: nobody stays to wait
        for them."""
        key = {"Authorization": f"Bearer {self.person.key}"}
        url = self.person.stack.url
        with httpx.Client(base_url=url, headers=key, timeout=PATIENCE, trust_env=False) as http:
            http.post("/api/agent/pause", json={"paused": True}).raise_for_status()
            for job in http.get("/api/jobs").json()["items"]:
                if job["state"] in states:
                    http.post(f"/api/jobs/{job['id']}/cancel")  # 409 when it went on meanwhile

    def _act(self) -> None:
        if self.told.replies and self.chance.random() < 0.5:
            self._rate(self.chance.choice(list(self.told.replies)))
        else:
            self._ask()

    def _ask(self) -> None:
        """Half of the time something after the last reply, which a judge then reads."""
        self.told.asked += 1
        before = self.talk[-TALK:] if self.chance.random() < 0.5 else []
        question = f"{self.chance.choice(QUESTIONS)} ({self.told.asked})"  # no two are the same
        messages = [*before, Message(role="user", content=question)]
        response = self.person.chat("", messages=messages, max_tokens=8)
        if response.status_code != 200:
            self._refused(response)
            return
        body = response.json()
        text = body["choices"][0]["message"]["content"]
        if text and body["choices"][0]["finish_reason"] in ("stop", "length"):
            self.told.replies[body["id"]] = question, text
            self.talk = [*messages, Message(role="assistant", content=text)]

    def _rate(self, turn: str) -> None:
        value = self.chance.choice((-1, -1, -1, 1))
        said = {"value": value, **({"reasons": ["too_long"]} if value < 0 else {})}
        self.told.tries[turn] += 1
        response = self.person.http.post(f"/api/turns/{turn}/feedback", json=said)
        if response.status_code == 200:
            self.told.ratings.setdefault(turn, []).append(value)
        else:
            self._refused(response)

    def _refused(self, response: httpx.Response) -> None:
        self.told.failed += 1
        if response.status_code == 500 or not _sentence(response):
            where = f"{response.request.method} {response.request.url.path}"
            self.told.unexplained.append(f"{where}: {response.status_code} {response.text[:200]}")


def _sentence(response: httpx.Response) -> str:
    """Why not, in OpenAI's shape or RFC 9457's."""
    try:
        body = response.json()
        return str(body["error"]["message"] if "error" in body else body["detail"])
    except (ValueError, KeyError, TypeError):
        return ""


@contextmanager
def people(stack: Stack, count: int, seed: int) -> Iterator[list[Chatter]]:
    """At it while inside; gone afterwards, with all that they were told."""
    users = [Chatter(stack, f"user-{n}", seed * 100 + n) for n in range(count)]
    for user in users:
        user.start()
    try:
        yield users
    finally:
        for user in users:
            user.enough.set()
        for user in users:
            user.join(PATIENCE + 30)
