"""The base model's folder appears whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clawweb.config import Config
from clawweb.stack import model
from clawweb.stack.terminal import Bar, StackError


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", var=tmp_path)


def write_model(config: Config, workshop: Path) -> Path:
    made = workshop / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    return made


def test_it_is_made_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(
        model, "build", lambda config, workshop: built.append(1) or write_model(config, workshop)
    )
    assert model.prepare_model(config) == config.model_folder
    model.prepare_model(config)
    assert built == [1]
    assert (config.model_folder / "config.json").exists()
    assert not list(config.model_folder.parent.glob("*.partial"))


def test_an_interrupted_build_leaves_no_folder(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(config: Config, workshop: Path) -> Path:
        write_model(config, workshop)
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "build", stop)
    with pytest.raises(KeyboardInterrupt):
        model.prepare_model(config)
    assert not config.model_folder.exists()
    assert not list((config.var / "models").glob("*.partial"))


def test_half_a_model_in_its_place_is_named_before_another_is_made(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.model_folder.mkdir(parents=True)
    (half := config.model_folder / "model.safetensors").write_text("…")
    monkeypatch.setattr(model, "build", write_model)
    with pytest.raises(StackError, match=r"holds no config\.json, so .* move it away"):
        model.prepare_model(config)
    half.unlink()
    assert (model.prepare_model(config) / "config.json").exists()


def test_a_given_folder_without_a_model_is_refused_by_the_settings_name(tmp_path: Path) -> None:
    config = Config(
        _env_prefix="NOT_FROM_THIS_ENVIRONMENT_", var=tmp_path, base_model=str(tmp_path)
    )
    with pytest.raises(StackError, match=r"CLAWWEB_BASE_MODEL.*config\.json"):
        model.prepare_model(config)


def test_a_command_that_fails_shows_what_it_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such wheel')"]
    with pytest.raises(StackError, match="no such wheel"):
        model.run(command, Bar("fetching"), tmp_path / "out", 1, {})
