"""A backup holds what cannot be made again; a restore puts all of it back, or nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection

from clawweb import disk
from clawweb.config import Config, config
from clawweb.stack import backup
from clawweb.stack.terminal import StackError
from tests.factories import make_adapter, make_turn

pytestmark = [pytest.mark.db, pytest.mark.django_db(transaction=True, serialized_rollback=True)]


@pytest.fixture
def version(alice: Any, engine: Any) -> Any:
    """A version with files, beside what must stay out of a backup."""
    shutil.rmtree(config().var / "adapters", ignore_errors=True)
    adapter = make_adapter(alice, 1, "live")
    folder = config().var / adapter.path
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    Path(f"{folder}.probe.json").write_text("{}")
    unfinished = folder.with_name(".v2.1.unfinished-1")
    unfinished.mkdir()
    (unfinished / "adapter_model.safetensors").write_bytes(b"half")
    config().secret("install_id", "")
    yield adapter
    shutil.rmtree(config().var / "adapters")


@pytest.fixture
def file(version: Any, alice: Any, tmp_path: Path) -> Path:
    make_turn(alice, "what is in a backup?")
    path = tmp_path / "backup.zip"
    backup.write_backup(config(), path)
    return path


@pytest.fixture
def empty(tmp_path: Path) -> Config:
    return Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", var=tmp_path / "restored")


sqlite_alone = pytest.mark.skipif(connection.vendor != "sqlite", reason="needs an empty database")


def manifest_of(file: Path) -> dict[str, Any]:
    with zipfile.ZipFile(file) as archive:
        found: dict[str, Any] = json.loads(archive.read("manifest.json"))
    return found


def test_it_holds_rows_weights_and_secrets_and_nothing_half(file, version):
    names = set(manifest_of(file)["files"])
    database = "clawweb.sqlite3" if connection.vendor == "sqlite" else "database.dump"
    assert names == {
        database,
        "secret_key",
        "install_id",
        f"{version.path}/adapter_model.safetensors",
        f"{version.path}.probe.json",
    }
    assert file.stat().st_mode & 0o777 == 0o600
    assert not list(config().var.glob(".backup-*"))


def test_a_version_whose_files_are_gone_is_named(version, tmp_path):
    shutil.rmtree(config().var / version.path)
    manifest = backup.write_backup(config(), tmp_path / "backup.zip")
    assert manifest["missing"] == [version.path]


def test_what_is_pruned_while_it_is_looked_for_ends_no_backup(version, tmp_path, monkeypatch):
    pruned = (config().var / version.path).with_name("v2.1")
    pruned.mkdir()
    scan = os.scandir

    def while_it_goes(path: Any = ".") -> Any:
        if pruned.is_dir() and str(path) == str(pruned):
            pruned.rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", while_it_goes)
    backup.write_backup(config(), tmp_path / "backup.zip")
    assert not pruned.exists()


def test_a_backup_never_overwrites(file):
    with pytest.raises(StackError, match="never overwrites"):
        backup.write_backup(config(), file)


def test_of_a_backup_that_found_no_room_nothing_stays(version, tmp_path, monkeypatch):
    def pack(archive: zipfile.ZipFile, *_: Any) -> Any:
        archive.writestr("half", "of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(backup, "_pack", pack)
    with pytest.raises(OSError, match="No space"):
        backup.write_backup(config(), tmp_path / "backup.zip")
    assert list(tmp_path.iterdir()) == []


@sqlite_alone
def test_on_one_disk_there_is_room_for_the_copy_and_the_file(version, monkeypatch):
    database = config().var / "clawweb.sqlite3"
    database.write_bytes(bytes(3000))
    monkeypatch.setattr(disk, "reserve_bytes", lambda: 0)
    monkeypatch.setattr(disk, "free_bytes", lambda folder=None: 5000)
    try:
        with pytest.raises(StackError, match="a backup needs"):
            backup.write_backup(config(), config().var / "backup.zip")
    finally:
        database.unlink()


def test_of_two_backups_to_one_file_the_first_to_end_is_kept(version, tmp_path, monkeypatch):
    path, pack = tmp_path / "backup.zip", backup._pack

    def and_another(archive: zipfile.ZipFile, *rest: Any) -> Any:
        monkeypatch.setattr(backup, "_pack", pack)
        backup.write_backup(config(), path)
        return pack(archive, *rest)

    monkeypatch.setattr(backup, "_pack", and_another)
    with pytest.raises(StackError, match="never overwrites"):
        backup.write_backup(config(), path)
    assert list(tmp_path.iterdir()) == [path]
    assert zipfile.ZipFile(path).testzip() is None


@sqlite_alone
def test_a_restored_folder_has_all_of_it(file, version, empty):
    backup.restore_backup(empty, file)
    assert (empty.var / version.path / "adapter_model.safetensors").read_bytes() == b"weights"
    for name in ("secret_key", "install_id"):
        assert (empty.var / name).read_text() == (config().var / name).read_text()
    rows = sqlite3.connect(empty.var / "clawweb.sqlite3")
    found = rows.execute("select name, state from clawweb_adapterversion").fetchall()
    said = rows.execute("select input_messages from clawweb_turn").fetchone()[0]
    rows.close()
    assert found == [(version.name, "live")]
    assert "what is in a backup?" in said
    assert not list(empty.var.glob(".restore-*"))


@sqlite_alone
def test_a_folder_for_versions_that_is_there_and_empty_is_filled(file, version, empty):
    """In a container it is a volume of its own, which nobody can take away."""
    (empty.var / "adapters").mkdir(parents=True)
    backup.restore_backup(empty, file)
    assert (empty.var / version.path / "adapter_model.safetensors").read_bytes() == b"weights"


@sqlite_alone
def test_what_an_older_database_left_is_not_played_into_the_restored_one(file, empty):
    empty.var.mkdir()
    (empty.var / "clawweb.sqlite3-wal").write_bytes(b"of a database that was deleted")
    with pytest.raises(StackError, match="sqlite3-wal already"):
        backup.restore_backup(empty, file)


def test_postgres_own_programs_come_in_as_we_do(monkeypatch):
    """Else they would ask for less than the address says: no certificate, say."""
    options = {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "pool": True}
    settings = {"HOST": "db", "NAME": "n", "PASSWORD": "secret", "OPTIONS": options}
    monkeypatch.setattr(backup, "connection", SimpleNamespace(settings_dict=settings))
    monkeypatch.setattr(backup.shutil, "which", lambda _: "/there")
    seen: dict[str, Any] = {}

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        seen.update(env, command=command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(backup.subprocess, "run", run)
    backup._postgres("pg_dump")
    assert (seen["PGSSLMODE"], seen["PGSSLROOTCERT"]) == ("verify-full", "/ca.pem")
    assert seen["PGPASSWORD"] == "secret"
    assert "secret" not in " ".join(seen["command"])


@sqlite_alone
def test_a_database_without_a_table_is_in_nobodys_way(file, version, empty):
    """Any command makes one that is called before `restore`."""
    empty.var.mkdir()
    with closing(sqlite3.connect(empty.var / "clawweb.sqlite3")) as database:
        database.execute("pragma journal_mode=wal")
    backup.restore_backup(empty, file)
    with closing(sqlite3.connect(empty.var / "clawweb.sqlite3")) as rows:
        found = rows.execute("select name from clawweb_adapterversion").fetchall()
    assert found == [(version.name,)]


@sqlite_alone
@pytest.mark.parametrize("table", [True, False])
def test_a_database_of_others_or_no_database_stays_as_it_is(file, empty, table):
    empty.var.mkdir()
    there = empty.var / "clawweb.sqlite3"
    if table:
        with closing(sqlite3.connect(there)) as database:
            database.execute("create table of_others (id integer)")
    else:
        there.write_bytes(b"a file that is no database" * 100)
    before = there.read_bytes()
    with pytest.raises(StackError, match="an empty folder"):
        backup.restore_backup(empty, file)
    assert there.read_bytes() == before


@sqlite_alone
def test_what_is_there_is_not_overwritten(file, empty):
    backup.restore_backup(empty, file)
    with pytest.raises(StackError, match="an empty folder"):
        backup.restore_backup(empty, file)


def rewritten(file: Path, target: Path, change: Any) -> Path:
    """The backup with some of its files or its manifest changed."""
    with zipfile.ZipFile(file) as old:
        files = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    change(files, manifest)
    with zipfile.ZipFile(target, "w") as new:
        for name, data in files.items():
            new.writestr(name, data)
        new.writestr("manifest.json", json.dumps(manifest))
    return target


def spoil(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    files["secret_key"] = b"another"


def lose(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    del files["install_id"]


def climb(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    files["adapters/../../evil"] = b""
    manifest["files"]["adapters/../../evil"] = "0"


def stray(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    files["run/up.sock"] = b""
    manifest["files"]["run/up.sock"] = "0"


def later(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["format"] = 2


def other(files: dict[str, bytes], manifest: dict[str, Any]) -> None:
    manifest["database"] = "oracle"


@sqlite_alone
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (spoil, "its hash is another"),
        (lose, "missing from the backup"),
        (climb, "does not belong"),
        (stray, "does not belong"),
        (later, "later version"),
        (other, "oracle"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_put_in_place(file, empty, tmp_path, change, words):
    bad = rewritten(file, tmp_path / "bad.zip", change)
    with pytest.raises(StackError, match=words):
        backup.restore_backup(empty, bad)
    assert list(empty.var.iterdir()) == []


@sqlite_alone
@pytest.mark.parametrize("manifest", ["[]", '{"manifest_version": 3, "name": "of a browser"}'])
def test_another_programs_zip_is_said_to_be_no_backup(empty, tmp_path, manifest):
    with zipfile.ZipFile(bad := tmp_path / "bad.zip", "w") as archive:
        archive.writestr("manifest.json", manifest)
    with pytest.raises(StackError, match="no backup of clawweb: its manifest is of something else"):
        backup.restore_backup(empty, bad)


@sqlite_alone
def test_a_backup_whose_manifest_is_broken_is_said_to_be(file, empty):
    file.write_bytes(file.read_bytes().replace(b'"made_at"', b'"made_a_"'))
    with pytest.raises(StackError, match="is broken: Bad CRC-32"):
        backup.restore_backup(empty, file)


@sqlite_alone
def test_a_file_that_is_no_backup_is_said_to_be_none(empty, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(StackError, match="cannot be read as a backup"):
        backup.restore_backup(empty, tmp_path / "notes.txt")
    with pytest.raises(StackError, match="cannot be read as a backup"):
        backup.restore_backup(empty, tmp_path / "nowhere.zip")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="of PostgreSQL's own programs")
def test_postgres_is_dumped_whole_and_refused_where_tables_are(file, empty, tmp_path):
    with zipfile.ZipFile(file) as archive:
        assert archive.read("database.dump").startswith(b"PGDMP")
    with pytest.raises(StackError, match="tables already"):
        backup.restore_backup(empty, file)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="of PostgreSQL's own programs")
def test_an_empty_postgres_gets_the_rows_back(version, alice, empty, monkeypatch, tmp_path):
    """Also where a role is unknown that might read the old one."""
    file = tmp_path / "backup.zip"
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE passing_reader")
        cursor.execute("GRANT SELECT ON clawweb_adapterversion TO passing_reader")
        try:
            backup.write_backup(config(), file)
        finally:
            cursor.execute("DROP OWNED BY passing_reader")
            cursor.execute("DROP ROLE passing_reader")
        cursor.execute("CREATE DATABASE restored")
    other = connection.copy("restored")
    other.settings_dict = {**connection.settings_dict, "NAME": "restored"}
    monkeypatch.setattr(backup, "connection", other)
    try:
        backup.restore_backup(empty, file)
        with other.cursor() as cursor:
            cursor.execute("SELECT name, state FROM clawweb_adapterversion")
            assert cursor.fetchall() == [(version.name, "live")]
    finally:
        other.close()
    assert (empty.var / version.path / "adapter_model.safetensors").read_bytes() == b"weights"
    assert not (empty.var / "database.dump").exists()
    with pytest.raises(StackError, match="holds adapters already"):
        backup.restore_backup(empty, file)  # or its files would go into a folder within that one
