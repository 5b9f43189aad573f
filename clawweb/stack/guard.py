"""Runs one part and leaves nothing of it behind: `python guard.py SPEC.json`.

A process manager sees one process; vLLM is three. If its first dies, the others keep the memory
and the GPU, and the restarted server finds neither. So each part runs under this small parent,
which adopts every orphan below it (Linux), passes SIGTERM on to the part alone, kills what has not
gone in time, and on start kills what a killed guard has left. Standard library only, nothing of
ours: it must start at once and stay small.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

MARK = "CLAWWEB_PART"  # in the environment of every process of a part: "<data folder>:<part>"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SHARED_MEMORY = Path("/dev/shm")


def prctl(option: int, value: int) -> None:
    """Linux only; elsewhere a killed parent is noticed by the next start."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def marked(mark: str, *, exact: bool = True) -> list[int]:
    """Living processes whose environment carries this mark, or one that begins so."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (folder / "environ").read_bytes().split(b"\0"):
                name, _, value = line.partition(b"=")
                if name == MARK.encode() and (
                    value == mark.encode() if exact else value.startswith(mark.encode())
                ):
                    found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def shared_memory(pids: list[int]) -> set[Path]:
    """Files under /dev/shm that these processes map; a killed process does not remove its own."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                path = Path(line.split(maxsplit=5)[-1])
                if path.parent == SHARED_MEMORY:
                    found.add(path)
    return found


def kill_marked(mark: str, *, exact: bool = True, grace: float = 0.0, patience: float = 5.0) -> int:
    """End these processes, by themselves within `grace`, else by SIGKILL. How many were killed.

    The shared memory of killed ones is removed unless a living process maps it.
    """
    killed: set[int] = set()
    files: set[Path] = set()
    started = time.monotonic()
    while pids := marked(mark, exact=exact):
        files |= shared_memory(pids)
        waited = time.monotonic() - started
        if waited > grace + patience:
            break
        for pid in pids if waited >= grace else []:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.05)
    remove_unmapped(files)
    return len(killed)


def remove_unmapped(files: set[Path]) -> None:
    """Of these files of shared memory, those that no living process maps."""
    if files:
        living = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
        for path in files - shared_memory(living):
            path.unlink(missing_ok=True)


def place(cores: list[int], nice: int) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        if cores:
            os.sched_setaffinity(0, cores)
    if nice:
        os.nice(nice)
        # Where the kernel shares a core between sessions first (autogroup), a process's own nice
        # value counts inside its session alone, and each part is one: the session gets it, too.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


class Guard:
    """One run of one part."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.mark: str = spec["mark"]
        self.pid_file = Path(spec["pid_file"])
        self.child = 0
        self.stopping = False

    def run(self) -> int:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.stop)
        signal.signal(signal.SIGALRM, self.lose_patience)
        kill_marked(self.mark)
        if self.stopping:
            return 0
        self.start()
        code = self.wait()
        signal.alarm(0)
        kill_marked(self.mark, grace=1.0)
        self.pid_file.unlink(missing_ok=True)
        return code

    def start(self) -> None:
        # SPT_NOENV: setproctitle would write its title over the environment in /proc, and the mark.
        own = {MARK: self.mark, "SPT_NOENV": "1"}
        process = subprocess.Popen(
            self.spec["command"],
            env={**os.environ, **self.spec["environment"], **own},
            cwd=self.spec["folder"],
            start_new_session=True,  # a signal to our group is ours to pass on, once
            preexec_fn=self.prepare_child,
        )
        process.returncode = 0  # os.wait below takes its end, not Popen
        self.child = process.pid
        self.pid_file.write_text(str(self.child))
        if self.stopping:  # the signal came before there was anyone to pass it to
            self.pass_on()

    def prepare_child(self) -> None:
        place(self.spec["cores"], self.spec["nice"])
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait(self) -> int:
        """The child's exit code. Adopted orphans end here too."""
        while True:
            pid, status = os.wait()
            if pid == self.child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code

    def stop(self, number: int, frame: FrameType | None) -> None:
        if not self.stopping:
            self.stopping = True
            self.pass_on()

    def pass_on(self) -> None:
        if self.child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGTERM)
            signal.alarm(self.spec["patience"])

    def lose_patience(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)


def main() -> NoReturn:
    spec = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(Guard(spec).run())


if __name__ == "__main__":
    main()
