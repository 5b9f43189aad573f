"""PostgreSQL and Redis from the system's packages, and tests that run on them.

    make test-services                        # all of them
    make test-services TESTS=tests/loop       # some

Each process of units and each real stack has databases of its own there.

Both servers live in a folder of their own and end with the tests.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redis import Redis, RedisError

from tests.prepare import install, missing
from tests.realstack import free_ports

START_SECONDS = 30


def postgres_folder() -> Path | None:
    """Where Debian puts the server's programs; the newest version's."""
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A new cluster's address. The server refuses to be root, so it runs as its own user there."""
    programs = postgres_folder()
    assert programs
    user = pwd.getpwnam("postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name)
    data, (port,), password = folder / "data", free_ports(1), secrets.token_hex(8)
    given = folder / "password"
    given.write_text(password)
    folder.chmod(0o700)
    for path in (folder, given):
        os.chown(path, user.pw_uid, user.pw_gid)
    as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": folder}
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "clawweb", "--pwfile", given, "-A", "scram-sha-256",
         "--no-sync", "-E", "UTF8", "--locale", "C.UTF-8"],
        check=True, stdout=subprocess.DEVNULL, **as_user,
    )  # fmt: skip
    options = ["-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-c", "fsync=off"]
    command = [programs / "postgres", "-D", data, *options]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stderr=log, **as_user)
    try:
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        wait_for(lambda: subprocess.run(ready, check=False).returncode == 0, folder / "log")
        yield f"postgres://clawweb:{password}@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(START_SECONDS)


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Its address without the number of a database: each who uses it takes one."""
    (port,), password, log = free_ports(1), secrets.token_hex(8), folder / "log"
    options = ["--port", str(port), "--bind", "127.0.0.1", "--requirepass", password, "--save", ""]
    options += ["--databases", "64"]
    with log.open("w") as output:
        server = subprocess.Popen(["redis-server", *options, "--dir", str(folder)], stdout=output)
    url = f"redis://:{password}@127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(url), log)
        yield url
    finally:
        server.terminate()
        server.wait(START_SECONDS)


def answers(url: str) -> bool:
    try:
        return bool(Redis.from_url(url).ping())
    except RedisError:
        return False


def wait_for(is_ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"not ready after {START_SECONDS} s\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def are_there() -> bool:
    """Both servers' programs, installed where that is ours to do."""

    def found() -> bool:
        return bool(postgres_folder() and shutil.which("redis-server"))

    if not found():
        install("postgresql", "redis-server")
    return found()


def main(arguments: Sequence[str]) -> int:
    if not are_there():
        return int(missing("POSTGRESQL OR REDIS", "THE TESTS ON THEM"))
    with ExitStack() as stack:
        folders = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"clawweb-{name}-")))
            for name in ("postgres", "redis")
        ]
        env = {
            **os.environ,
            "TESTS_DATABASE_URL": stack.enter_context(postgres(folders[0])),
            "TESTS_REDIS_URL": stack.enter_context(redis(folders[1])),
        }
        # The cluster ends with us. Threads that keep their connections would not let go of it.
        # One that a thread of a test's event loop had is found when that thread is long gone.
        quiet = ["-W", "ignore:<psycopg.Connection object:ResourceWarning"]
        command = [sys.executable, "-m", "pytest", "--reuse-db", *quiet, *arguments]
        return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
