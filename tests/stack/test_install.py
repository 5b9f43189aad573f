"""The installer and its locks."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clawweb.config import ROOT

REQUIREMENTS = ROOT / "requirements"


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", REQUIREMENTS / "install.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def supply(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(REQUIREMENTS)
    return importlib.import_module("supply")


@pytest.mark.parametrize("name", ["cpu.lock", "cuda.lock"])
def test_every_package_but_torch_is_locked_with_hashes(name: str) -> None:
    lock = (REQUIREMENTS / name).read_text()
    entries = re.findall(r"^(\S+)==\S+( \\\n    --hash=sha256:)?", lock, flags=re.MULTILINE)
    assert len(entries) > 150
    assert [package for package, hashed in entries if not hashed] == ["torch"]


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.glob("*.*")), ids=lambda path: path.name)
def test_no_registry_is_named(path: Path) -> None:
    assert not re.search(r"https?://|--(extra-)?index|--find-links", path.read_text())


def test_a_local_wheel_of_torch_is_preferred(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "pip_settings", lambda: {"find-links": str(tmp_path)})
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    assert install.torch_source("cpu") == ["--torch-backend", "cpu"]
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    assert install.torch_source("cpu") == []
    assert install.uv_environment("cpu")["UV_FIND_LINKS"] == str(tmp_path)


def test_on_cuda_a_cpu_torch_lying_about_is_not_seen(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "pip_settings", lambda: {"find-links": str(tmp_path)})
    assert "UV_FIND_LINKS" not in install.uv_environment("cuda")
    assert install.torch_source("cuda") == []


def test_a_lock_that_there_is_not_is_told_which_there_are(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["install.py", "gpu"])
    assert install.main() == 1
    assert "LOCK is cpu or cuda" in capsys.readouterr().out


def test_uvs_own_settings_win_over_pips(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "pip_settings", lambda: {"index-url": "file:///pip"})
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///uv")
    assert install.uv_environment("cpu")["UV_DEFAULT_INDEX"] == "file:///uv"


def pinned(name: str) -> dict[str, str]:
    lock = (REQUIREMENTS / f"{name}.lock").read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;+]+)", lock, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def listed(text: str) -> dict[str, tuple[str, str]]:
    """Version and licence of each row."""
    rows = [row.split("|") for row in text.splitlines() if row.count("|") == 4]
    found = {cells[1].strip(): (cells[2].strip(), cells[3].strip()) for cells in rows}
    return {name: row for name, row in found.items() if name not in ("package", "---")}


def test_each_pinned_package_has_its_licence_listed() -> None:
    """`make sbom` after `make lock`: the list is of the versions that are pinned."""
    text = (ROOT / "docs" / "licenses.md").read_text()
    of_cpu, of_gpu = (listed(part) for part in text.split("## With an NVIDIA GPU"))
    cpu, cuda = pinned("cpu"), pinned("cuda")
    assert {name: version for name, (version, _) in of_cpu.items()} == cpu
    assert not [name for name, (_, licence) in of_cpu.items() if licence in ("", "not declared")]
    others = {name: version for name, version in cuda.items() if cpu.get(name) != version}
    assert {name: version for name, (version, _) in of_gpu.items()} == others
    assert all(licence for _, licence in of_gpu.values())


def test_behind_a_proxy_with_tls_django_has_nothing_to_complain_about(tmp_path: Path) -> None:
    """Its own checks for deployment."""
    env = {**os.environ, "CLAWWEB_VAR": str(tmp_path), "CLAWWEB_TRUSTED_PROXY": "1"}
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("answer", "is_clean"),
    [
        ([{"name": "a", "vulns": []}, {"name": "b", "vulns": []}], True),
        ([{"name": "a", "vulns": []}, {"name": "b", "skip_reason": "not reached"}], False),
        ([{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": []}]}], False),
        (None, False),  # it said nothing that can be read
    ],
)
def test_what_was_not_looked_up_is_not_clean(
    answer: Any, is_clean: bool, supply: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.dumps({"dependencies": answer}) if answer else "no connection"
    done = subprocess.CompletedProcess([], 0, stdout=said, stderr="")
    monkeypatch.setattr(supply, "tool", lambda *_: done)
    assert (supply.audit() == 0) is is_clean


def test_the_packages_of_both_locks_are_looked_up(
    supply: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def clean(*command: Any) -> subprocess.CompletedProcess[str]:
        asked.extend(Path(command[command.index("-r") + 1]).read_text().split())
        return subprocess.CompletedProcess([], 0, stdout='{"dependencies": []}', stderr="")

    monkeypatch.setattr(supply, "tool", clean)
    assert supply.audit() == 0
    wanted = [*pinned("cpu").items(), *pinned("cuda").items()]
    assert sorted(asked) == sorted({f"{name}=={version}" for name, version in wanted})


def test_a_licence_of_another_version_is_said_to_be_that(supply: ModuleType) -> None:
    part = {"name": "Ruff", "version": "0.1", "licenses": [{"license": {"id": "MIT"}}]}
    ask = supply.license_for_gpu
    assert ask("ruff", "0.1", {"ruff": part}) == "MIT"
    assert ask("ruff", "0.2", {"ruff": part}) == "MIT (of 0.1)"
    assert ask("vllm", "0.32.0", {}) == "Apache-2.0"
    assert ask("nobody-has-seen-it", "1", {}) == "**not known**"
