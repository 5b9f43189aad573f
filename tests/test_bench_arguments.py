"""Numbers that make no sense are refused by the benches before anything has begun."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.personas.run import arguments
from bench.trainer import run as trainer_bench
from clawweb.config import ROOT


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("--shard a", "a is not I/N"),
        ("--shard 2/2", "2/2 is not I/N"),
        ("--shard 0/0", "0/0 is not I/N"),
        ("--turns 0", "0 is not a whole number from 1 on"),
        ("--turns -3", "-3 is not a whole number from 1 on"),
        ("--seeds 0 -1", "-1 is not a whole number from 0 on"),
        ("--asked-at -1", "-1 is not a whole number from 0 on"),
        ("--held-out 3", "invalid choice: 3"),  # half of them are recipes, for one person
    ],
)
def test_the_personas_bench_refuses_what_it_cannot_do(
    given: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *given.split()])
    with pytest.raises(SystemExit):
        arguments()
    assert why in capsys.readouterr().err


def test_a_shard_is_every_nth_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--shard", "1/3", "--turns", "16"])
    args = arguments()
    assert (args.shard, args.turns) == ((1, 3), 16)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert arguments().shard == (0, 1)


def test_other_rows_do_not_replace_the_published_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, folder in (
        ("", ROOT / "docs" / "personas"),
        ("--out else/cells.jsonl", Path("else")),
        ("--out else/cells.jsonl --report there", Path("there")),
    ):
        monkeypatch.setattr(sys, "argv", ["run.py", *given.split()])
        assert arguments().report == folder, given


@pytest.mark.parametrize("given", ["--rounds 0", "--rounds some", "--job 0"])
def test_the_trainer_bench_refuses_what_it_cannot_do(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begun() -> None:
        raise AssertionError("it has begun")

    monkeypatch.setattr(trainer_bench, "make_trl_venv", begun)
    monkeypatch.setattr(sys, "argv", ["run.py", *given.split()])
    with pytest.raises(SystemExit):
        trainer_bench.main()
    assert "is not a whole number from 1 on" in capsys.readouterr().err
