"""A training worker loads its model when it starts, and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import translation

from clawweb import sentences, training_run, worker
from training.errors import BaseInvalid


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_doing", [sentences.IDLE])


def test_a_worker_with_its_model_waits_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def probe(base: object, model: object, check: Callable[[], None]) -> None:
        for _ in range(2):
            check()
            seen.append(worker._doing[0])

    monkeypatch.setattr(training_run, "warm", lambda *_: seen.append(worker._doing[0]))
    monkeypatch.setattr(training_run, "wish_probe", probe)
    monkeypatch.setattr(training_run, "examples", lambda: [("Hello.", -1.0)] * 40)  # 32 in a part
    training_run.warm_up()
    reads = "reading examples of small talk, part"
    assert seen == [sentences.LOADS, f"{reads} 1 of 2", f"{reads} 2 of 2"]
    assert all(map(sentences.gets_ready, seen))
    assert worker._doing == [sentences.IDLE]
    assert not sentences.gets_ready(sentences.IDLE)


def test_what_nobody_expected_is_said_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stayed at "loading the model" until the next job."""

    def fail(*_: object) -> None:
        raise RuntimeError("not enough memory\nfor 94 MB")

    monkeypatch.setattr(training_run, "warm", fail)
    training_run.warm_up()
    assert worker._doing == ["cannot train: RuntimeError, see the worker's log"]
    assert "for 94 MB" in caplog.text
    assert "Traceback" in caplog.text


def test_what_is_wrong_with_the_base_is_said_from_the_start_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise BaseInvalid("it cannot read on")

    monkeypatch.setattr(training_run, "loaded_base", refuse)
    training_run.warm_up()
    (text,) = worker._doing
    assert text == "cannot train: it cannot read on"
    with translation.override("de"):
        assert sentences.said(text) == "kann nicht trainieren: it cannot read on"
