"""Faults of `make chaos`: a seed gives the same ones again, and a run goes on where it stopped."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.chaos import faults, run
from bench.chaos.faults import LIGHT, Broken, Target

NOWHERE: Any = SimpleNamespace()


def names(seed: int, count: int = 200) -> list[str]:
    chance, target = random.Random(seed), Target(stack=NOWHERE, disk=NOWHERE)
    return [faults.drawn(target, chance, vllm_left=1)[0] for _ in range(count)]


def test_a_seed_gives_the_same_faults_again_and_all_kinds_come() -> None:
    assert names(3) == names(3) != names(4)
    held = {f"{part} held still" for part in faults.LEASED}
    others = {"vllm", "database locked", "delivered twice", "disk filled"}
    assert set(names(3)) == {*LIGHT, *held, *others}


def test_the_model_server_is_rationed_and_killed_once_at_least(monkeypatch: Any) -> None:
    monkeypatch.setattr(run.time, "sleep", lambda _: None)
    monkeypatch.setattr(
        run, "drawn", lambda *args, **left: (drawn_name(*args, **left), lambda: 1.0)
    )
    args = SimpleNamespace(pause=(0, 0))
    for seed in range(5):
        done, broken = run.break_things(NOWHERE, random.Random(seed), 20, args)  # type: ignore[arg-type]
        assert [name for name, _ in done].count("vllm") == 1
        assert (len(done), broken) == (20, [])


def drawn_name(_: Any, chance: random.Random, *, vllm_left: int) -> str:
    return chance.choice(["web", "vllm"] if vllm_left else ["web"])


def test_what_is_seen_to_break_while_a_fault_lasts_is_told(monkeypatch: Any) -> None:
    def act() -> float:
        raise Broken("a job began")

    monkeypatch.setattr(run.time, "sleep", lambda _: None)
    monkeypatch.setattr(run, "drawn", lambda *_, **__: ("vllm", act))
    args = SimpleNamespace(pause=(0, 0))
    _, broken = run.break_things(NOWHERE, random.Random(1), 1, args)  # type: ignore[arg-type]
    assert broken == ["a job began"]


def test_slices_that_ended_are_not_run_again(tmp_path: Path) -> None:
    out = tmp_path / "slices.jsonl"
    assert run.already_run(out) == {}
    old = {"seed": 9, "broken": []}  # of before slices said how long they were
    rows = [old, {"seed": 1, "kills": 20, "users": 3, "broken": ["x"]}]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run.already_run(out)[(1, 20, 3)]["broken"] == ["x"]
    assert (21, 20, 3) not in run.already_run(out)
