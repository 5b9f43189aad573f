"""Up, and down again: the order in which everything starts, and the one way in which it ends."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import socket
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import redis

from clawweb.config import Config, listed, strangers
from clawweb.engine import base_hash
from clawweb.stack.database import collect_static, prepare_database
from clawweb.stack.model import prepare_model
from clawweb.stack.parts import Part, all_parts, log_folder, run_folder
from clawweb.stack.readiness import answers, wait_until_ready, web_url
from clawweb.stack.supervisor import RPC_ERRORS, Supervisor, end_orphans
from clawweb.stack.terminal import (
    StackError,
    Stopped,
    clear_pending,
    end_if_asked,
    files_named,
    ignore_signals,
    say,
    stop_on_signals,
)
from rollouts.judge import find_judge
from rollouts.judge_model import ModelJudge
from training.config import VLLM_RANKS

LONGEST_SOCKET_PATH = 100  # of 107 characters; supervisord appends its pid while it makes one


NUMA, HEADER = "libnuma.so.1", Path(sysconfig.get_path("include")) / "Python.h"


def up(config: Config, names: list[str]) -> int:
    """Start the parts (all, or those named), stay until told to stop. The exit code."""
    stop_on_signals()
    started, came_to = time.monotonic(), "did not start"
    try:
        with only_one(config):
            parts = chosen(config, names)
            check_judge(config)
            check_settings(config)
            check_needs(config, [part.name for part in parts])
            if end_orphans(config):
                say("ended what an earlier start had left behind")
            prepare_folders(config)
            check_ports(config, parts)
            supervisor = Supervisor(config, parts)
            try:
                start(config, supervisor, parts)
                announce(config, parts, time.monotonic() - started)
                came_to = "stopped"
                watch(supervisor)
            finally:
                finish(supervisor)
    except Stopped as signal_name:
        clear_pending()
        say(f"stopped by {signal_name}")
        return 0
    except StackError as error:
        clear_pending()
        say(f"clawweb {came_to}: {error}")
        return 1


def chosen(config: Config, names: list[str]) -> list[Part]:
    parts = all_parts(config)
    known = {part.name for part in parts}
    if unknown := set(names) - known:
        raise StackError(f"no part {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [part for part in parts if not names or part.name in names]


def check_judge(config: Config) -> None:
    """Settings that could never judge anything. A judge of one's own is not loaded here."""
    try:
        if config.judge:
            find_judge(config.judge)
        elif config.judge_url:
            ModelJudge(url=config.judge_url, model=config.judge_model)
    except ValueError as error:
        setting = "CLAWWEB_JUDGE" if config.judge else "CLAWWEB_JUDGE_URL, CLAWWEB_JUDGE_MODEL"
        raise StackError(f"{error} ({setting})") from error


def check_settings(config: Config) -> None:
    """Values that no part could use: they would all start, and fail again and again, each deep in
    its log, or act as if nothing were set. No value is shown that may hold a password."""
    if unknown := strangers():
        say(f"warning: no setting is called {', '.join(unknown)}; docs/operations.md has them")
    for url in config.vllms:
        if not is_web_address(url):
            raise StackError(
                f"an address starts with http:// or https://, not {url!r} (CLAWWEB_VLLM_URL)"
            )
    for name in listed(config.allowed_hosts):
        if "/" in name or " " in name or (":" in name and not name.startswith("[")):
            raise StackError(
                f"a host's name has no https://, no port and no space, as {name!r} has "
                "(CLAWWEB_ALLOWED_HOSTS; names have commas between them)"
            )
    for origin in listed(config.cors_origins):
        scheme, host, *more = urlsplit(origin.rstrip("/"))
        if scheme not in ("http", "https") or not host or any(more):
            raise StackError(
                f"an origin is http:// or https:// and a host, not {origin!r} "
                "(CLAWWEB_CORS_ORIGINS)"
            )
    if config.oidc_issuer and not is_web_address(config.oidc_issuer):
        raise StackError(
            f"an address starts with http:// or https://, not {config.oidc_issuer!r} "
            "(CLAWWEB_OIDC_ISSUER)"
        )
    try:
        redis.ConnectionPool.from_url(config.redis)
    except ValueError:
        raise StackError(
            "the queue's address is no redis://, rediss:// or unix:// that can be read; what is "
            "not a letter or digit in a password stands as %XX (CLAWWEB_REDIS_URL)"
        ) from None
    if config.lora_rank not in VLLM_RANKS:
        known = ", ".join(map(str, VLLM_RANKS))
        raise StackError(f"a rank is one of {known}, not {config.lora_rank} (CLAWWEB_LORA_RANK)")
    if config.template_file and not config.template_file.is_file():
        raise StackError(f"there is no file {config.template_file} (CLAWWEB_CHAT_TEMPLATE)")


def is_web_address(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)


