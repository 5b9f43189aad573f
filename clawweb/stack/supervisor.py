"""supervisord: its configuration, its start in a session of its own, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xmlrpc.client
from http.client import HTTPException
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import SupervisorTransport

from clawweb.config import ROOT, Config
from clawweb.stack import guard
from clawweb.stack.parts import Part, log_folder, run_folder
from clawweb.stack.terminal import StackError

CONFIGURATION = """\
[supervisord]
nodaemon = true
silent = true
{user}
umask = 077
directory = {root}
logfile = {log}/supervisord.log
logfile_maxbytes = 10MB
logfile_backups = 5
pidfile = {run}/supervisord.pid
childlogdir = {log}

[unix_http_server]
file = {run}/up.sock
chmod = 0700

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""
PROGRAM = """
[program:{name}]
command = {python} -IS {guard} {spec}
autostart = false
autorestart = true
startsecs = 1
startretries = 1000000
stopsignal = TERM
stopasgroup = true
killasgroup = true
stopwaitsecs = {patience}
redirect_stderr = true
stdout_logfile = {log}/{name}.log
stdout_logfile_maxbytes = 10MB
stdout_logfile_backups = 5
"""
# supervisord ends group after group, the highest priority first, and the parts of one at once.
GROUP = """
[group:{name}]
programs = {programs}
priority = {priority}
"""
CONFIGURATION_FILE = "supervisord.conf"
RPC_ERRORS = (OSError, HTTPException, xmlrpc.client.Error)


def mark(config: Config, part: str = "") -> str:
    """What every process of this installation, or of one part of it, carries in its environment."""
    return f"{config.var.resolve()}:{part}"


