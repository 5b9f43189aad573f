"""Parts that are away: of the database whoever asks is told so, and when to try again; for the
trainer no more is queued than it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
)
from django.test import AsyncClient, Client

from clawweb import tasks, valkey
from clawweb.config import ROOT
from clawweb.management import OverRows
from clawweb.models import User
from clawweb.orm import in_db
from clawweb.services import accounts, jobs
from clawweb.services.outage import is_away, outage
from clawweb.valkey import ValkeyError
from tests.factories import rated

pytestmark = pytest.mark.django_db


def away(*_: Any, **__: Any) -> Any:
    raise OperationalError("server closed the connection unexpectedly")


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (OperationalError("database is locked"), True),
        (InterfaceError("connection already closed"), True),
        (OperationalError("no such table: clawweb_turn"), False),
        (IntegrityError("UNIQUE constraint failed"), False),
        (ValueError("no"), False),
    ],
)
def test_which_errors_mean_it(error: Exception, found: bool) -> None:
    assert is_away(error) is found
    outer = RuntimeError("a page")
    outer.__cause__ = error
    assert is_away(outer) is found


def test_a_full_disk_is_said_to_be_that() -> None:
    full = outage(OperationalError("database or disk is full"))
    assert full is not None
    assert (full.status, full.title, full.retry_after) == (507, "disk_full", None)
    assert outage(psycopg.OperationalError("not wrapped by Django")) is None


def test_a_page_says_it_and_when_to_come_back(
    client: Client, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(alice)
    client.raise_request_exception = False
    monkeypatch.setattr("clawweb.views.chat.agent_status", away)
    answer = client.get("/chat/")
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    page = answer.content.decode()
    assert "The database does not answer right now" in page
    assert "broke" not in page
    assert answer["X-Request-Id"] in page


def test_the_api_says_it(client: Client, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    client.force_login(alice)
    monkeypatch.setattr("clawweb.api.rest.agent_status", away)
    answer = client.get("/api/status")
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert answer.json()["title"] == "database_away"
    assert "Try again" in answer.json()["detail"]


@pytest.mark.usefixtures("engine")
def test_readyz_tells_strangers_that_it_is_away_and_the_log_why(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone() -> Any:
        raise ValkeyError("no route to 10.1.2.4")

    monkeypatch.setattr("clawweb.api.health.connection", SimpleNamespace(cursor=away))
    monkeypatch.setattr("clawweb.api.health.valkey.connect", gone)
    answer = client.get("/readyz")
    parts = answer.json()["parts"]
    assert (answer.status_code, parts["database"]) == (503, "down")
    assert parts["queue"].startswith("down; ratings are saved")
    for words in ("server closed the connection", "10.1.2.4"):
        assert words not in answer.content.decode()
        assert words in caplog.text


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
@pytest.mark.parametrize("at", ["key_for", "_models_of"])
async def test_openais_interface_says_it_in_its_shape(
    alice: User, valkey_server: Any, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Also when it was the key that could not be looked up."""
    _, plain = await in_db(accounts.make_key, user=alice, name="t", scopes=accounts.CLI_SCOPES)
    monkeypatch.setattr(f"clawweb.api.openai.{at}", away)
    answer = await AsyncClient().get("/v1/models", headers={"Authorization": f"Bearer {plain}"})
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert answer.json()["error"]["code"] == "database_away"


def test_what_breaks_in_a_sweep_keeps_nothing_else_from_its_turn(
    alice: User, bob: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, sent = [], []

    def breaks(*_: Any) -> None:
        raise ValueError("a row that nobody has thought of")

    def queue_batch(user: User) -> None:
        asked.append(user)
        breaks()

    monkeypatch.setattr(tasks.chat, "interrupt_abandoned", breaks)
    monkeypatch.setattr(jobs, "users_with_batches", lambda: [alice, bob])
    monkeypatch.setattr(jobs, "queue_batch", queue_batch)
    monkeypatch.setattr(tasks, "_send_again", lambda task, ids: sent.append(task.name))
    monkeypatch.setattr(tasks, "_sweep_engine", lambda: None)
    tasks.sweep()
    assert asked == [alice, bob]
    assert "clawweb.tasks.deploy" in sent
    assert caplog.text.count("a row that nobody has thought of") >= 3


def test_a_queue_that_nobody_reads_does_not_grow_with_each_sweep(
    alice: User, valkey_server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a trainer its server's memory would be full after some days, and with it go replies'
    streams."""
    rated(alice, 1)
    job = jobs.queue_job(user=alice)
    sent: list[Any] = []
    monkeypatch.setattr(tasks, "_send", lambda task, ids, *_: sent.append(ids))
    with valkey.connect() as client:
        client.delete("gpu")
        client.rpush("gpu", *["a message"] * valkey.LONG_QUEUE)
        tasks._sweep_jobs()
        assert sent == []
        client.lpop("gpu")
        tasks._sweep_jobs()
        assert sent == [(job.public_id,)]
        client.delete("gpu")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OperationalError("no such table: clawweb_user"), "`make run` makes its tables"),
        (ProgrammingError('relation "clawweb_user" does not exist'), "`make run` makes its tables"),
        (OperationalError("unable to open database file"), "a file below CLAWWEB_VAR"),
        (OperationalError("database or disk is full"), "The disk of this installation is full"),
        (OperationalError("attempt to write a readonly database"), "the user who may write"),
        (OperationalError("database is locked"), "The database does not answer right now"),
        (DatabaseError("file is not a database"), "how to go back to a copy"),
        (DatabaseError("database disk image is malformed"), "how to go back to a copy"),
    ],
    ids=str,
)
def test_a_command_is_told_what_its_database_lacks(error: Exception, words: str) -> None:
    class Command(OverRows):
        requires_system_checks = ()

        def handle(self, *_: Any, **__: Any) -> None:
            raise error

    with pytest.raises(CommandError) as told:
        call_command(Command())
    said, does = str(told.value).splitlines()
    assert said == f"The database says: {error}"
    assert words in does


def test_whoever_reads_a_command_may_have_enough(tmp_path: Path) -> None:
    """As `head` has: nothing broke."""
    code = (
        "import django; django.setup(); from clawweb.management import OverRows\n"
        "class Command(OverRows):\n"
        "    requires_system_checks = ()\n"
        "    def handle(self, **_):\n"
        "        for _ in range(1000): self.stdout.write('line ' * 1000)\n"
        "Command().run_from_argv(['manage.py', 'tell'])"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "clawweb.settings", "CLAWWEB_VAR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=env, **pipes) as telling:  # type: ignore[call-overload]
        assert telling.stdout.read(4) == b"line"
        telling.stdout.close()
        assert telling.stderr.read() == b""
    assert telling.returncode == 1
