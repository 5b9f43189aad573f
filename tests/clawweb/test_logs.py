"""Lines of the logs: one id leads from a request to a version, and nobody's words are in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.app.trace import LOG_RECEIVED
from django.db import IntegrityError, transaction
from django.test import AsyncClient, Client

from clawweb import copies, deployment, logs
from clawweb.config import config
from clawweb.models import TrainingJob, Turn, User
from clawweb.orm import in_db
from clawweb.services import accounts, chat, retention, sessions
from clawweb.tasks import judge, let_go, run_training_job, run_transfer
from rollouts.types import Message
from tests.factories import hand_over, make_turn, registered
from tests.generating import eventually, generating, read_reply

Lines = Callable[[], list[str]]
WISH, COMPLAINT = "my very own secret wish", "you should have said kangaroo"
NAME = "about-my-illness"


@pytest.fixture
def written(setting: Any, request: pytest.FixtureRequest) -> Iterator[Lines]:
    """What the product's own handler writes, in the format that the test is given."""
    setting(log_format=getattr(request, "param", "line"))
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logs.make_formatter())
    root = logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.DEBUG)  # more than is written in production must hold no secret either
    yield lambda: out.getvalue().splitlines()
    root.removeHandler(handler)
    root.setLevel(level)


def rate_by_key(client: Client, key: str, turn: Turn) -> None:
    body = {"value": -1, "reasons": ["too_long"], "comment": COMPLAINT}
    answer = client.post(
        f"/api/turns/{turn.public_id}/feedback",
        body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {key}", "X-Request-Id": "the-request-of-it"},
    )
    assert answer.status_code == 200


def learned_by(user: User) -> str:
    """A job that takes what is ready and goes live; the version's name."""
    job, adapter = registered(user)
    hand_over(job)
    deployment.deploy(job.public_id)
    return str(adapter.name)


@pytest.mark.django_db
@pytest.mark.parametrize("written", ["line", "json"], indirect=True)
def test_a_turns_id_leads_from_the_request_to_the_version(
    alice: User, client: Client, engine: Any, valkey_server: None, written: Lines
) -> None:
    _, key = accounts.make_key(user=alice, name="k", scopes=["chat", "feedback"])
    turn = make_turn(alice, WISH)
    rate_by_key(client, key, turn)
    name = learned_by(alice)
    found = [line for line in written() if turn.public_id in line]
    for words in ("asked", "POST /api/turns/<turn_id>/feedback 200", "taken to learn", "learned"):
        assert any(words in line for line in found), words
    assert any("the-request-of-it" in line for line in found)
    assert name in next(line for line in found if "learned" in line)
    assert any("version live" in line and name in line for line in written())
    whole = "\n".join(written())
    for secret in (WISH, COMPLAINT, key, key[-20:]):
        assert secret not in whole


@pytest.mark.django_db
@pytest.mark.parametrize("written", ["json"], indirect=True)
def test_each_line_is_an_object(alice: User, client: Client, engine: Any, written: Lines) -> None:
    client.force_login(alice)
    client.get("/nowhere/")
    client.get("/jobs/")
    entries = [json.loads(line) for line in written()]
    assert all({"at", "level", "logger", "event"} <= set(entry) for entry in entries)
    asked = [entry for entry in entries if entry["logger"] == "clawweb.middleware"]
    assert [entry["event"] for entry in asked] == ["GET (nothing there) 404", "GET /jobs/ 200"]
    assert asked[1]["user"] == alice.pk
    assert asked[1]["request"] != asked[0]["request"]


@pytest.mark.queue
@pytest.mark.django_db(transaction=True, serialized_rollback=True)
async def test_a_generators_lines_name_the_turn(
    alice: User, engine: Any, valkey_server: None, written: Lines
) -> None:
    def ask() -> Turn:
        session = sessions.open_session(user=alice)
        return chat.open_turn(
            session=session, parent=None, messages=[Message(role="user", content=WISH)]
        )

    async with generating():
        turn = await in_db(ask)
        reply = "".join([piece.text async for piece in read_reply(turn, 0)])
        await eventually(lambda: any("reply complete" in line for line in written()))
    [line] = [line for line in written() if "reply complete" in line]
    assert f"turn={turn.public_id}" in line
    assert f"user={alice.pk}" in line
    assert reply not in "\n".join(written())


@pytest.mark.django_db
def test_a_job_that_breaks_is_named_by_its_lines(alice: User, written: Lines) -> None:
    with logs.about(job="job-1", user=alice.pk, version=None):
        try:
            raise ValueError("no")
        except ValueError:
            logging.getLogger("clawweb.x").exception("it broke")
    first, *trace = written()
    assert first.endswith(f"ERROR clawweb.x it broke user={alice.pk} job=job-1")
    assert trace[-1] == "ValueError: no"


