"""One file with all that cannot be made again: the database, every version's weights, the secrets.

The base model, logs and collected files are left out: they can be made again. The file is a ZIP
with a manifest of hashes; `restore` checks them before it puts anything in its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from django.db import connection
from django.utils import timezone

from clawweb import disk
from clawweb.config import Config
from clawweb.copies import copy_sqlite
from clawweb.engine import base_hash
from clawweb.stack.terminal import StackError

FORMAT = 1
MANIFEST, SQLITE, DUMP = "manifest.json", "clawweb.sqlite3", "database.dump"
SECRETS = ("secret_key", "install_id")  # sessions, and the names of versions, rest on them
FOLDER = "adapters"
# Of pg_restore. Roles and what they may are the old server's; a new one need not know them.
INTO_ANY_SERVER = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")


def write_backup(config: Config, target: Path) -> dict[str, Any]:
    """Write `target`, which must not be there yet; returns its manifest.

    Everything may run meanwhile: the database is copied in one piece first, and a version's folder
    is never changed once it is written. One that was removed in between is named under `missing`.
    """
    _refuse_to_overwrite(target)
    _refuse_without_room(config, target)
    versions = _versions()
    with tempfile.TemporaryDirectory(dir=config.var, prefix=".backup-") as scratch:
        database = _copy_database(Path(scratch))
        manifest: dict[str, Any] = {}
        with _whole(target) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            hashes = dict(_pack(archive, config, database))
            manifest |= {
                "format": FORMAT,
                "made_at": timezone.now().isoformat(),
                "database": connection.vendor,
                "base_hash": base_hash(),
                "files": hashes,
                "missing": [path for path in versions if f"{path}/" not in _folders(hashes)],
            }
            archive.writestr(MANIFEST, json.dumps(manifest, indent=1))
    return manifest


@contextmanager
def _whole(target: Path) -> Iterator[IO[bytes]]:
    """A file that is called `target` once all of it is on the disk. Of one that was not finished
    nothing stays: it may be what has filled the disk. Two at once do not write into each other."""
    with tempfile.NamedTemporaryFile(
        dir=target.parent, prefix=f".{target.name}.", suffix=".partial", delete=False
    ) as out:
        try:
            yield out
            out.flush()
            os.fsync(out.fileno())
            _refuse_to_overwrite(target)  # of two at once the second has found none before
            Path(out.name).rename(target)
        except BaseException:
            Path(out.name).unlink(missing_ok=True)
            raise


def _refuse_to_overwrite(target: Path) -> None:
    if target.exists():
        raise StackError(f"{target} is there already; a backup never overwrites another")


def _refuse_without_room(config: Config, target: Path) -> None:
    """The copy of the database goes beside it for a while; all of it into the file. On one disk
    both are there at once."""
    database = sum(path.stat().st_size for path in config.var.glob(f"{SQLITE}*"))
    weights = sum(map(_size, _weights(config)))
    needs = ((config.var, database), (target.resolve().parent, database + weights))
    for folder, _ in needs:
        disk_of = folder.stat().st_dev
        size = sum(size for other, size in needs if other.stat().st_dev == disk_of)
        room = disk.free_bytes(folder) - disk.reserve_bytes()
        if size > room:
            raise StackError(
                f"a backup needs {size // disk.MIB} MB in {folder} and leaves "
                f"{config.disk_free_mib} MB free (CLAWWEB_DISK_FREE_MIB); "
                f"there are {disk.free_bytes(folder) // disk.MIB} MB"
            )


def _weights(config: Config) -> list[Path]:
    """What lies in the versions' folders. Any may be pruned meanwhile: os.walk goes on then."""
    walk = os.walk(config.var / FOLDER)
    return sorted(Path(folder) / name for folder, _, names in walk for name in names)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # pruned a moment ago
        return 0


def _versions() -> list[str]:
    """Folders that the rows count on."""
    from clawweb.models import AdapterState, AdapterVersion

    kept = AdapterVersion.objects.exclude(state=AdapterState.ERASED)
    return list(kept.values_list("path", flat=True))


def _folders(hashes: dict[str, str]) -> set[str]:
    return {f"{PurePosixPath(name).parent}/" for name in hashes}


def _copy_database(scratch: Path) -> Path:
    if connection.vendor == "sqlite":
        copy_sqlite(Path(connection.settings_dict["NAME"]), scratch / SQLITE)
        return scratch / SQLITE
    _postgres("pg_dump", "--format=custom", "--no-owner", "--file", str(scratch / DUMP))
    return scratch / DUMP


def _pack(archive: zipfile.ZipFile, config: Config, database: Path) -> Iterator[tuple[str, str]]:
    """Each file under its path below the data folder, with its sha256."""
    files = [(database.name, database)]
    files += [(name, config.var / name) for name in SECRETS]
    for path in _weights(config):
        if not any(part.startswith(".") for part in path.parts[-3:]):
            files.append((path.relative_to(config.var).as_posix(), path))
    for name, path in files:
        try:
            digest = _sha256(path)
            archive.write(path, name)
        except FileNotFoundError:
            continue  # pruned a moment ago, or a secret that was never needed
        yield name, digest


