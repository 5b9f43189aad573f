"""What a turn costs in the database and in Valkey, read from a system that has served some."""

from __future__ import annotations

import json
import sqlite3
import statistics
from contextlib import closing
from typing import Any

from redis import Redis

from tests.realstack import Stack

COLUMNS = ("prompt_ids", "response_ids", "logprobs", "input_messages", "reply")


def costs_of(stack: Stack) -> dict[str, Any]:
    """Named figures; those that could not be read are absent."""
    return {**_rows(stack), **_valkey(stack)}


def _rows(stack: Stack) -> dict[str, Any]:
    path = stack.config.var / "clawweb.sqlite3"
    lengths = ", ".join(f"avg(length(CAST({name} AS BLOB)))" for name in COLUMNS)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as database:
        where = "FROM clawweb_turn WHERE state = 'complete'"
        turns, tokens, *bytes_ = database.execute(
            f"SELECT count(*), avg(prompt_tokens + reply_tokens), {lengths} {where}"
        ).fetchone()
        found: dict[str, Any] = {"turns": turns}
        if turns:
            found["tokens of a turn, prompt and reply"] = round(tokens)
            named = {name: round(size) for name, size in zip(COLUMNS, bytes_, strict=True) if size}
            found["bytes of a turn's columns"] = json.dumps(named)
        try:
            pages = dict(
                database.execute(
                    "SELECT CASE WHEN name LIKE '%turn%' THEN 'turns' ELSE 'rest' END, sum(pgsize) "
                    "FROM dbstat GROUP BY 1"
                ).fetchall()
            )
        except sqlite3.OperationalError:  # this SQLite was built without dbstat
            pages = {}
        if turns and "turns" in pages:
            found["bytes on disk per turn, with indexes"] = round(pages["turns"] / turns)
    return found


def _valkey(stack: Stack) -> dict[str, Any]:
    with Redis.from_url(stack.config.redis) as client:
        keys = list(client.scan_iter("gen:turn*", count=1000))[:500]
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.memory_usage(key)
            pipe.xlen(key)
        sizes = pipe.execute()
        memory = client.info("memory")["used_memory"]
        clients = client.info("clients")["connected_clients"]
    found: dict[str, Any] = {"Valkey, bytes in use": memory, "Valkey, clients": clients}
    if keys:
        found["Valkey, bytes of a reply's log, median"] = round(statistics.median(sizes[::2]))
        found["entries of a reply's log, median"] = round(statistics.median(sizes[1::2]))
    return found
