"""A training worker loads its model when it starts, and says what is wrong with it."""

from __future__ import annotations

import pytest
from django.utils import translation

from clawweb import sentences, training_run, worker
from training.errors import BaseInvalid


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_doing", [sentences.IDLE])


def test_a_worker_with_its_model_waits_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for part in ("warm", "wish_probe"):
        monkeypatch.setattr(training_run, part, lambda *_: seen.append(worker._doing[0]))
    training_run.warm_up()
    assert seen == [sentences.LOADS] * 2
    assert worker._doing == [sentences.IDLE]


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