def check_needs(config: Config, names: Sequence[str]) -> None:
    """What vLLM wants of the system and no wheel brings: it compiles for this machine. It would
    start all the same, and its first reply would end it, for a reason deep in its log."""
    if "vllm" not in names:
        return
    compilers = ("gcc", "clang") if config.has_gpu else ("g++",)
    own = os.environ.get("CC" if config.has_gpu else "CXX")
    needs = {
        f"{compilers[0]} (Debian, Ubuntu: g++; Fedora: gcc-c++)": any(
            shutil.which(name) for name in ([own] if own else compilers)
        ),
        "Python.h (Debian, Ubuntu: python3.11-dev; Fedora: python3.11-devel)": HEADER.exists(),
    }
    if not config.has_gpu:
        needs[f"{NUMA} (Debian, Ubuntu: libnuma1; Fedora: numactl-libs)"] = can_load(NUMA)
    if lacking := [words for words, is_there in needs.items() if not is_there]:
        raise StackError(f"the model server needs of the system: {', '.join(lacking)}")


def can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@files_named()
def prepare_folders(config: Config) -> None:
    config.var.mkdir(mode=0o700, parents=True, exist_ok=True)
    config.var.chmod(0o700)
    for folder in (run_folder(config), log_folder(config), run_folder(config) / "ipc"):
        folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def only_one(config: Config) -> Iterator[None]:
    """Two on one data folder would end each other's servers."""
    prepare_folders(config)
    longest = len(str(run_folder(config) / "valkey.sock"))
    if longest > LONGEST_SOCKET_PATH:
        over = longest - LONGEST_SOCKET_PATH
        raise StackError(
            f"the data folder's path is {over} characters too long for sockets: "
            "set CLAWWEB_VAR to a shorter one"
        )
    with (run_folder(config) / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"it runs already on {config.var} ({web_url(config)}); for a second one beside it "
                "set CLAWWEB_VAR, CLAWWEB_PORT and CLAWWEB_VLLM_PORT"
            ) from None
        yield


def check_ports(config: Config, parts: list[Part]) -> None:
    wanted = {
        "web": ("CLAWWEB_", config.host, config.port),
        "vllm": ("CLAWWEB_VLLM_", config.vllm_host, config.vllm_port),
    }
    here = [wanted[part.name] for part in parts if part.name in wanted]
    if len({port for *_, port in here}) < len(here):
        raise StackError(
            f"CLAWWEB_PORT and CLAWWEB_VLLM_PORT are both {config.port}: set one of them to another"
        )
    for each in here:
        check_port(*each)


def check_port(setting: str, host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                text = f"port {port} on {host} cannot be had ({error.strerror}): set {setting}PORT"
                raise StackError(f"{text} to another") from error
            raise StackError(
                f"{host} is no address of this machine ({error.strerror}): set {setting}HOST "
                "to one, such as 127.0.0.1, or 0.0.0.0 for all"
            ) from error


def start(config: Config, supervisor: Supervisor, parts: list[Part]) -> None:
    """The model server takes longest; it loads while the database and the files are prepared."""
    if any(part.name in ("vllm", "worker-gpu") for part in parts):
        prepare_model(config)
    early = [part for part in parts if part.name in ("valkey", "vllm")]
    late = [part for part in parts if part not in early]
    supervisor.launch()
    for part in early:
        supervisor.start(part.name)
    prepare_database(config)
    collect_static()
    base_hash()  # all read it; nobody's page should wait for it
    say(f"starting {', '.join(part.name for part in parts)} (logs: {log_folder(config)})")
    wait_until_ready(supervisor, [part for part in early if part.name == "valkey"])
    for part in late:
        supervisor.start(part.name)
    wait_until_ready(supervisor, [part for part in parts if part.name != "valkey"])


def announce(config: Config, parts: list[Part], seconds: float) -> None:
    for url in config.vllms if config.vllm_url else ():
        if not answers(f"{url}/health"):
            say(f"warning: no vLLM answers at {url} (CLAWWEB_VLLM_URL); replies may fail")
    if not any(part.name == "web" for part in parts):
        say(f"{', '.join(part.name for part in parts)}: ready after {seconds:.0f} s")
    else:
        say(f"clawweb is ready at {web_url(config)} after {seconds:.0f} s")
        from clawweb.services.accounts import first_admin_link

        if path := first_admin_link():
            say(f"sign in as admin, once, within 15 minutes: {web_url(config)}{path}")
        else:
            say("a link to sign in by: .venv/bin/python manage.py signinlink USER")
    say("Ctrl-C stops it")


def watch(supervisor: Supervisor) -> NoReturn:
    """Says which part was restarted, and ends with supervisord should that end."""
    starts = {part.name: supervisor.info(part.name)["start"] for part in supervisor.parts}
    noted = 0.0
    while True:
        if time.monotonic() - noted > 30:
            supervisor.note_shared_memory()
            noted = time.monotonic()
        time.sleep(3.0)
        end_if_asked()
        if not supervisor.is_alive:
            raise StackError("supervisord ended by itself; see log/supervisord.log")
        for name, known in starts.items():
            with suppress(*RPC_ERRORS):
                now = supervisor.info(name)["start"]
                if now != known:
                    starts[name] = now
                    say(f"{name} ended and was started again; see its log")


def finish(supervisor: Supervisor) -> None:
    """Also when a signal has cut the start short. Signals that come now change nothing."""
    ignore_signals()
    clear_pending()
    say("stopping …")
    started = time.monotonic()
    supervisor.stop()
    say(f"everything has stopped, {time.monotonic() - started:.1f} s")