class Supervisor:
    """The supervisord of one data folder."""

    def __init__(self, config: Config, parts: list[Part]) -> None:
        self.config = config
        self.parts = parts
        self.run = run_folder(config)
        self.log = log_folder(config)
        self.process: subprocess.Popen[bytes] | None = None

    def call(self, method: str, *arguments: Any) -> Any:
        """Of supervisor's XML-RPC; a connection each, for one that failed once stays broken."""
        transport = SupervisorTransport("", "", f"unix://{self.run / 'up.sock'}")
        try:
            proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
            return getattr(proxy.supervisor, method)(*arguments)
        finally:
            if transport.connection:
                transport.connection.close()

    def write(self) -> Path:
        """Specs hold secrets and any character: JSON files, not lines of an ini file."""
        specs = self.run / "parts"
        specs.mkdir(mode=0o700, exist_ok=True)
        text = CONFIGURATION.format(
            root=escaped(ROOT),
            run=escaped(self.run),
            log=escaped(self.log),
            user="user = root" if os.geteuid() == 0 else "",  # else it warns at each start
        )
        for part in self.parts:
            spec = specs / f"{part.name}.json"
            spec.write_text(json.dumps(self.spec(part), indent=2))
            spec.chmod(0o600)
            text += PROGRAM.format(
                name=part.name,
                python=quoted(sys.executable),
                guard=quoted(guard.__file__),
                spec=quoted(spec),
                log=escaped(self.log),
                patience=part.patience + 1,  # the guard is quicker, and thorough
            )
        names = [part.name for part in self.parts]
        for group, priority in (("queue", 1), ("parts", 2)):
            programs = [name for name in names if group_of(name) == group]
            if programs:
                text += GROUP.format(name=group, programs=",".join(programs), priority=priority)
        path = self.run / CONFIGURATION_FILE
        path.write_text(text)
        path.chmod(0o600)
        return path

    def spec(self, part: Part) -> dict[str, Any]:
        return {
            "command": part.command,
            "environment": {
                **paths(self.config),
                "PYTHONUNBUFFERED": "1",
                # Without bytecode each of vLLM's three processes compiles for 16 s at each start.
                "PYTHONDONTWRITEBYTECODE": "",
                **part.environment,
            },
            "folder": str(ROOT),
            "cores": part.cores,
            "nice": part.nice,
            "patience": part.patience,
            "mark": mark(self.config, part.name),
            "pid_file": str(self.run / f"{part.name}.pid"),
        }

    def launch(self) -> None:
        """In a session of its own: Ctrl-C in the terminal must reach us alone, who end it in order.
        Should we be killed, the kernel tells it to stop."""
        (self.run / "up.sock").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.write())],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.log / "supervisord.err").open("w"),
            preexec_fn=lambda: guard.prctl(guard.PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(*RPC_ERRORS):
                self.call("getState")
                return
            time.sleep(0.05)
        raise StackError(f"supervisord did not start: {(self.log / 'supervisord.err').read_text()}")

    def start(self, name: str) -> None:
        self.call("startProcess", full_name(name), False)

    def info(self, name: str) -> dict[str, Any]:
        """supervisor's own record: statename, start, spawnerr, …"""
        return dict(self.call("getProcessInfo", full_name(name)))

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, patience: float = 13.0) -> None:
        """All but the queue's server at once, then that; what is left then is killed."""
        deadline = time.monotonic() + patience
        if self.is_alive:
            with contextlib.suppress(*RPC_ERRORS):
                self.stop_parts(deadline - 3)
            self.terminate(deadline)
        guard.kill_marked(mark(self.config), exact=False)
        self.tidy()

    def stop_parts(self, deadline: float) -> None:
        names = [part.name for part in self.parts if group_of(part.name) == "parts"]
        for name in names:
            with contextlib.suppress(xmlrpc.client.Fault):  # not running
                self.call("stopProcess", full_name(name), False)
        while time.monotonic() < deadline:
            states = [self.info(name)["statename"] for name in names]
            if not {"STOPPING", "RUNNING", "STARTING"} & set(states):
                return
            time.sleep(0.05)

    def terminate(self, deadline: float) -> None:
        assert self.process
        self.process.terminate()
        try:
            self.process.wait(max(deadline - time.monotonic(), 1.0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def note_shared_memory(self) -> None:
        """So that tidy() finds it should its owners be killed at once; nothing else names them."""
        files = guard.shared_memory(guard.marked(mark(self.config), exact=False))
        (self.run / "shared-memory").write_text("\n".join(sorted(map(str, files))))

    def tidy(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            noted = (self.run / "shared-memory").read_text().split("\n")
            files = {Path(line) for line in noted if line}
            guard.remove_unmapped({path for path in files if path.parent == guard.SHARED_MEMORY})
            (self.run / "shared-memory").unlink()
        for pattern in ("*.sock", "*.sock.*", "*.pid", "*.pid.*"):
            for path in self.run.glob(pattern):
                path.unlink(missing_ok=True)
        shutil.rmtree(self.run / "ipc", ignore_errors=True)


def paths(config: Config) -> dict[str, str]:
    """What settings name from where `up` was called. Parts run in the checkout."""
    found = {"CLAWWEB_VAR": str(config.var.resolve())}
    if config.base_model and Path(config.base_model).is_dir():
        found["CLAWWEB_BASE_MODEL"] = str(config.model_folder)
    if config.template_file:
        found["CLAWWEB_CHAT_TEMPLATE"] = str(config.template_file)
    return found


def end_orphans(config: Config) -> bool:
    """What an `up` that was killed has left. True if there was anything."""
    run = run_folder(config)
    pid = pid_in(run / "supervisord.pid")
    found = pid is not None and is_supervisord(pid, run)
    if pid is not None and found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 14
        while time.monotonic() < deadline and is_supervisord(pid, run):
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            if is_supervisord(pid, run):
                os.kill(pid, signal.SIGKILL)
    killed = guard.kill_marked(mark(config), exact=False)
    Supervisor(config, []).tidy()
    return found or killed > 0


def pid_in(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def is_supervisord(pid: int, run: Path) -> bool:
    """Whether it is that of this data folder: since it was noted, the number may have been given to
    any process, and after a reboot easily to another installation's."""
    own = str(run / CONFIGURATION_FILE).encode()
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"supervisor.supervisord" in words and own in words


def group_of(name: str) -> str:
    """The queue's server outlives the rest: they use it while they stop."""
    return "queue" if name == "valkey" else "parts"


def full_name(name: str) -> str:
    return f"{group_of(name)}:{name}"


def escaped(text: Path | str) -> str:
    """For a value of supervisor's ini file."""
    return str(text).replace("%", "%%")


def quoted(text: Path | str) -> str:
    """For a word of a command in it."""
    return '"' + escaped(text).replace('"', r"\"") + '"'
