"""Settings of one test, and a judge for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clawweb.config import config
from clawweb.engine import get_judge
from tests.judge_server import JudgeServer, judge_server, saying
from tests.judging import BAD, Setting


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    """Sets CLAWWEB_* for the test."""

    def change(**values: object) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"CLAWWEB_{name.upper()}", str(value))
        config.cache_clear()
        get_judge.cache_clear()

    yield change
    monkeypatch.undo()
    config.cache_clear()
    get_judge.cache_clear()


@pytest.fixture
def judge(setting: Setting) -> Iterator[JudgeServer]:
    """A judge that votes -1 with a hint, until a test lets it say something else."""
    with judge_server(saying(BAD)) as server:
        setting(judge_url=server.url, judge_model="j", judge_seconds=30)
        yield server
