"""What must hold when everything has come to rest, read from the rows and the files alone."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Query = Callable[[str], list[Row]]  # SQL to rows

UNFINISHED = "('pending', 'streaming')"
ACTIVE = "('queued', 'loading', 'training', 'gating', 'deploying')"


def at_rest(query: Query) -> list[str]:
    """What still moves; empty when nothing does."""
    busy = [
        ("replies", f"SELECT 1 FROM clawweb_turn WHERE state IN {UNFINISHED}"),
        ("jobs", f"SELECT 1 FROM clawweb_trainingjob WHERE state IN {ACTIVE}"),
        ("ratings to settle", "SELECT 1 FROM clawweb_trainingsample WHERE state = 'waiting'"),
    ]
    return [name for name, sql in busy if query(sql)]


def violations(query: Query, var: Path) -> list[str]:
    """Every broken promise in words, except those about what callers were told."""
    return [
        *samples_end_with_a_reason(query),
        *samples_train_once(query),
        *one_live_version_that_passed(query),
        *files_are_whole(query, var),
        *nobody_answers_with_anothers(query),
    ]


def samples_end_with_a_reason(query: Query) -> list[str]:
    found = [
        f"sample {row['id']} is claimed and no job runs"
        for row in query(
            "SELECT s.id FROM clawweb_trainingsample s LEFT JOIN clawweb_trainingjob j "
            f"ON j.id = s.job_id AND j.state IN {ACTIVE} WHERE s.state = 'claimed' AND j.id IS NULL"
        )
    ]
    found += [
        f"sample {row['id']} is dropped without a reason"
        for row in query(
            "SELECT id FROM clawweb_trainingsample WHERE state = 'dropped' AND drop_reason = ''"
        )
    ]
    return found + [
        f"sample {row['id']} is trained and names no version"
        for row in query(
            "SELECT id FROM clawweb_trainingsample WHERE state = 'trained' AND adapter_id IS NULL"
        )
    ]


def samples_train_once(query: Query) -> list[str]:
    """By one successful job, and one open sample per turn."""
    twice = query(
        "SELECT js.sample_id, COUNT(*) AS jobs FROM clawweb_jobsample js "
        "JOIN clawweb_trainingjob j ON j.id = js.job_id "
        "WHERE js.role = 'new' AND j.state = 'deployed' GROUP BY js.sample_id HAVING COUNT(*) > 1"
    )
    open_twice = query(
        "SELECT turn_id FROM clawweb_trainingsample WHERE state IN ('waiting', 'ready') "
        "GROUP BY turn_id HAVING COUNT(*) > 1"
    )
    return [f"sample {row['sample_id']} was learned by {row['jobs']} jobs" for row in twice] + [
        f"turn {row['turn_id']} has two samples that count" for row in open_twice
    ]


def one_live_version_that_passed(query: Query) -> list[str]:
    found = [
        f"user {row['user_id']} has {row['n']} live versions"
        for row in query(
            "SELECT user_id, COUNT(*) AS n FROM clawweb_adapterversion WHERE state = 'live' "
            "GROUP BY user_id HAVING COUNT(*) > 1"
        )
    ]
    found += [
        f"{row['name']} is {row['state']} and its gate was never measured"
        for row in query(
            "SELECT a.name, a.state FROM clawweb_adapterversion a "
            "LEFT JOIN clawweb_gateresult g ON g.adapter_id = a.id AND g.ok IS NOT NULL "
            "WHERE a.state IN ('live', 'standby') AND g.id IS NULL"
        )
    ]
    failed = query(
        "SELECT a.name, a.state, g.measure, g.ok FROM clawweb_adapterversion a "
        "JOIN clawweb_gateresult g ON g.adapter_id = a.id WHERE a.state IN ('live', 'standby')"
    )
    return found + [
        f"{row['name']} is {row['state']} and failed its gate: {row['measure']}"
        for row in failed
        if row["ok"] is not None and not row["ok"]
    ]


def files_are_whole(query: Query, var: Path) -> list[str]:
    found = []
    for row in query(
        "SELECT name, path, sha256 FROM clawweb_adapterversion WHERE state IN ('live', 'standby')"
    ):
        weights = var / row["path"] / "adapter_model.safetensors"
        if not weights.is_file():
            found.append(f"{row['name']} has no weights on disk")
        elif hashlib.sha256(weights.read_bytes()).hexdigest() != row["sha256"]:
            found.append(f"{row['name']} has other weights on disk than its gate saw")
    return found


def nobody_answers_with_anothers(query: Query) -> list[str]:
    rows = query(
        "SELECT t.public_id, t.adapter_name FROM clawweb_turn t "
        "JOIN clawweb_chatsession s ON s.id = t.session_id "
        "JOIN clawweb_adapterversion a ON a.id = t.adapter_id WHERE a.user_id <> s.user_id"
    )
    return [f"{row['public_id']} was answered by {row['adapter_name']}, another's" for row in rows]


def told_and_kept(
    query: Query,
    *,
    asked: dict[str, int],
    replies: dict[str, tuple[str, str]],
    ratings: dict[str, list[int]],
    tries: Counter[str],
) -> list[str]:
    """What callers were told is there, once.

    `asked`: requests by user, answered or not. `replies`: message and reply by turn, of each
    answered request. `ratings`: values by turn, acknowledged, in order. `tries`: attempts to rate,
    by turn.
    """
    turns = {row["public_id"]: row for row in query("SELECT * FROM clawweb_turn")}
    said: dict[str, list[int | None]] = {}
    for row in query(
        "SELECT t.public_id, f.value FROM clawweb_feedback f "
        "JOIN clawweb_turn t ON t.id = f.turn_id ORDER BY f.id"
    ):
        said.setdefault(row["public_id"], []).append(row["value"])
    found = [
        f"{row['username']} asked {asked[row['username']]} times at most and has {row['n']} turns"
        for row in query(
            "SELECT u.username, COUNT(*) AS n FROM clawweb_turn t "
            "JOIN clawweb_chatsession s ON s.id = t.session_id "
            "JOIN clawweb_user u ON u.id = s.user_id GROUP BY u.username"
        )
        if row["n"] > asked.get(row["username"], row["n"])
    ]
    found += asked_once(query, asked)
    for name, (message, reply) in replies.items():
        if name not in turns:
            found.append(f"{name} was answered and is not there")
        elif json.loads(turns[name]["input_messages"])[-1]["content"] != message:
            found.append(f"{name} holds another message than its caller sent")
        elif turns[name]["reply"] != reply:
            found.append(f"{name} holds another text than its caller got")
    for name, values in ratings.items():
        rows = said.get(name, [])
        if not _is_within(values, rows):
            found.append(f"{name} was rated {values} and holds {rows}")
        elif len(rows) > tries[name]:
            found.append(f"{name} was rated {tries[name]} times at most and holds {rows}")
    return found


def asked_once(query: Query, people: Container[str]) -> list[str]:
    """Each message of theirs is a turn at most once: these people send no two that are the same."""
    kept = Counter(
        (row["username"], json.loads(row["input_messages"])[-1]["content"])
        for row in query(
            "SELECT u.username, t.input_messages FROM clawweb_turn t "
            "JOIN clawweb_chatsession s ON s.id = t.session_id "
            "JOIN clawweb_user u ON u.id = s.user_id"
        )
    )
    return [
        f"{user} asked once and has {times} turns: {message}"
        for (user, message), times in kept.items()
        if times > 1 and user in people
    ]


def _is_within(wanted: Iterable[int], rows: list[int | None]) -> bool:
    """Whether the values are there in this order, others between them or not."""
    rest = iter(rows)
    return all(value in rest for value in wanted)
