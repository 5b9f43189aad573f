"""A user of the running system, and what may be seen of it from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.engines.base import Engine
from tests.realstack import Stack

ENDED = ("deployed", "refused", "no_signal", "cancelled", "failed")
JOB_SECONDS = 480  # on a machine that does ten other things
# For replies that must still be written when they are broken off: a sampled one may be short. 2 is
# the token that ends the tests' model's.
ENDLESS = {"logit_bias": {"2": -100}}
# The same where log-probs are wanted, which a bias leaves none of: by its likely words a story of
# the tests' model goes on and on.
LIKELY = {"temperature": 0.1}


def wait_for(what: str, ask: Callable[[], Any], *, timeout: float, every: float = 0.1) -> Any:
    """What `ask` gives once it gives something true; fails the test when it does not."""
    deadline = time.monotonic() + timeout
    while not (found := ask()):
        if time.monotonic() > deadline:
            pytest.fail(f"after {timeout:.0f} s still not: {what}")
        time.sleep(every)
    return found


class Person:
    """One user with an API key. Answers that are not asked for with `raw` must be 2xx."""

    def __init__(self, stack: Stack, name: str) -> None:
        self.stack = stack
        self.name = name
        self.key = stack.key(name)
        self.http = httpx.Client(
            base_url=stack.url,
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=120,
            trust_env=False,
        )

    def get(self, path: str) -> Any:
        response = self.http.get(path)
        assert response.status_code == 200, f"GET {path}: {response.status_code} {response.text}"
        return response.json()

    def post(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        response = self.http.post(path, json=body)
        assert response.status_code == status, f"POST {path}: {response.text}"
        return response.json()

    def chat(
        self, text: str, *, max_tokens: int = 8, session: str = "", **body: Any
    ) -> httpx.Response:
        """One message in a session of its own unless one is named."""
        headers = {"X-Session-Id": session} if session else {}
        message = {"role": "user", "content": text}
        body = {"messages": [message], "max_tokens": max_tokens, **body}
        return self.http.post("/v1/chat/completions", json=body, headers=headers)

    def ask(self, text: str, **body: Any) -> str:
        """The id of the answered turn."""
        response = self.chat(text, **body)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    def answerer(self, text: str = "Why is the sky blue?", **body: Any) -> str:
        """The adapter that answers now, or `base`."""
        response = self.chat(text, max_tokens=2, **body)
        assert response.status_code == 200, response.text
        return response.headers["X-Clawweb-Adapter"]

    def turn(self, turn_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/api/turns/{turn_id}")
        return found

    def receipt(self, turn_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.turn(turn_id)["receipt"]
        return found

    def rate(self, turn_id: str, **said: Any) -> dict[str, Any]:
        """A thumb down because it was too long, unless something else is said; its receipt."""
        said = said or {"value": -1, "reasons": ["too_long"]}
        receipt: dict[str, Any] = self.post(f"/api/turns/{turn_id}/feedback", said)
        return receipt

    def jobs(self) -> list[dict[str, Any]]:
        """Newest first."""
        items: list[dict[str, Any]] = self.get("/api/jobs")["items"]
        return items

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/api/jobs/{job_id}")
        return found

    def points(self, job_id: str, after: int = -1) -> list[dict[str, Any]]:
        points: list[dict[str, Any]] = self.get(f"/api/jobs/{job_id}/metrics?after={after}")[
            "points"
        ]
        return points

    def adapters(self) -> list[dict[str, Any]]:
        """Newest first."""
        items: list[dict[str, Any]] = self.get("/api/adapters")["items"]
        return items

    def live(self) -> str:
        """As the rows say; `base` when no version is live."""
        names = [row["name"] for row in self.adapters() if row["state"] == "live"]
        assert len(names) <= 1
        return names[0] if names else "base"

    def until_ended(self, job_id: str) -> dict[str, Any]:
        return self.until(job_id, *ENDED)

    def until(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job once it is in one of these states; fails when it ended in another."""
        job: dict[str, Any] = {}

        def arrived() -> bool:
            job.update(self.job(job_id))
            if job["state"] in ENDED and job["state"] not in states:
                pytest.fail(f"the job is {job['state']}: {job['reason']}")
            return job["state"] in states

        wait_for(f"{job_id} {' or '.join(states)}", arrived, timeout=JOB_SECONDS, every=0.3)
        return job

    def row(self, table: str, **match: Any) -> dict[str, Any]:
        """One row of the stack's own database: for what the API does not show."""
        return rows(self.stack, table, **match)[0]


def rows(stack: Stack, table: str, **match: Any) -> list[dict[str, Any]]:
    where = " AND ".join(f"{name} = ?" for name in match) or "true"
    sql = f"SELECT * FROM clawweb_{table} WHERE {where} ORDER BY id"
    return query(stack, sql, *match.values())


def query(stack: Stack, sql: str, *values: Any) -> list[dict[str, Any]]:
    """Of the stack's own database, read alone; JSON and times as their texts, times as UTC."""
    if url := stack.config.database_url:
        with psycopg.connect(url, row_factory=dict_row, options="-c timezone=UTC") as connection:
            for kind in ("jsonb", "timestamptz"):
                connection.adapters.register_loader(kind, TextLoader)
            return connection.execute(sql.replace("?", "%s"), values or None).fetchall()
    path = stack.config.var / "clawweb.sqlite3"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(sql, values).fetchall()]


def listed(row: dict[str, Any], name: str) -> list[Any]:
    """A JSON column."""
    found: list[Any] = json.loads(row[name])
    return found


@contextmanager
def person(stack: Stack, name: str) -> Iterator[Person]:
    someone = Person(stack, name)
    with someone.http:
        yield someone


def engine_of(stack: Stack, **more: Any) -> Engine:
    """The stack's vLLM as the product reaches it."""
    settings = stack.config
    key = settings.secret("vllm_key", settings.vllm_key)
    return build_engine(EngineConfig(url=settings.vllm, key=key, **more))


@contextmanager
def held_still(stack: Stack, part: str) -> Iterator[None]:
    """The part is there and does nothing. It is not caught while it writes: on SQLite nobody else
    could, as long as it is held."""
    pid = stack.pid(part)
    try:
        os.kill(pid, signal.SIGSTOP)
        while not can_write(stack):
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.05)
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        with suppress(ProcessLookupError):  # killed while it was held
            os.kill(pid, signal.SIGCONT)


def can_write(stack: Stack) -> bool:
    """Whether SQLite's one writer is free within a second; on PostgreSQL there are many."""
    if stack.config.database_url:
        return True
    with closing(sqlite3.connect(stack.var / "clawweb.sqlite3", timeout=1)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        database.rollback()
        return True


@contextmanager
def unread(someone: Person, body: dict[str, Any], *, session: str = "") -> Iterator[None]:
    """A request for a reply that nobody waits for."""
    host, port = "127.0.0.1", someone.stack.config.port
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    head += f"Authorization: Bearer {someone.key}\r\n"
    head += f"X-Session-Id: {session}\r\n\r\n" if session else "\r\n"
    with closing(socket.create_connection((host, port))) as connection:
        connection.sendall(head.encode() + content)
        yield


def running_requests(stack: Stack) -> float:
    """What vLLM works at now."""
    text = httpx.get(f"{stack.config.vllm}/metrics", trust_env=False, timeout=20).text
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
