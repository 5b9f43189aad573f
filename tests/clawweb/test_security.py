"""What docs/security.md promises about the whole: headers, bodies, addresses, logs, no pickle."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django import forms
from django.apps import apps
from django.conf import settings
from django.db.models import URLField
from django.test import Client

from clawweb import asgi
from clawweb.api.chat_request import ChatRequest
from clawweb.api.rest import api
from clawweb.config import ROOT
from clawweb.logs import make_formatter
from clawweb.models import User
from clawweb.services import accounts
from clawweb.services.saved_views import save_view
from tests.clawweb.access_table import TABLE

OURS = ("clawweb", "rollouts", "training")
# Whom this installation calls, and where the address comes from. No user's input is an address.
CALLERS = {
    "clawweb/generator.py",  # this machine's own name
    "clawweb/stack/lifecycle.py",  # whether a port of this machine is free
    "clawweb/stack/readiness.py",  # its own parts; an operator's settings
    "clawweb/stack/supervisor.py",  # supervisord's socket, in var/run
    "clawweb/views/single_sign_on.py",  # the provider; an operator's setting
    "rollouts/engines/vllm.py",  # model servers; an operator's setting
    "rollouts/judge_model.py",  # the judge; an operator's setting
}
CLIENTS = {"httpx", "requests", "aiohttp", "urllib3", "urllib.request", "http.client", "socket"}
CLIENTS |= {"ftplib", "smtplib", "huggingface_hub", "websockets"}
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for room in OURS:
        for path in sorted(Path(ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def imports_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_one_of(name: str, modules: set[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


# Files and wires without code in them


def test_nothing_is_pickled() -> None:
    """Not by name, and not by the calls that pickle for one: torch.load, numpy's, joblib."""
    wrong = []
    for name, tree in sources():
        wrong += [(name, each) for each in imports_of(tree) if is_one_of(each, PICKLES)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                if called in ("torch.load", "torch.save", "np.load", "numpy.load"):
                    wrong.append((name, called))
                if any(word.arg == "allow_pickle" for word in node.keywords):
                    wrong.append((name, called))
    assert wrong == []


def test_what_waits_in_the_queue_and_in_sessions_is_json() -> None:
    from clawweb.celery import app

    assert set(app.conf.accept_content) == {"json"}
    assert app.conf.task_serializer == "json"
    assert settings.SESSION_SERIALIZER.endswith("JSONSerializer")
    assert not hasattr(settings, "CACHES") or "locmem" in settings.CACHES["default"]["BACKEND"]


# Addresses


def test_who_calls_out_is_known_and_no_user_says_where() -> None:
    found = {
        name for name, tree in sources() if any(is_one_of(i, CLIENTS) for i in imports_of(tree))
    }
    assert found == CALLERS, "say in CALLERS whose address it is, and guard it"
    for model in apps.get_app_config("clawweb").get_models():
        assert not [f.name for f in model._meta.get_fields() if isinstance(f, URLField)], model


ADDRESS = re.compile("ur[il]|href|host|address|webhook|callback|endpoint")


def fields_in(schema: Any) -> Iterator[tuple[str, Any]]:
    """Of an OpenAPI or JSON schema: each parameter and property, however deep."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        if "in" in schema and "name" in schema:
            yield schema["name"], schema.get("schema")
    for each in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(each, dict | list):
            yield from fields_in(each)


def taken_from_users() -> Iterator[tuple[str, bool]]:
    """Every field of a body, an address or a form; and whether it says that it takes a URL."""
    for schema in (api.get_openapi_schema(), ChatRequest.model_json_schema()):
        for name, field in fields_in(schema):
            yield name, re.search('"format": "ur[il]', json.dumps(field)) is not None
    for form in forms.Form.__subclasses__():  # the schema's routes have imported them all
        if form.__module__.startswith("clawweb."):
            for name, field in form.base_fields.items():
                yield name, isinstance(field, forms.URLField)


def test_no_field_that_a_user_fills_takes_an_address() -> None:
    found = dict(taken_from_users())
    assert {"comment", "instructions", "messages", "name"} <= set(found), "each kind is walked"
    assert [name for name, is_url in found.items() if is_url or ADDRESS.search(name)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"paths": {"/x": {"post": {"parameters": [{"in": "query", "name": "callback"}]}}}},
        {"$defs": {"X": {"properties": {"image_url": {"type": "string"}}}}},
    ],
)
def test_a_field_for_an_address_would_be_found(schema: Any) -> None:
    """Or the test above could not fail."""
    assert [name for name, _ in fields_in(schema) if ADDRESS.search(name)]


# Every page


@pytest.fixture
def page(client: Client, db: None) -> Any:
    return client.get("/signin/")


def test_a_page_is_in_no_frame_and_runs_nothing_inline(page: Any) -> None:
    policy = page["Content-Security-Policy"]
    for rule in ("script-src 'self'", "frame-ancestors 'none'", "form-action 'self'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert page["X-Frame-Options"] == "DENY"
    assert page["X-Content-Type-Options"] == "nosniff"
    assert page["Referrer-Policy"] == "same-origin"
    assert page["Cross-Origin-Opener-Policy"] == "same-origin"


def test_cookies_are_out_of_scripts_reach(client: Client, alice: User) -> None:
    client.post(accounts.make_link(alice))
    session = client.cookies["sessionid"]
    assert (session["httponly"], session["samesite"]) == (True, "Lax")
    client.get("/settings/")
    assert client.cookies["csrftoken"]["samesite"] == "Lax"


def test_a_form_needs_its_token(alice: User) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(alice)
    for route, verbs in TABLE.items():
        if "POST" in verbs and "<" not in route and not route.startswith("api/"):
            assert strict.post(f"/{route}").status_code == 403, route


@pytest.mark.parametrize("path", ["/signin/", "/api/sessions", "/v1/models", "/livez"])
@pytest.mark.parametrize(
    ("host", "words"), [("evil.example:8000", "CLAWWEB_ALLOWED_HOSTS"), ("a_b", "no host name")]
)
def test_another_host_is_not_answered(
    client: Client, db: None, path: str, host: str, words: str
) -> None:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 400
    told = answer.content.decode()
    if path.startswith("/v1"):
        error = answer.json()["error"]
        assert error["code"] == "unknown_host"
        told = error["message"]
    elif path.startswith("/api"):
        assert answer["Content-Type"] == "application/problem+json"
        assert answer.json()["request_id"] == answer["X-Request-Id"]
        told = answer.json()["detail"]
    assert host.removesuffix(":8000") in told
    assert words in told


# Bodies


async def answer_to(path: str, pieces: list[bytes], headers: list[tuple[bytes, bytes]]) -> int:
    """The status, of the application as the server runs it."""
    status, _, _ = await whole_answer_to(path, pieces, headers)
    return status


async def whole_answer_to(
    path: str, pieces: list[bytes], headers: list[tuple[bytes, bytes]]
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body."""
    left = [
        {"type": "http.request", "body": piece, "more_body": i + 1 < len(pieces)}
        for i, piece in enumerate(pieces)
    ]
    said: list[Any] = []

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()  # it stays on the line
        return left.pop(0)

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    scope |= {"query_string": b"", "http_version": "1.1", "server": ("testserver", 80)}
    await asgi.application(scope, receive, send)
    start, *rest = said
    body = b"".join(message.get("body", b"") for message in rest)
    return int(start["status"]), dict(start["headers"]), body


HOST = (b"host", b"testserver")


async def test_a_body_that_is_too_large_is_not_taken_in() -> None:
    said = [HOST, (b"content-length", str(asgi.MOST_BODY + 1).encode())]
    assert await answer_to("/signin/", [b""], said) == 413
    said = [HOST, (b"content-length", str(asgi.MOST_FILE + 1).encode())]
    assert await answer_to("/api/imports", [b""], said) == 413


@pytest.mark.parametrize(
    ("path", "limit"), [("/v1/chat/completions", 4), ("/api/jobs", 4), ("/api/imports", 50)]
)
async def test_programs_are_told_so_in_the_shape_of_their_errors(path: str, limit: int) -> None:
    said = [HOST, (b"content-length", str(asgi.MOST_FILE + 1).encode())]
    status, headers, body = await whole_answer_to(path, [b""], said)
    told = json.loads(body)
    if path.startswith("/v1/"):
        assert headers[b"content-type"] == b"application/json"
        assert told["error"]["code"] == "too_large"
        words = told["error"]["message"]
    else:
        assert headers[b"content-type"] == b"application/problem+json"
        assert told["request_id"] == headers[b"x-request-id"].decode()
        words = told["detail"]
    assert (status, f"{limit} MB" in words) == (413, True)


def test_nor_is_one_that_django_refuses_broken(client: Client, alice: User) -> None:
    _, key = accounts.make_key(user=alice, name="k", scopes=["train"])
    body = {"data": "x" * (5 << 20), "content_type": "application/json"}
    answer = client.post("/api/jobs", **body, headers={"Authorization": f"Bearer {key}"})
    assert (answer.status_code, answer.json()["title"]) == (413, "too_large")
    client.force_login(alice)
    answer = client.post("/settings/asking/", "instructions=" + "x" * (5 << 20), **FORM)
    assert (answer.status_code, "4 MB" in answer.content.decode()) == (413, True)


FORM = {"content_type": "application/x-www-form-urlencoded"}


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
async def test_nor_one_that_does_not_say_how_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "MOST_BODY", 1000)
    assert await answer_to("/signin/", [b"x" * 600, b"x" * 600], [HOST]) == 413
    assert await answer_to("/signin/", [b"x" * 600, b"x" * 300], [HOST]) == 403  # without a token


