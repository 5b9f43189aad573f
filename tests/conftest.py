"""The cast and the stage: Alice and Bob, a scripted engine, a real Valkey, the whole stack."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from clawweb.config import config
from tests.realstack import stack as stack  # the fixture


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cuts", type=int, default=1, help="how often a reply is cut off")
    parser.addoption("--seed", type=int, default=0, help="where random tests begin; 0 = anywhere")


@pytest.fixture(scope="session", autouse=True)
def model_folder() -> Path:
    """A two-layer random model as the installation's base."""
    from training.tiny import write_tiny

    return write_tiny(config().model_folder)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """What the units' rows need not be: safe from a power cut, hard to guess passwords from, or
    there again after a test that has emptied the tables, where none reads them (permissions)."""
    options = settings.DATABASES["default"].get("OPTIONS", {})
    if "init_command" in options:  # SQLite; tests/services.py starts PostgreSQL without fsync
        options["init_command"] += "PRAGMA synchronous=OFF;"
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.TEST_NON_SERIALIZED_APPS = ["django.contrib.auth"]


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[None]:
    """The real server, on its socket under the unit tests' data folder; or the one that is set."""
    from clawweb.stack.parts import run_folder, valkey
    from clawweb.stack.readiness import valkey_answers

    if config().redis_url:
        yield
        return
    run_folder(config()).mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(valkey(config()).command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not valkey_answers(config()):  # its socket's file is there before it listens
        assert time.monotonic() < deadline, "Valkey does not answer"
        time.sleep(0.02)
    yield
    process.terminate()
    process.wait(60)


@pytest.fixture
def alice(db: None) -> Any:
    from clawweb.models import User

    return User.objects.create_user("alice")


@pytest.fixture
def bob(db: None) -> Any:
    from clawweb.models import User

    return User.objects.create_user("bob")


@pytest.fixture
def admin(db: None) -> Any:
    from clawweb.models import User

    return User.objects.create_superuser("root")


@pytest.fixture
def transfer_files() -> Iterator[None]:
    """A folder of exports and imports that is empty before and afterwards."""
    from clawweb.services import transfers

    def empty() -> None:
        for path in transfers.folder().iterdir():
            path.unlink()

    empty()
    yield
    empty()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scripted engine in the place of the served one."""
    from clawweb import engine as rooms
    from rollouts.config import EngineConfig
    from rollouts.engines import build_engine

    scripted = build_engine(EngineConfig(kind="scripted"))
    for cached in (rooms.get_replicas, rooms.get_engine):
        cached.cache_clear()
    monkeypatch.setattr(rooms, "build_engine", lambda _: scripted)
    yield scripted
    for cached in (rooms.get_replicas, rooms.get_engine):
        cached.cache_clear()
