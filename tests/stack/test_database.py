"""The database before a start: copies, and the refusal of what later code wrote."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from clawweb import copies as copies_room
from clawweb import settings, tasks
from clawweb.config import ROOT, Config
from clawweb.stack import database
from clawweb.stack.terminal import StackError


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", var=tmp_path)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "clawweb.sqlite3"
    with sqlite3.connect(path) as rows:
        rows.execute("create table t (x)")
        rows.execute("insert into t values (42)")
    rows.close()
    fake = SimpleNamespace(vendor="sqlite", settings_dict={"NAME": path})
    monkeypatch.setattr(copies_room, "connection", fake)
    return path


def copies(config: Config) -> list[Path]:
    return sorted((config.var / "backups").glob("*"))


def test_a_copy_holds_the_rows_and_is_private(config: Config, source: Path) -> None:
    database.back_up(config, before_migration=True)
    [copy] = copies(config)
    rows = sqlite3.connect(copy)
    assert rows.execute("select x from t").fetchall() == [(42,)]
    rows.close()
    assert copy.stat().st_mode & 0o777 == 0o600


def test_without_a_migration_one_copy_a_day_is_enough(config: Config, source: Path) -> None:
    database.back_up(config, before_migration=False)
    database.back_up(config, before_migration=False)
    assert len(copies(config)) == 1


def test_without_room_the_days_copy_waits_and_no_migration_is_begun(
    config: Config, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawweb.disk.free_bytes", lambda: 0)
    with pytest.raises(StackError, match=r"0 MB are free, and a migration is not begun"):
        database.back_up(config, before_migration=True)
    database.back_up(config, before_migration=False)
    assert copies(config) == []


def test_a_copy_that_was_killed_gives_its_room_to_the_next(
    config: Config, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = config.var / "backups" / "clawweb-20260101T000000.partial"
    killed.parent.mkdir()
    killed.touch()
    monkeypatch.setattr("clawweb.disk.free_bytes", lambda: 0 if killed.exists() else 1 << 40)
    database.back_up(config, before_migration=True)
    assert len(copies(config)) == 1


@pytest.mark.django_db
def test_a_worker_makes_the_next_days_copy(
    config: Config, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "config", lambda: config)
    tasks.let_go()
    tasks.let_go()
    [copy] = copies(config)
    old = copy.rename(copy.with_name("clawweb-20260101T000000.sqlite3"))
    os.utime(old, (time.time() - copies_room.DAY,) * 2)
    (killed := old.with_name("clawweb-20260101T000001.partial")).touch()
    tasks.let_go()
    assert [each == old for each in copies(config)] == [True, False]
    assert not killed.exists()


def test_a_damaged_database_takes_no_copys_place(config: Config, source: Path) -> None:
    with sqlite3.connect(source) as rows:
        rows.executemany("insert into t values (?)", [("x" * 900,) for _ in range(100)])
    rows.close()
    database.back_up(config, before_migration=True)
    [good] = copies(config)
    os.utime(good, (time.time() - copies_room.DAY,) * 2)
    with source.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"?" * 4096)
    with pytest.raises(StackError, match=r"damaged .* go back to one\), and a migration is not"):
        database.back_up(config, before_migration=True)
    database.back_up(config, before_migration=False)  # said, and all else goes on
    assert copies(config) == [good]


def test_the_five_newest_are_kept(config: Config, source: Path) -> None:
    folder = config.var / "backups"
    folder.mkdir()
    for day in range(1, 8):
        old = folder / f"clawweb-2026010{day}T000000.sqlite3"
        old.touch()
        os.utime(old, (time.time() - 1e6,) * 2)
    database.back_up(config, before_migration=True)
    kept = [copy.name for copy in copies(config)]
    assert len(kept) == 5
    assert kept[0] == "clawweb-20260104T000000.sqlite3"


@pytest.mark.django_db
def test_a_database_that_later_code_migrated_is_refused() -> None:
    MigrationRecorder(connection).record_applied("clawweb", "9999_from_the_future")
    with pytest.raises(StackError, match=r"newer than this code.*9999_from_the_future"):
        database.refuse_newer_schema(MigrationExecutor(connection))


@pytest.mark.django_db
def test_our_own_database_is_not_refused() -> None:
    database.refuse_newer_schema(MigrationExecutor(connection))


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////data/rows.sqlite3",
        "mysql://me:s3cret@db/x",
        "db/x",
        "postgres://me:s3cret#1@db/x",
    ],
)
def test_what_is_no_postgres_is_refused_without_a_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SQLite that is named so would have none of our options: writers would lose thousands of
    races, and a restore would put the rows elsewhere."""
    given = Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", database_url=url)
    monkeypatch.setattr(settings, "_config", given)
    with pytest.raises(ImproperlyConfigured, match="CLAWWEB_DATABASE_URL") as refused:
        settings._database()
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("command", [["createkey", "admin"], ["backup", "copy.zip"]], ids=str)
def test_a_command_before_the_first_start_says_what_makes_the_tables(
    tmp_path: Path, command: list[str]
) -> None:
    assert_says(tmp_path, command, "", "no such table", "`make run` makes its tables")


def test_a_start_on_a_file_that_is_no_database_says_how_to_go_back(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt() -> None:
        raise DatabaseError("file is not a database")

    monkeypatch.setattr(connection, "ensure_connection", spoilt)
    with pytest.raises(StackError, match=r"cannot be read: file is not a database\. Go back to a"):
        database.prepare_database(config)


def test_a_restore_into_a_database_that_is_away_says_so(tmp_path: Path) -> None:
    url = "postgres://me:s3cret@127.0.0.1:1/rows"
    assert_says(tmp_path, ["restore", "copy.zip"], url, "Connection refused", "does not answer")


def assert_says(var: Path, command: list[str], database: str, *words: str) -> None:
    """And no traceback."""
    env = {**os.environ, "CLAWWEB_VAR": str(var), "CLAWWEB_DATABASE_URL": database}
    whole = [sys.executable, "manage.py", *command]
    done = subprocess.run(whole, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr
