"""The guard: what it starts ends with it, whatever ends first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clawweb.config import ROOT
from clawweb.stack import guard

# A part with a child of its own that outlives it and holds shared memory, as vLLM's engine does.
FAMILY = """
import multiprocessing.shared_memory as shm, os, signal, sys, time
block = shm.SharedMemory(create=True, size=4096)
open(sys.argv[1], "w").write(block.name)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
time.sleep(600)
"""


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    mark = f"{tmp_path}:part"
    yield mark
    guard.kill_marked(mark)


@pytest.fixture
def start(tmp_path: Path, mark: str) -> Callable[..., subprocess.Popen[bytes]]:
    def start(code: str, patience: int = 30) -> subprocess.Popen[bytes]:
        spec = {
            "command": [sys.executable, "-c", code, str(tmp_path / "note")],
            "environment": {},
            "folder": str(tmp_path),
            "cores": [],
            "nice": 0,
            "patience": patience,
            "mark": mark,
            "pid_file": str(tmp_path / "part.pid"),
        }
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        return subprocess.Popen([sys.executable, guard.__file__, str(tmp_path / "spec.json")])

    return start


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_text(path: Path) -> bool:
    return path.exists() and bool(path.read_text())


def test_its_exit_code_is_the_parts(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    assert start("raise SystemExit(7)").wait(60) == 7


def test_a_killed_part_leaves_no_child_and_no_shared_memory(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, mark: str
) -> None:
    process = start(FAMILY)
    wait_for(lambda: has_text(tmp_path / "note") and len(guard.marked(mark)) >= 3)
    block = guard.SHARED_MEMORY / (tmp_path / "note").read_text()
    assert block.exists()
    os.kill(int((tmp_path / "part.pid").read_text()), signal.SIGKILL)
    assert process.wait(60) == 128 + signal.SIGKILL
    assert guard.marked(mark) == []
    assert not block.exists()
    assert not (tmp_path / "part.pid").exists()


def test_sigterm_is_passed_on_once_and_ends_the_part(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, mark: str
) -> None:
    code = """
import signal, sys, time
def end(*_):
    open(sys.argv[1], "a").write("TERM ")
    time.sleep(0.3)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1], "a").write("up ")
time.sleep(600)
"""
    process = start(code)
    wait_for(lambda: has_text(tmp_path / "note"))
    process.terminate()
    process.terminate()
    assert process.wait(60) == 0
    assert (tmp_path / "note").read_text() == "up TERM "
    assert guard.marked(mark) == []


def test_a_part_that_ignores_sigterm_is_killed_when_patience_ends(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, mark: str
) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write("up")
time.sleep(600)
"""
    process = start(code, patience=1)
    wait_for(lambda: has_text(tmp_path / "note"))
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGKILL
    assert guard.marked(mark) == []


def test_what_a_killed_guard_left_is_ended_by_the_next(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, mark: str
) -> None:
    first = start(FAMILY)
    wait_for(lambda: has_text(tmp_path / "note") and len(guard.marked(mark)) >= 3)
    first.kill()
    first.wait()
    old = set(guard.marked(mark))
    assert old  # the part itself dies with its guard, its child does not
    (tmp_path / "note").unlink()
    second = start(FAMILY)
    wait_for(lambda: has_text(tmp_path / "note"))
    assert not old & set(guard.marked(mark))
    second.terminate()
    second.wait(60)
    assert guard.marked(mark) == []


def test_a_mark_is_matched_whole_or_by_its_beginning(tmp_path: Path) -> None:
    env = {**os.environ, guard.MARK: f"{tmp_path}:web2"}
    process = subprocess.Popen(["sleep", "60"], env=env)
    try:
        wait_for(lambda: guard.marked(f"{tmp_path}:", exact=False) == [process.pid])
        assert guard.marked(f"{tmp_path}:web") == []
        assert guard.marked(f"{tmp_path}:web2") == [process.pid]
    finally:
        process.kill()
        process.wait()


def test_a_nice_part_gives_way_to_other_sessions_too() -> None:
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel does not group sessions")
    code = "from clawweb.stack.guard import place; place([], 7); import os; print(os.nice(0))"
    code += "; print(open('/proc/self/autogroup').read())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, start_new_session=True, cwd=ROOT
    )
    own, session = done.stdout.splitlines()[:2]
    assert int(own) == os.nice(0) + 7
    assert session.endswith(" nice 7")
