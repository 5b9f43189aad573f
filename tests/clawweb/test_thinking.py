"""A base model that can think before it answers is told not to, by server and trainer alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clawweb import engine as rooms
from clawweb import training_run
from tests.judging import Setting
from training.tiny import TEMPLATE


def test_server_and_trainer_are_told_the_same(
    engine: Any, setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "thinks.jinja"
    file.write_text(TEMPLATE + "{% if enable_thinking is not false %}<think>{% endif %}")
    monkeypatch.setattr(rooms, "build_engine", lambda settings: settings)
    hashes = []
    for parser, told in (("", {"enable_thinking": False}), ("qwen3", {})):
        setting(chat_template=file, reasoning_parser=parser)
        rooms.get_replicas.cache_clear()
        rooms.current_template_hash.cache_clear()
        monkeypatch.setattr(training_run, "_BASE", [])
        (server,) = rooms.get_replicas()
        base = training_run.loaded_base()
        assert server.template_options == base.template_options == told
        assert base.template_hash == rooms.current_template_hash()
        hashes.append(base.template_hash)
    rooms.current_template_hash.cache_clear()
    assert hashes[0] != hashes[1]
