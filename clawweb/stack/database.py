"""The database and the static files before anything serves: copy, check, migrate, collect."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import DatabaseError, OperationalError

from clawweb import copies
from clawweb.config import Config
from clawweb.services import erasure, outage, second_factor
from clawweb.stack.terminal import StackError, say, step
from clawweb.static_files import HashedStorage

START_LOCK = 0x636C6177  # of PostgreSQL's advisory locks


def prepare_database(config: Config) -> None:
    """Refuses a newer schema before it writes anything."""
    try:
        _connect()
        with one_at_a_time():
            migrate(config)
    except DatabaseError as error:
        if not outage.is_damaged(error):
            raise
        raise StackError(
            f"the database in {config.var} cannot be read: {error}. Go back to a copy, or to a "
            "backup: docs/operations.md, Backups"
        ) from error


def _connect() -> None:
    try:
        connection.ensure_connection()
    except OperationalError as error:
        raise StackError(f"the database does not answer: {error} (CLAWWEB_DATABASE_URL)") from error


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
    """The day's copy can wait for room. A migration without a way back cannot be undone."""
    try:
        made = copies.copy(config.var) if before_migration else copies.daily(config.var)
    except copies.NoCopy as error:
        if before_migration:
            raise StackError(f"{error}, and a migration is not begun without one") from error
        say(f"warning: {error}")
    else:
        if made:
            say(f"database: copied to {made}")


def collect_static() -> None:
    """Under hashed names, whatever the settings chose when no such names existed yet."""
    with step("static files"):
        staticfiles_storage._wrapped = HashedStorage()
        call_command("collectstatic", interactive=False, verbosity=0)
