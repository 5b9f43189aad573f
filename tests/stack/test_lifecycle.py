"""What is refused before anything starts."""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path

import pytest

from clawweb.config import Config
from clawweb.stack import lifecycle
from clawweb.stack.terminal import StackError


def settings(var: Path, **chosen: object) -> Config:
    return Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", var=var, **chosen)


def test_a_port_in_use_names_the_setting_to_change(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = settings(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(StackError, match="CLAWWEB_PORT"):
            lifecycle.check_ports(config, lifecycle.chosen(config, ["web"]))


def test_a_second_start_on_the_same_data_says_what_to_set(tmp_path: Path) -> None:
    config = settings(tmp_path)
    lifecycle.prepare_folders(config)
    with (tmp_path / "run" / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StackError, match="CLAWWEB_VAR"), lifecycle.only_one(config):
            pass


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path / ("x" * 90))
    with pytest.raises(StackError, match="CLAWWEB_VAR"), lifecycle.only_one(config):
        pass


def test_an_unknown_part_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"no part wbe.*worker-gpu"):
        lifecycle.chosen(settings(tmp_path), ["wbe"])


def test_the_data_folder_is_private(tmp_path: Path) -> None:
    config = settings(tmp_path / "var")
    lifecycle.prepare_folders(config)
    assert config.var.stat().st_mode & 0o777 == 0o700


def test_a_missing_library_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the model server ends again and again, and why stands deep in its log."""
    monkeypatch.setattr(lifecycle, "NUMA", "libthere-is-none.so.1")
    monkeypatch.setattr(Config, "has_gpu", False)
    config = settings(tmp_path)
    with pytest.raises(StackError, match=r"libthere-is-none.*libnuma1"):
        lifecycle.check_libraries(config, ["web", "vllm"])
    lifecycle.check_libraries(config, ["web"])
    monkeypatch.setattr(Config, "has_gpu", True)
    lifecycle.check_libraries(config, ["vllm"])
