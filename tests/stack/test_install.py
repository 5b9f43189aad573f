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


def test_uvs_own_settings_win_over_pips(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "pip_settings", lambda: {"index-url": "file:///pip"})
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///uv")
    assert install.uv_environment("cpu")["UV_DEFAULT_INDEX"] == "file:///uv"


def test_each_pinned_package_has_its_licence_listed() -> None:
    """`make sbom` after `make lock`: the list is of the versions that are installed."""
    lock = (REQUIREMENTS / "cpu.lock").read_text()
    pinned = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;+]+)", lock, re.MULTILINE)
    rows = (ROOT / "docs" / "licenses.md").read_text().splitlines()
    listed = {
        cells[1].strip(): (cells[2].strip(), cells[3].strip())
        for row in rows
        if len(cells := row.split("|")) == 5 and cells[1].strip() not in ("package", "---")
    }
    wanted = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned}
    assert {name: version for name, (version, _) in listed.items()} == wanted
    assert not [name for name, (_, licence) in listed.items() if licence in ("", "not declared")]


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
    answer: Any, is_clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(REQUIREMENTS)
    supply = importlib.import_module("supply")
    said = json.dumps({"dependencies": answer}) if answer else "no connection"
    done = subprocess.CompletedProcess([], 0, stdout=said, stderr="")
    monkeypatch.setattr(supply, "tool", lambda *_: done)
    assert (supply.audit() == 0) is is_clean
