"""Faults of `make chaos`: a seed gives the same ones again, and a run goes on where it stopped."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from bench.chaos import faults, run
from bench.chaos.faults import Broken
from bench.chaos.people import Chatter, Told

NOWHERE: Any = SimpleNamespace(stack=SimpleNamespace(), disk=None)


def names(seed: int, count: int = 200) -> list[str]:
    return faults.drawn(random.Random(seed), count)


def test_a_seed_gives_the_same_faults_again_and_all_kinds_come() -> None:
    assert names(3) == names(3) != names(4)
    assert {*names(3), faults.RESTARTED} == set(faults.ALL) == set(faults.acts(NOWHERE))


def test_the_model_server_is_rationed_and_killed_once_at_least() -> None:
    for seed in range(20):
        assert names(seed, 20).count("vllm") == names(seed, 6).count("vllm") == 1
        assert 1 <= names(seed).count("vllm") <= 15


def test_there_may_be_kills_alone_in_the_same_order() -> None:
    kills = faults.drawn(random.Random(3), 60, only_kills=True)
    assert {*kills} <= {*faults.LIGHT, "vllm"}
    assert kills.count("vllm") >= 1


def broken_by(
    act: Callable[[], float], monkeypatch: pytest.MonkeyPatch, slack: float = 1.0
) -> list[str]:
    monkeypatch.setattr(run, "acts", lambda _: {"web": act, "beat": lambda: 1.0})
    done, broken = run.break_things(NOWHERE, ["web", "beat"], random.Random(1), (0, 0), slack)
    assert done[1:] == [("beat", 1.0)] or not done
    return broken


def test_what_breaks_while_a_fault_lasts_or_takes_too_long_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begun() -> float:
        raise Broken("a job began")

    def gone() -> float:
        pytest.fail("not ready after 240 s")

    assert broken_by(lambda: 59.0, monkeypatch) == []
    assert broken_by(lambda: 61.0, monkeypatch) == ["web: back after 61 s"]
    assert broken_by(lambda: 61.0, monkeypatch, slack=3) == []
    assert broken_by(begun, monkeypatch) == ["a job began"]
    assert broken_by(gone, monkeypatch) == ["web: not ready after 240 s"]


def test_a_refusal_without_a_sentence_is_remembered() -> None:
    request = httpx.Request("POST", "http://web/api/turns/turn-1/feedback")
    told: Any = SimpleNamespace(told=Told())
    for status, body in (
        (503, b'{"error": {"message": "The model server does not answer."}}'),
        (409, b'{"detail": "no counted rating"}'),
        (502, b"<h1>Bad gateway</h1>"),
        (500, b'{"detail": "request 7 failed"}'),
    ):
        Chatter._refused(told, httpx.Response(status, content=body, request=request))
    assert told.told.failed == 4
    assert [words.split(": ")[1][:3] for words in told.told.unexplained] == ["502", "500"]


def test_slices_that_ended_are_not_run_again(tmp_path: Path) -> None:
    out = tmp_path / "slices.jsonl"
    assert run.already_run(out) == {}
    old = {"seed": 9, "broken": []}  # of before slices said how long they were
    rows = [old, {"seed": 1, "kills": 20, "users": 3, "broken": ["x"]}]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run.already_run(out)[(1, 20, 3)]["broken"] == ["x"]
    assert (21, 20, 3) not in run.already_run(out)
    assert run.already_run(out, only_kills=True) == {}  # other faults by the same seed
