"""What is refused before anything starts, and a signal that none may lose."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command

from clawweb.config import ROOT, Config
from clawweb.management.commands import prepare
from clawweb.stack import lifecycle, readiness, supervisor, terminal
from clawweb.stack.terminal import StackError, Stopped


def settings(var: Path, **chosen: object) -> Config:
    return Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", var=var, **chosen)


def test_a_port_in_use_names_the_setting_to_change(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = settings(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(StackError, match="CLAWWEB_PORT"):
            lifecycle.check_ports(config, lifecycle.chosen(config, ["web"]))


def test_one_port_for_two_parts_is_refused(tmp_path: Path) -> None:
    """Each could be had; the one that came second ended with "address already in use"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = settings(tmp_path, port=port, vllm_port=port)
    with pytest.raises(StackError, match="CLAWWEB_PORT and CLAWWEB_VLLM_PORT"):
        lifecycle.check_ports(config, lifecycle.chosen(config, ["web", "vllm"]))
    lifecycle.check_ports(config, lifecycle.chosen(config, ["web"]))


@pytest.mark.parametrize("host", ["http://127.0.0.1", "192.0.2.1", "[::1]"])
def test_an_address_that_is_none_of_this_machine_names_its_setting(
    tmp_path: Path, host: str
) -> None:
    """Another port would not help."""
    config = settings(tmp_path, host=host, vllm_host=host)
    for part, setting in (("web", "CLAWWEB_HOST"), ("vllm", "CLAWWEB_VLLM_HOST")):
        with pytest.raises(StackError, match=setting):
            lifecycle.check_ports(config, lifecycle.chosen(config, [part]))


def test_a_second_start_on_the_same_data_says_what_to_set(tmp_path: Path) -> None:
    config = settings(tmp_path)
    lifecycle.prepare_folders(config)
    with (tmp_path / "run" / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StackError, match="CLAWWEB_VAR"), lifecycle.only_one(config):
            pass


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path / ("x" * 90))
    with pytest.raises(StackError, match="CLAWWEB_VAR"), lifecycle.only_one(config):
        pass


def test_an_unknown_part_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"no part wbe.*worker-gpu"):
        lifecycle.chosen(settings(tmp_path), ["wbe"])


def test_the_data_folder_is_private(tmp_path: Path) -> None:
    config = settings(tmp_path / "var")
    lifecycle.prepare_folders(config)
    assert config.var.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("what", "of", "package"),
    [
        ("NUMA", "libthere-is-none.so.1", "libnuma1"),
        ("HEADER", Path("/there/is/no/Python.h"), "python3.11-dev"),
    ],
)
def test_what_the_system_lacks_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, of: object, package: str
) -> None:
    """Else the model server ends again and again, and why stands deep in its log."""
    monkeypatch.setattr(Config, "has_gpu", False)
    monkeypatch.setattr(lifecycle, what, of)
    with pytest.raises(StackError, match=rf"the system: .*{package}"):
        lifecycle.check_needs(settings(tmp_path), ["web", "vllm"])
    lifecycle.check_needs(settings(tmp_path), ["web"])


@pytest.mark.parametrize(("has_gpu", "variable"), [(False, "CXX"), (True, "CC")])
def test_a_compiler_that_is_not_there_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_gpu: bool, variable: str
) -> None:
    monkeypatch.setattr(Config, "has_gpu", has_gpu)
    monkeypatch.setattr(lifecycle, "NUMA", "libthere-is-none.so.1" if has_gpu else lifecycle.NUMA)
    lifecycle.check_needs(settings(tmp_path), ["vllm"])
    monkeypatch.setenv(variable, "there-is-no-such-compiler")
    with pytest.raises(StackError, match=r"g\+\+|gcc"):
        lifecycle.check_needs(settings(tmp_path), ["vllm"])


