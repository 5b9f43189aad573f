"""Simulated people: they ask by socket or by API, rate and train, and note how each went."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

QUESTIONS = ("How do I make tea?", "Why is the sky blue?", "What is inflation?", "What is gravity?")
PATIENCE = 120.0  # seconds for one reply
THINKING = (0.5, 2.0)  # seconds between a reply and what comes next
SEED = "from bench.load.people import seed; seed({users})"
SOCKET, API = "socket", "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question. Seconds from asking; None where it did not come to that."""

    way: str
    outcome: str  # ok, an HTTP status, refused, or what else went wrong
    first: float | None = None
    whole: float | None = None


@dataclass(slots=True)
class Notes:
    """What one person, or all, went through."""

    asked: list[Asked] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # ratings and jobs, by answer


def seed(users: int) -> None:
    """Makes so many users; prints each one's name, session cookie and API key."""
    from clawweb.models import User
    from clawweb.services import accounts
    from tests.demo import cookie

    facts = []
    for number in range(users):
        user = User.objects.create_user(f"user-{number}")
        _, key = accounts.make_key(user=user, name="bench", scopes=accounts.CLI_SCOPES)
        facts.append({"name": user.username, "cookie": cookie(user), "key": key})
    sys.stdout.write(f"{json.dumps(facts)}\n")


class Person:
    """One user; the odd ones chat by socket, the others by API."""

    def __init__(self, url: str, *, name: str, cookie: str, key: str) -> None:
        self.url = url
        self.cookie = cookie
        number = int(name.rsplit("-", 1)[1])
        self.way = SOCKET if number % 2 else API
        self.chance = random.Random(number)
        self.notes = Notes()
        self.rated = 0
        self.socket: ClientConnection | None = None
        self.http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=PATIENCE,
            trust_env=False,
            limits=httpx.Limits(keepalive_expiry=1),
        )

    @asynccontextmanager
    async def present(self) -> AsyncIterator[Person]:
        """With connections, for the time of the block."""
        async with self.http:
            yield self
        if self.socket is not None:
            await self.socket.close()

    async def live(self, until: float) -> None:
        """Ask, rate, train and think until then (on `time.monotonic`)."""
        while time.monotonic() < until:
            turn = await self.ask()
            if turn and self.chance.random() < 0.5:
                await self._rate(turn)
            if self.rated and self.chance.random() < 0.1:
                await self._note("train", self.http.post("/api/jobs"))
            await asyncio.sleep(self.chance.uniform(*THINKING))

    async def talk(self, until: float) -> None:
        """Ask and think alone."""
        while time.monotonic() < until:
            await self.ask()
            await asyncio.sleep(self.chance.uniform(*THINKING))

    async def ask(self) -> str:
        """Ask something in a chat of its own and note how it went; its turn if all went well."""
        text = f"{self.chance.choice(QUESTIONS)} ({self.chance.randrange(10**6)})"
        ask = self._by_socket if self.way == SOCKET else self._by_api
        try:
            async with asyncio.timeout(PATIENCE):
                asked, turn = await ask(text)
        except TimeoutError:
            asked, turn = Asked(way=self.way, outcome=f"nothing in {PATIENCE:.0f} s"), ""
        except (httpx.HTTPError, OSError, WebSocketException) as exc:
            self.socket = None
            asked, turn = Asked(way=self.way, outcome=type(exc).__name__), ""
        self.notes.asked.append(asked)
        return turn if asked.outcome == "ok" else ""

    async def _by_socket(self, text: str) -> tuple[Asked, str]:
        if self.socket is None:
            address = self.url.replace("http", "ws", 1) + "/ws/chat/"
            cookie = {"Cookie": f"sessionid={self.cookie}"}
            self.socket = await connect(address, additional_headers=cookie, proxy=None)
        started = time.monotonic()
        first, turn = None, ""
        message = {"type": "send", "text": text, "client_id": uuid.uuid4().hex}
        await self.socket.send(json.dumps(message))
        while True:
            told = json.loads(await self.socket.recv())
            if told["type"] == "error":
                return Asked(way=SOCKET, outcome="refused"), ""
            if told["type"] == "turn":
                turn = told["turn"]["id"]
            elif told["type"] == "delta" and told["turn"] == turn:
                first = first or time.monotonic() - started
            elif told["type"] == "done" and told["turn"]["id"] == turn:
                state = told["turn"]["state"]
                outcome = "ok" if state == "complete" else state
                whole = time.monotonic() - started
                return Asked(way=SOCKET, outcome=outcome, first=first, whole=whole), turn

    async def _by_api(self, text: str) -> tuple[Asked, str]:
        body = {"messages": [{"role": "user", "content": text}], "stream": True}
        started = time.monotonic()
        first, outcome = None, "ok"
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return Asked(way=API, outcome=str(answer.status_code)), ""
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    outcome = str(chunk["error"]["code"])
                elif chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                    first = first or time.monotonic() - started
            turn = answer.headers["X-Clawweb-Turn"]
        whole = time.monotonic() - started
        return Asked(way=API, outcome=outcome, first=first, whole=whole), turn

    async def _rate(self, turn: str) -> None:
        said = (
            {"value": -1, "reasons": ["too_long"]} if self.chance.random() < 0.8 else {"value": 1}
        )
        self.rated += await self._note(
            "rate", self.http.post(f"/api/turns/{turn}/feedback", json=said)
        )

    async def _note(self, what: str, asking: object) -> bool:
        try:
            status = (await asking).status_code  # type: ignore[misc]
        except httpx.HTTPError as exc:
            status = type(exc).__name__
        self.notes.others[f"{what}: {status}"] += 1
        return status == 200

    async def teach(self, replies: int) -> None:
        """Rate so many replies, so that a job has something to learn; raises when it fails."""
        while self.rated < replies:
            turn = await self.ask()
            if not turn:
                raise SystemExit(f"no reply to rate: {self.notes.asked[-1]}")
            await self._rate(turn)

    async def begin_training(self, patience: float = 240.0) -> str:
        """A job of theirs that trains by now; its id."""
        answer = await self.http.post("/api/jobs")
        if answer.status_code != 202:
            raise SystemExit(f"no job: {answer.status_code} {answer.text}")
        job = str(answer.json()["id"])
        await self._until(job, ("training",), patience)
        return job

    async def state_of(self, job: str) -> str:
        return str((await self.http.get(f"/api/jobs/{job}")).json()["state"])

    async def end_jobs(self, patience: float = 120.0) -> None:
        """Cancel what trains or waits to, and see it end."""
        for job in (await self.http.get("/api/jobs")).json()["items"]:
            if job["state"] in ("queued", "loading", "training", "gating"):
                await self.http.post(f"/api/jobs/{job['id']}/cancel")
        for job in (await self.http.get("/api/jobs")).json()["items"]:
            await self._until(job["id"], ENDED, patience)

    async def _until(self, job: str, states: tuple[str, ...], patience: float) -> None:
        deadline = time.monotonic() + patience
        while (state := await self.state_of(job)) not in states:
            if state in ENDED or time.monotonic() > deadline:
                raise SystemExit(f"job {job} is {state}, not {' or '.join(states)}")
            await asyncio.sleep(0.3)


ENDED = ("deployed", "refused", "no_signal", "cancelled", "failed")
