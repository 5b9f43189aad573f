"""The base model's weights are read once for all processes, and again when a file has changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clawweb import engine
from tests.judging import Setting


@pytest.fixture
def asked(setting: Setting, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """The hash as a process that has just started says it, of a model with one file."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "a.safetensors").write_bytes(b"weights")
    setting(var=tmp_path, base_model=model)

    def fresh() -> str:
        engine.base_hash.cache_clear()
        return engine.base_hash()

    yield fresh
    engine.base_hash.cache_clear()


def read_count(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    real, read = engine.weights_hash, []

    def counted(folder: Path) -> str:
        read.append(folder)
        return real(folder)

    monkeypatch.setattr(engine, "weights_hash", counted)
    return read


def test_only_the_first_process_reads_the_weights(
    asked: Callable[[], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read = read_count(monkeypatch)
    first = asked()
    assert asked() == first
    assert len(read) == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["base-weights.json"]


def test_other_weights_are_read_anew(
    asked: Callable[[], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read = read_count(monkeypatch)
    first = asked()
    file = tmp_path / "model" / "a.safetensors"
    file.write_bytes(b"WEIGHTS")  # as many bytes
    os.utime(file, ns=(1, 1))
    assert asked() != first
    assert len(read) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": []}'])
def test_a_note_that_says_nothing_is_written_anew(
    asked: Callable[[], str], tmp_path: Path, text: str
) -> None:
    first = asked()
    (tmp_path / "base-weights.json").write_text(text)
    assert asked() == first
    assert first in (tmp_path / "base-weights.json").read_text()
