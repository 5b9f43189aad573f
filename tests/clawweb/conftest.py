"""Settings of one test, and a judge for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.utils import translation

from clawweb import limits, valkey
from clawweb.config import config
from clawweb.engine import get_judge
from clawweb.models import Consent, User
from clawweb.services import accounts
from tests.judge_server import JudgeServer, judge_server, saying
from tests.judging import BAD, Setting


@pytest.fixture(autouse=True)
def own_language() -> Iterator[None]:
    """A page that was asked for in German leaves its thread speaking it."""
    yield
    translation.deactivate()


@pytest.fixture(autouse=True)
def fresh_counts() -> Iterator[None]:
    """Nobody has tried anything yet in this minute, and no test before found Valkey away: its
    counts are of addresses and of rows' numbers, which the tests of a process share."""
    with suppress(valkey.ValkeyError), valkey.connect() as client:  # where one runs
        client.delete(*(client.keys("limit:*") or ["-"]))
    limits._STORE.left_alone_until = 0.0
    limits._KEPT.clear()
    yield
    limits._KEPT.clear()


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


@pytest.fixture
def eager(alice: User) -> User:
    """Alice, who wants what she says to hold at once."""
    accounts.set_consent(user=alice, consent=Consent.TRAIN, prompt_hints=True)
    alice.refresh_from_db()
    return alice
