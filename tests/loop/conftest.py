"""Alice, who has taught her agent once; the tests of the loop and of faults share her."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.loop.person import ENDED, JOB_SECONDS, Person, person, wait_for
from tests.realstack import Stack

QUESTIONS = (
    "How do I make tea?",
    "Why is the sky blue?",
    "How do vaccines work?",
    "What is inflation?",
    "How do I boil an egg?",
    "Why do cats purr?",
    "How do airplanes fly?",
    "What is gravity?",
)


@dataclass
class Lesson:
    """What was seen from the first reply to the first version."""

    person: Person
    turns: list[str]
    headers: list[dict[str, str]]
    receipts: list[dict[str, Any]]  # as each rating was answered
    states: list[str] = field(default_factory=list)  # of the first turn's receipt, as they came
    late: list[str] = field(default_factory=list)  # turns rated while the job ran
    folders: list[dict[str, int]] = field(default_factory=list)  # the version's files, as they came
    job: dict[str, Any] = field(default_factory=dict)

    @property
    def adapter(self) -> str:
        return str(self.job["child"])

    def back_to_v1(self) -> None:
        """Version 1 answers, whatever an earlier test has left."""
        if self.person.live() != self.adapter:
            self.person.post(f"/api/adapters/{self.adapter}/promote")


def rated_turns(someone: Person, count: int) -> list[str]:
    """Turns with a thumb down for their length."""
    turns = [someone.ask(QUESTIONS[i % 8], seed=i) for i in range(count)]
    for turn in turns:
        someone.rate(turn)
    return turns


@pytest.fixture(scope="session")
def alice(stack: Stack) -> Iterator[Person]:
    with person(stack, "loop-alice") as someone:
        yield someone


@pytest.fixture(scope="session")
def bob(stack: Stack) -> Iterator[Person]:
    with person(stack, "loop-bob") as someone:
        yield someone


@pytest.fixture(scope="session")
def lesson(alice: Person) -> Lesson:
    """Eight thumbs down, two more while they are learned, and the version that comes of it."""
    answers = [alice.chat(text, seed=i) for i, text in enumerate(QUESTIONS)]
    assert [answer.status_code for answer in answers] == [200] * 8
    turns = [str(answer.json()["id"]) for answer in answers]
    extra = [alice.ask("What is recycling?", seed=20 + i) for i in range(2)]
    seen = Lesson(
        person=alice,
        turns=turns,
        headers=[dict(answer.headers) for answer in answers],
        receipts=[alice.rate(turn) for turn in turns],
    )
    folder = (
        alice.stack.config.var / "adapters" / f"u{alice.row('user', username=alice.name)['id']}"
    )

    watched = time.monotonic()

    def ended() -> bool:
        nonlocal watched
        files = sizes(folder / "v1.1")
        if files not in seen.folders[-1:]:
            seen.folders.append(files)
        if time.monotonic() - watched < 0.4:
            return False  # the files are watched more closely than the rows
        watched = time.monotonic()
        receipt = alice.receipt(turns[0])
        if receipt["state"] not in seen.states[-1:]:
            seen.states.append(receipt["state"])
        if receipt["state"] == "in_training" and not seen.late:
            seen.job = alice.job(receipt["job"])
            seen.late = extra
            for turn in extra:
                alice.rate(turn)
        seen.job = alice.jobs()[0]
        return seen.job["state"] in ENDED

    wait_for("the first job's end", ended, timeout=JOB_SECONDS, every=0.05)
    assert seen.job["state"] == "deployed", seen.job["reason"]
    last = alice.receipt(turns[0])["state"]
    seen.states += [last] if last not in seen.states[-1:] else []
    return seen


def sizes(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    return {path.name: path.stat().st_size for path in folder.iterdir()}