@pytest.mark.parametrize("written", ["line", "json"], indirect=True)
def test_keys_and_links_to_sign_in_are_cut_out(written: Lines) -> None:
    secret = "Ab-9_" * 8
    log = logging.getLogger("django.security.csrf")
    log.warning("Forbidden (%s): %s", "CSRF", f"/signin/{secret}/")
    log.warning("wrong key claw-%s", secret)
    assert len(written()) == 2
    assert secret not in "".join(written())
    assert "/signin/…/" in written()[0]


def test_health_checks_fill_no_log(client: Client, db: None, engine: Any, written: Lines) -> None:
    client.get("/livez")
    client.get("/readyz")
    assert not [line for line in written() if "clawweb.middleware" in line]


@pytest.mark.usefixtures("valkey_server", "engine")
def test_celerys_lines_of_a_task_name_what_it_is_about(alice: User, written: Lines) -> None:
    """Received, done and broken; nothing else of what it was given is on the line."""
    job = TrainingJob.objects.create(user=alice).public_id
    given = {"id": "m", "name": run_training_job.name, "args": f"('{job}', '{WISH}')"}
    logging.getLogger("celery.worker.strategy").info(LOG_RECEIVED, given, extra={"data": given})
    let_go.apply()
    run_transfer.apply(args=("file-01a20162-6bac-7300-b625-413a6dfc7216",))
    judge.apply(args=("17",))
    received, gone, moved, judged = [line for line in written() if " celery." in line]
    assert received.endswith(f"{run_training_job.name}[m] received job={job}")
    assert gone.endswith("s: None")
    assert moved.endswith(" transfer=file-01a20162-6bac-7300-b625-413a6dfc7216")
    assert judged.endswith(" judgement=17")


@pytest.mark.django_db
def test_trouble_with_what_is_old_keeps_no_copy_from_being_made(
    written: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(retention, "apply", broken)
    monkeypatch.setattr(copies, "daily", made.append)
    let_go()
    assert made == [config().var]
    assert "ZeroDivisionError" in "".join(written())


def test_a_task_that_breaks_is_named_without_what_it_was_given(
    written: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawweb.transfer_run.run", lambda _: 1 / 0)
    run_transfer.apply(args=("file-01a20162-6bac-7300-b625-413a6dfc7216",))
    first, *trace = [line for line in written() if line]
    assert "raised unexpected: ZeroDivisionError" in first
    assert first.endswith(" transfer=file-01a20162-6bac-7300-b625-413a6dfc7216")
    assert trace[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.db
@pytest.mark.django_db
def test_a_row_that_the_database_refuses_is_not_shown(alice: User, written: Lines) -> None:
    turn = make_turn(alice, WISH)
    try:
        with transaction.atomic():
            Turn.objects.filter(pk=turn.pk).update(created_at=None)
    except IntegrityError:
        logging.getLogger("clawweb.x").exception("it broke")
    assert any("it broke" in line for line in written())
    assert "IntegrityError" in "".join(written())
    assert WISH not in "\n".join(written())


def test_what_django_adds_to_its_lines_stays_out(written: Lines) -> None:
    logging.getLogger("django.request").warning(
        "Not Found: /x", extra={"request": "GET /x with a cookie", "status_code": 404}
    )
    assert "cookie" not in written()[0]


@pytest.mark.django_db
def test_what_a_caller_calls_a_session_is_on_no_line(
    alice: User, client: Client, written: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither on ours nor on Django's own, found or not."""
    client.force_login(alice)
    path = f"/api/sessions/{NAME}"
    assert client.get(path).status_code == 404
    assert client.get(f"/no{path}").status_code == 404
    monkeypatch.setattr("clawweb.api.rest.chats.session_of", lambda *_: 1 / 0)
    assert client.get(path).status_code == 500
    whole = "\n".join(written())
    for words in ("GET /api/sessions/<path:name> failed", "Not Found: (nothing there)"):
        assert words in whole
    assert "Not Found: /api/sessions/<path:name>" in whole
    assert "Internal Server Error: /api/sessions/<path:name>" in whole
    assert NAME not in whole


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
async def test_nor_what_a_program_calls_a_model(
    alice: User, valkey_server: None, written: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = await in_db(accounts.make_key, user=alice, name="k", scopes=["chat"])
    monkeypatch.setattr("clawweb.api.openai._models_of", lambda *_: 1 / 0)
    given = {"Authorization": f"Bearer {key}"}
    answer = await AsyncClient().get(f"/v1/models/{NAME}", headers=given)
    assert answer.status_code == 500
    assert "/v1/models/<str:name> failed" in "\n".join(written())
    assert NAME not in "\n".join(written())


def test_the_web_servers_own_lines_of_requests_stay_out(written: Lines) -> None:
    """Addresses may hold links to sign in; uvicorn's option alone does not outlast our settings."""
    logging.getLogger("uvicorn.access").info("GET /signin/ HTTP/1.1")
    assert written() == []
    assert not logging.getLogger("uvicorn.access").propagate
