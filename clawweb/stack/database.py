"""The database and the static files before anything serves: copy, check, migrate, collect."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import OperationalError

from clawweb import disk
from clawweb.config import Config
from clawweb.services import erasure, second_factor
from clawweb.stack.terminal import StackError, say, step
from clawweb.static_files import HashedStorage

KEPT_BACKUPS = 5
DAY = 86_400.0
START_LOCK = 0x636C6177  # of PostgreSQL's advisory locks


def prepare_database(config: Config) -> None:
    """Refuses a newer schema before it writes anything."""
    try:
        connection.ensure_connection()
    except OperationalError as error:
        raise StackError(f"the database does not answer: {error} (CLAWWEB_DATABASE_URL)") from error
    with one_at_a_time():
        migrate(config)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Of several machines that start at once each migrates what the one before has left
    (PostgreSQL). Asked again and again: who waited in a query would keep indexes waiting that are
    made concurrently."""
    is_said = False
    while connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [START_LOCK])
            if cursor.fetchone() == (True,):
                break
        if not is_said:
            say("database: another start prepares it")
        is_said = True
        time.sleep(0.2)
    try:
        yield
    finally:
        connection.close()  # and with it the lock


def migrate(config: Config) -> None:
    executor = MigrationExecutor(connection)
    refuse_newer_schema(executor)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if executor.loader.applied_migrations:
        back_up(config, before_migration=bool(missing))
    if missing:
        with step(f"database: {len(missing)} migrations"):
            call_command("migrate", interactive=False, verbosity=0)
    erasure.replay()  # what was erased after a backup stays so once that is put back
    if shut := second_factor.seal_anew():
        say(
            f"warning: {shut} second factors are sealed with another secret key; docs/operations.md"
        )


def refuse_newer_schema(executor: MigrationExecutor) -> None:
    """A migration that was applied and is not in this code was made by a later one."""
    loader = executor.loader
    unknown = sorted(
        f"{app}.{name}"
        for app, name in loader.applied_migrations
        if app in loader.migrated_apps
        and (app, name) not in loader.disk_migrations
        and (app, name) not in replaced(executor)
    )
    if unknown:
        raise StackError(
            f"the database is newer than this code (it has {', '.join(unknown)}): "
            "run the newer version, or put a copy from the backups folder in its place"
        )


def replaced(executor: MigrationExecutor) -> set[tuple[str, str]]:
    """Migrations that a squashed one stands for."""
    squashed = executor.loader.replacements.values()
    return {key for migration in squashed for key in migration.replaces}


def back_up(config: Config, *, before_migration: bool) -> None:
    """A consistent copy before every migration, and one a day. Five are kept."""
    source = Path(connection.settings_dict["NAME"])
    if connection.vendor != "sqlite":
        return
    folder = config.var / "backups"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copies = sorted(folder.glob("clawweb-*.sqlite3"))
    age = time.time() - copies[-1].stat().st_mtime if copies else DAY
    if not before_migration and age < DAY:
        return
    if disk.free_bytes() - source.stat().st_size < disk.reserve_bytes():
        refuse_without_copy(before_migration=before_migration)
        return
    target = folder / f"clawweb-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.sqlite3"
    partial = target.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    copy_sqlite(source, partial)
    partial.rename(target)
    for copy in [*copies, target][:-KEPT_BACKUPS]:
        copy.unlink()
    say(f"database: copied to {target}")


def refuse_without_copy(*, before_migration: bool) -> None:
    """A day's copy can wait. A migration without a way back cannot be undone."""
    words = f"no room for a copy of the database: {disk.free_bytes() // disk.MIB} MB are free"
    if before_migration:
        raise StackError(f"{words}, and a migration is not begun without one")
    say(f"warning: {words}")


def copy_sqlite(source: Path, target: Path) -> None:
    """A consistent copy, for our eyes only, of a database that may be in use."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
    target.chmod(0o600)


def collect_static() -> None:
    """Under hashed names, whatever the settings chose when no such names existed yet."""
    with step("static files"):
        staticfiles_storage._wrapped = HashedStorage()
        call_command("collectstatic", interactive=False, verbosity=0)