def restore_backup(config: Config, source: Path) -> dict[str, Any]:
    """Put a backup's files into an empty data folder, or an empty PostgreSQL; returns its manifest.

    Nothing is put in its place before every hash was right.
    """
    _refuse_unless_empty(config)
    config.var.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        _opened(source) as archive,
        tempfile.TemporaryDirectory(dir=config.var, prefix=".restore-") as scratch,
    ):
        manifest = _manifest(archive, source)
        for name, digest in manifest["files"].items():
            _unpack(archive, name, digest, Path(scratch))
        if connection.vendor != "sqlite":
            dump = str(Path(scratch) / DUMP)
            _postgres("pg_restore", *INTO_ANY_SERVER, dump)
            Path(dump).unlink()
        for path in sorted(Path(scratch).iterdir(), key=lambda path: path.name == SQLITE):
            _place(path, config.var / path.name)  # the database last: then it is restored
    return manifest


def _place(source: Path, target: Path) -> None:
    """A folder that is there, and empty, is filled: it may be a volume of its own."""
    if target.is_dir():
        for path in source.iterdir():
            shutil.move(path, target / path.name)
    else:
        shutil.move(source, target)


def _has_no_tables(path: Path) -> bool:
    """As any command leaves it that looked for rows before there was a database."""
    if not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(path)) as database:
            return database.execute("select count(*) from sqlite_master").fetchone() == (0,)
    except sqlite3.DatabaseError:  # something else, or spoilt: not ours to remove
        return False


def _refuse_unless_empty(config: Config) -> None:
    # A write-ahead log that an older database has left would be played into the restored one.
    names = (SQLITE, f"{SQLITE}-wal") if connection.vendor == "sqlite" else ()
    if names and _has_no_tables(config.var / SQLITE):
        for name in (*names, f"{SQLITE}-shm"):
            (config.var / name).unlink(missing_ok=True)
    there = [name for name in names if (config.var / name).exists()]
    folder = config.var / FOLDER
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        there.append(FOLDER)
    if there:
        raise StackError(
            f"{config.var} holds {' and '.join(there)} already: restore into an empty folder "
            "(set CLAWWEB_VAR to one)"
        )
    if connection.vendor != "sqlite" and connection.introspection.table_names():
        raise StackError("the database has tables already: restore into an empty one")


def _opened(source: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(source)
    except (OSError, zipfile.BadZipFile) as error:
        raise StackError(f"{source} cannot be read as a backup: {error}") from error


def _manifest(archive: zipfile.ZipFile, source: Path) -> dict[str, Any]:
    try:
        manifest: Any = json.loads(archive.read(MANIFEST))
    except (KeyError, ValueError) as error:
        raise StackError(f"{source} is no backup of clawweb: it has no manifest") from error
    except zipfile.BadZipFile as error:
        raise StackError(f"{source} is broken: {error}") from error
    if not (isinstance(manifest, dict) and isinstance(manifest.get("format"), int)):
        raise StackError(f"{source} is no backup of clawweb: its manifest is of something else")
    if manifest.get("format") != FORMAT:
        raise StackError(f"{source} was written by a later version of clawweb; run that one")
    if manifest["database"] != connection.vendor:
        raise StackError(
            f"the backup is of {manifest['database']} and the settings name {connection.vendor} "
            "(CLAWWEB_DATABASE_URL)"
        )
    return dict(manifest)


def _unpack(archive: zipfile.ZipFile, name: str, digest: str, scratch: Path) -> None:
    path = PurePosixPath(name)
    known = name in (SQLITE, DUMP, *SECRETS) or path.parts[0] == FOLDER
    if not known or path.is_absolute() or ".." in path.parts:
        raise StackError(f"the backup holds {name!r}, which does not belong into one")
    target = scratch / path
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with archive.open(name) as packed, target.open("xb") as out:
            shutil.copyfileobj(packed, out)
    except (KeyError, zipfile.BadZipFile) as error:
        raise StackError(f"{name} is missing from the backup, or broken: {error}") from error
    target.chmod(0o600)
    if _sha256(target) != digest:
        raise StackError(f"{name} is not what was backed up: its hash is another")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _postgres(program: str, *options: str) -> None:
    """pg_dump or pg_restore on the database of the settings, reached as we reach it: the password
    and the options of its address (sslmode, sslrootcert, …) go by environment."""
    if shutil.which(program) is None:
        raise StackError(f"{program} is needed for PostgreSQL: install PostgreSQL's client")
    settings = connection.settings_dict
    address = {"HOST": "--host", "PORT": "--port", "USER": "--username", "NAME": "--dbname"}
    where = [f"{flag}={settings[name]}" for name, flag in address.items() if settings.get(name)]
    env = {**os.environ, "PGPASSWORD": settings.get("PASSWORD") or "", **_libpq_options()}
    done = subprocess.run(
        [program, *where, *options], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise StackError(f"{program} failed: {done.stderr.strip()[-1000:]}")


def _libpq_options() -> dict[str, str]:
    from psycopg import pq

    chosen = connection.settings_dict.get("OPTIONS") or {}
    known = {option.keyword.decode(): option.envvar for option in pq.Conninfo.get_defaults()}
    return {known[name].decode(): str(chosen[name]) for name in chosen if known.get(name)}
