"""A backup of the running system, restored into an empty folder, is the same agent."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollouts.types import BASE, Policy
from tests.loop.conftest import Lesson
from tests.loop.person import engine_of, rows
from tests.realstack import Stack, new_stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


@pytest.fixture
def restored(stack: Stack, lesson: Lesson, tmp_path: Path) -> Iterator[Stack]:
    """Not started: its rows and files."""
    file = tmp_path / "backup.zip"
    stack.manage("backup", str(file))
    other = new_stack()
    other.manage("restore", str(file))
    yield other
    shutil.rmtree(other.var)


def test_a_restored_version_says_what_it_said_before(
    stack: Stack, lesson: Lesson, restored: Stack
) -> None:
    """Its own start is `make test-cluster`'s; here the server that runs is given its files."""
    row = rows(restored, "adapterversion", name=lesson.adapter)[0]
    folder = restored.var / row["path"]
    assert not str(folder).startswith(str(stack.var))
    probe = json.loads(Path(f"{folder}.probe.json").read_text())
    ids = probe["prompt_ids"], probe["response_ids"]

    async def scores() -> list[list[float]]:
        engine = engine_of(stack)
        before = Policy(adapter=lesson.adapter, path=str(stack.var / row["path"]))
        after = Policy(adapter="restored-from-a-backup", path=str(folder))
        for policy in (before, after):
            await engine.load(policy)
        found = [await engine.score(*ids, policy=policy) for policy in (before, after, BASE)]
        await engine.unload(after)
        return found

    before, after, base = asyncio.run(scores())
    assert after == pytest.approx(before, abs=1e-4)
    assert sum(abs(a - b) for a, b in zip(after, base, strict=True)) / len(base) > 1e-3
    told = rows(restored, "feedback")
    assert {row["id"] for row in rows(stack, "feedback")} >= {row["id"] for row in told}
    assert len(told) >= 8