class Finalized:
    """A signal comes in the moment in which it goes."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in terminal.SIGNALS}
    yield
    terminal._asked.clear()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_drops_ends_the_start_all_the_same() -> None:
    terminal.stop_on_signals()
    terminal.end_if_asked()
    gone = Finalized()
    del gone  # what the signal raises is lost here
    with pytest.raises(Stopped, match="SIGTERM"):
        terminal.end_if_asked()
    with pytest.raises(Stopped, match="SIGTERM"):
        readiness.wait_until_ready(NotReady(), [])  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a second Ctrl-C changes nothing


class NotReady:
    """A supervisor of which nothing is asked any more."""


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("vllm_url", "gpu:8100"),
        ("vllm_url", "http://gpu:8100,http:/gpu2:8100"),
        ("redis_url", "queue:6379"),
        ("redis_url", "redis://:secret#word@queue/0"),
        ("allowed_hosts", "https://chat.example"),
        ("allowed_hosts", "chat.example:8000"),
        ("allowed_hosts", "chat.example www.chat.example"),
        ("oidc_issuer", "id.example/realms/acme"),
        ("cors_origins", "https://chat.example,chat.example"),
        ("cors_origins", "https://chat.example/app"),
        ("lora_rank", 12),
        ("chat_template", "/nowhere.jinja"),
    ],
)
def test_a_value_that_no_part_could_use_names_its_setting(
    tmp_path: Path, setting: str, value: object
) -> None:
    usual = {"allowed_hosts": "*, .chat.example, [::1]", "cors_origins": "http://127.0.0.1:8080/"}
    usual["oidc_issuer"] = "https://id.example/realms/acme"
    lifecycle.check_settings(settings(tmp_path, **usual))
    with pytest.raises(StackError, match=f"CLAWWEB_{setting.upper()}") as refused:
        lifecycle.check_settings(settings(tmp_path, **{setting: value}))
    assert "secret" not in str(refused.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    for name, make in (("log", lifecycle.prepare_folders), ("models", lifecycle.prepare_model)):
        (tmp_path / name).touch()
        with pytest.raises(StackError, match=f"File exists: {tmp_path}/{name}"):
            make(settings(tmp_path))


def test_where_no_web_server_was_started_no_address_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings(tmp_path, vllm_url="http://127.0.0.1:1")
    lifecycle.announce(config, lifecycle.chosen(config, ["worker-gpu", "beat"]), 2.0)
    warning, ready, end = capsys.readouterr().out.splitlines()
    assert "no vLLM answers at http://127.0.0.1:1" in warning
    assert (ready, end) == ("worker-gpu, beat: ready after 2 s", "Ctrl-C stops it")


def test_a_variable_that_is_no_setting_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("CLAWWEB_")]:
        monkeypatch.delenv(name)
    for name in ("CLAWWEB_PORT", "clawweb_host", "CLAWWEB_PART"):
        monkeypatch.setenv(name, "8000")
    lifecycle.check_settings(settings(tmp_path))
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("CLAWWEB_ALOWED_HOSTS", "chat.example")
    monkeypatch.setenv("CLAWWEB_THEME", "dark")
    lifecycle.check_settings(settings(tmp_path))
    misspelt = "CLAWWEB_ALOWED_HOSTS (CLAWWEB_ALLOWED_HOSTS?), CLAWWEB_THEME;"
    assert f"no setting is called {misspelt}" in capsys.readouterr().out


def test_what_prepares_containers_refuses_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare, "config", lambda: settings(tmp_path, lora_rank=12))
    with pytest.raises(SystemExit):
        call_command("prepare", "--all")
    assert "CLAWWEB_LORA_RANK" in capsys.readouterr().out


def test_a_number_that_another_installations_supervisor_has_by_now_ends_nothing(
    tmp_path: Path,
) -> None:
    """After a reboot both start with the same low numbers, and the noted one is the other's."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    lifecycle.prepare_folders(settings(mine))
    code = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_DFL); print(flush=True); "
    code += "time.sleep(600)"
    looks = ["supervisor.supervisord", "-c", str(theirs / "run" / "supervisord.conf")]
    with subprocess.Popen([sys.executable, "-c", code, *looks], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout
            other.stdout.readline()
            (mine / "run" / "supervisord.pid").write_text(str(other.pid))
            assert not supervisor.end_orphans(settings(mine))
            assert other.poll() is None
            (theirs / "run").mkdir(parents=True)
            (theirs / "run" / "supervisord.pid").write_text(str(other.pid))
            waits = threading.Thread(target=other.wait)  # a child that has ended keeps its number
            waits.start()
            assert supervisor.end_orphans(settings(theirs))
            waits.join(10)
            assert other.returncode == -signal.SIGTERM
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("CLAWWEB_PORT", "web", "CLAWWEB_PORT: .*valid integer.*, not 'web'"),
        ("CLAWWEB_VLLM_DTYPE", "half", "CLAWWEB_VLLM_DTYPE: .*'bfloat16' or 'float16', not 'half'"),
        ("CLAWWEB_SESSION_TIMEOUT", "inf", "CLAWWEB_SESSION_TIMEOUT: .*less than or equal to"),
        ("CLAWWEB_KEEP_CHATS_DAYS", "9999999", "CLAWWEB_KEEP_CHATS_DAYS: .*less than or equal"),
        ("CLAWWEB_SIGN_UP", "yes", "CLAWWEB_SIGN_UP: .*'closed', 'pending' or 'open', not 'yes'"),
        ("CLAWWEB_VAR", __file__, "data folder .* cannot be used: .*CLAWWEB_VAR"),
    ],
)
def test_a_value_that_is_none_is_named_without_a_traceback(
    tmp_path: Path, variable: str, value: str, words: str
) -> None:
    env = {**os.environ, "CLAWWEB_VAR": str(tmp_path), "CLAWWEB_SECRET_KEY": "", variable: value}
    command = [sys.executable, "manage.py", "up", "--parts", "none"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(words, done.stderr, re.DOTALL)
    assert "Traceback" not in done.stderr