# Texts that no database takes


async def test_a_nul_in_an_address_names_nothing() -> None:
    """PostgreSQL refuses to look for a text with one in it."""
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope)

    scope = {
        "type": "http",
        "path": "/jobs/a\0b/",
        "query_string": b"q=a%00&r=%2500",
        "method": "GET",
    }
    await asgi.Storable(app)(scope, None, None)
    assert seen == {**scope, "path": "/jobs/a\ufffdb/", "query_string": b"q=a%EF%BF%BD&r=%2500"}
    assert await answer_to("/api/no/a\0b", [b""], [HOST]) == 404


@pytest.mark.db
def test_nor_can_a_saved_view_be_named_so(alice: User) -> None:
    row = save_view(user=alice, page="sessions", name="a\0b", query="q=\0")
    assert (row.name, row.query) == ("a\ufffdb", "q=\ufffd")


# Logs


class Lines(logging.Handler):
    """What the console says."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[str] = []
        self.setFormatter(make_formatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, loggers = Lines(), [logging.getLogger(name) for name in ("", "django", "clawweb")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
@pytest.mark.usefixtures("valkey_server", "engine")
def test_no_secret_and_no_text_gets_into_a_log(lines: Lines, alice: User) -> None:
    """Signing in by each way, right and wrong, with keys right and wrong, and a page that fails."""
    password, wrong, words = "correct horse battery", "an almost right one", "what alice said"
    link, other_link = accounts.make_link(alice), accounts.make_link(alice)
    secret = generate_totp_secret()
    _, key = accounts.make_key(user=alice, name="k")
    alice.set_password(password)
    alice.save()
    client = Client(raise_request_exception=False)
    strict = Client(enforce_csrf_checks=True, raise_request_exception=False)
    for form in (wrong, password):
        client.post("/signin/", {"username": "alice", "password": form})
    strict.post(link)  # refused, and so still good: this stands in Django's log
    client.post(link)
    client.get(link)
    client.get(other_link, headers={"Host": "evil.example"})
    client.get("/api/sessions", headers={"Authorization": f"Bearer {key}"})
    client.get(f"/{key}", headers={"Authorization": f"Bearer {key}x"})
    client.post("/api/turns/turn-x/feedback", {"comment": words}, "application/json")
    TOTP.activate(alice, secret)
    client.post("/signin/code/", {"code": "123123"})
    said = "\n".join(lines.said)
    assert "/signin/" in said, "or this test would see nothing"
    for text in (password, wrong, words, key, key[5:], link, other_link, secret, "123123"):
        assert text not in said
    assert client.session.session_key not in said


def test_the_console_cuts_secrets_out() -> None:
    formatter = settings.LOGGING["handlers"]["console"]["formatter"]
    assert settings.LOGGING["formatters"][formatter]["()"] == "clawweb.logs.make_formatter"
    link = "/signin/" + "x" * 43
    try:
        raise ValueError(link)
    except ValueError:
        told = (logging.WARNING, "f", 1, "Gone: %s %s", (link, "k"), sys.exc_info())
    said = make_formatter().format(logging.LogRecord("n", *told))
    assert "WARNING n Gone: /signin/… k" in said
    assert "ValueError: /signin/…" in said


def test_a_key_that_is_over_is_no_key(alice: User) -> None:
    _, over = accounts.make_key(user=alice, name="k", days=0)
    _, lasts = accounts.make_key(user=alice, name="k", days=7)
    assert accounts.key_for(over) is None
    assert accounts.key_for(lasts) is not None
