"""The whole real system for tests: one start per session, through the code that users start it by.

Its data folder and its ports are its own, so it runs beside a `make run`; the converted model is
shared with it. On PostgreSQL and Redis where `tests/services.py` runs them, else on SQLite and the
embedded Valkey. `tests/conftest.py` imports the fixture.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg
import psycopg.sql
import pytest

from clawweb.config import ROOT, Config
from clawweb.stack import guard
from clawweb.stack.model import prepare_model
from clawweb.stack.parts import all_parts, log_folder, run_folder
from clawweb.stack.readiness import probe, tail, web_url
from clawweb.stack.supervisor import Supervisor, full_name
from tests.judge_server import JudgeServer, judge_server, saying

START_SECONDS = 660
PORTS = (20_000, 32_000)  # below those of outgoing connections
STOP_SECONDS = 40  # the system takes 15 at most; a machine that does other things adds to it
# The model's own template knows no tools; this one renders all else as that one does.
TEMPLATE = ROOT / "tests" / "tools.jinja"
# A lost worker is noticed sooner, and a job makes fewer steps, than users would want.
QUICK = {
    "lease_seconds": "12",
    "sweep_seconds": "3",
    "train_seconds": "30",
    "judge_seconds": "10",
}

_numbers = count(16)  # of Redis' databases; the units have the first


class Stack:
    """A running system, seen from outside."""

    def __init__(self, config: Config, env: dict[str, str]) -> None:
        self.config = config
        self.env = env
        self.url = web_url(config)
        self.var = config.var
        self.output = config.var / "up.out"
        self.supervisor = Supervisor(config, all_parts(config))
        self.process: subprocess.Popen[bytes] | None = None
        self.judge: JudgeServer | None = None

    def start(self, *options: str) -> None:
        """Returns once everything is ready; else fails the test and shows the logs."""
        process = self.launch(*options)
        deadline = time.monotonic() + START_SECONDS
        while "Ctrl-C stops it" not in self.output.read_text():  # its last word
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the stack did not start\n{self.all_logs()}", pytrace=False)
            time.sleep(0.2)

    def launch(self, *options: str) -> subprocess.Popen[bytes]:
        """`manage.py up`, not waited for."""
        if self.config.redis_url:
            options = tuple(",".join(set(words.split(",")) - {"valkey"}) for words in options)
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", *options],
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Should pytest be killed, this must not stay.
                preexec_fn=lambda: guard.prctl(guard.PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        return self.process

    def stop(self) -> None:
        """Fails the test when it does not end in time or leaves a process behind."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            guard.kill_marked(f"{self.var}:", exact=False)
            pytest.fail(f"the stack did not stop in {STOP_SECONDS} s\n{self.all_logs()}")
        left = guard.marked(f"{self.var}:", exact=False)
        assert not left, f"processes left behind: {left}"

    def manage(self, *args: str, timeout: float = 180) -> str:
        """What `manage.py ARGS` prints, in the settings of this stack."""
        done = subprocess.run(
            [sys.executable, "manage.py", *args],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"manage.py {' '.join(args)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def key(self, username: str) -> str:
        """An API key of this user, who is made if need be."""
        return self.manage("createkey", username, "--create").strip().splitlines()[-1]

    def pid(self, part: str) -> int:
        """Of the part's own first process, not of its guard."""
        return int((run_folder(self.config) / f"{part}.pid").read_text())

    def kill(self, part: str, sig: int = signal.SIGKILL) -> None:
        os.kill(self.pid(part), sig)

    def restart(self, part: str) -> None:
        """Stop it in good order, start it, wait until it is ready."""
        self.supervisor.call("stopProcess", full_name(part))
        self.supervisor.start(part)
        self.wait_until_ready(part)

    def wait_until_ready(self, part: str, timeout: float = 180, *, not_pid: int = 0) -> float:
        """Seconds until it answers (and is no longer the process `not_pid`)."""
        started = time.monotonic()
        ask = probe(self.config, part)
        while time.monotonic() - started < timeout:
            info = self.supervisor.info(part)
            steady = info["statename"] == "RUNNING" and info["now"] - info["start"] >= 2
            if self.has_other_pid(part, not_pid) and (ask() if ask else steady):
                return time.monotonic() - started
            time.sleep(0.1)
        pytest.fail(f"{part} is not ready after {timeout} s\n{self.logs(part)}")

    def has_other_pid(self, part: str, pid: int) -> bool:
        try:
            return self.pid(part) != pid
        except (OSError, ValueError):  # between two lives
            return False

    def kill_and_wait(self, part: str, sig: int = signal.SIGKILL, timeout: float = 180) -> float:
        """Seconds from the kill until its successor answers."""
        old = self.pid(part)
        self.kill(part, sig)
        return self.wait_until_ready(part, timeout, not_pid=old)

    def logs(self, part: str, lines: int = 60) -> str:
        return f"--- {part}\n{tail(log_folder(self.config) / f'{part}.log', lines)}"

    def all_logs(self) -> str:
        logs = [self.logs(part.name, 25) for part in self.supervisor.parts]
        return "\n".join([f"--- manage.py up\n{self.output.read_text()}", *logs])


def free_ports(count: int) -> list[int]:
    """Nobody has them now; held together, so that they differ. None of those that the kernel gives
    to outgoing connections: one could take a port while its server starts, or starts again."""
    with ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            one = held.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", random.randrange(*PORTS)))
                found.append(one.getsockname()[1])
        return found


def shared_model() -> Path:
    """The default model in the checkout's own data folder, converted once for all runs."""
    return prepare_model(Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_"))


def new_stack(**settings: str) -> Stack:
    """Not started. `settings` are CLAWWEB_* without the prefix, in lower case."""
    var = Path(tempfile.mkdtemp(prefix="clawweb-test-")).resolve()
    port, vllm_port = free_ports(2)
    model = shared_model()
    chosen = {
        "var": str(var),
        "port": str(port),
        "vllm_port": str(vllm_port),
        "base_model": str(model),
        **services(var.name),
        **settings,
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLAWWEB_")}
    env |= {f"CLAWWEB_{name.upper()}": value for name, value in chosen.items()}
    read = model.parent / "small-talk"  # once for all tests: it takes two minutes
    read.mkdir(exist_ok=True)
    (var / "small-talk").symlink_to(read)
    config = Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", **chosen)  # type: ignore[arg-type]
    return Stack(config, env)


def running(*arguments: str, **settings: str) -> AbstractContextManager[Stack]:
    """A system of one's own, started with these arguments; gone with its data afterwards."""
    return started(new_stack(**settings), *arguments)


@contextmanager
def started(own: Stack, *arguments: str) -> Iterator[Stack]:
    """The same with one that is there already."""
    try:
        own.start(*arguments)
        yield own
    finally:
        own.stop()
        shutil.rmtree(own.var, ignore_errors=True)


def services(name: str) -> dict[str, str]:
    """A database and a Redis of this stack's own, where tests/services.py runs the servers."""
    server = os.environ.get("TESTS_DATABASE_URL")
    if not server:
        return {}
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name))
        )
    number = next(_numbers)
    return {
        "database_url": f"{server.rpartition('/')[0]}/{name}",
        "redis_url": f"{os.environ['TESTS_REDIS_URL']}/{number}",
    }


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The real system, started once for the session; its judge has nothing to say unless told."""
    with judge_server(saying("HINT: none\nVERDICT: 0")) as judge:
        running = new_stack(
            **QUICK, chat_template=str(TEMPLATE), judge_url=judge.url, judge_model="test"
        )
        running.judge = judge
        try:
            running.start()
            yield running
        finally:
            running.stop()
            shutil.rmtree(running.var, ignore_errors=True)
