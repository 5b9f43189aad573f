"""PostgreSQL dies and comes back under people who ask: each is told so, nothing that was
acknowledged is lost, and no thread keeps a connection that is dead.

The server is the test's own. No model server: what is asked is saved, and refused in words.
With a model, and with ratings, `tests/loop/test_kills.py` does it where it runs on PostgreSQL.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.chaos.faults import RESTARTED, Target, server_crashed
from bench.chaos.people import people
from bench.chaos.run import break_things, promises
from tests.loop.person import person, wait_for
from tests.prepare import missing
from tests.realstack import QUICK, Stack, free_ports, running
from tests.services import are_there, postgres, postgres_folder

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

CRASHES, SEED = 3, 5
THREADS = 24  # three times as many requests at once as a process has threads for its database


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    if not are_there() and missing("POSTGRESQL", "THE TESTS OF ITS DEATH"):
        pytest.fail("no PostgreSQL")
    if not postgres_folder():
        pytest.skip("no PostgreSQL")
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    with (
        tempfile.TemporaryDirectory(prefix="clawweb-postgres-") as folder,  # its user must get in
        postgres(Path(folder)) as url,
        running(
            "--parts", "valkey,web,generator,worker-light,beat",
            **{**QUICK, "database_url": url, "vllm_url": nobody},
        ) as stack,
    ):  # fmt: skip
        yield stack


def test_nothing_acknowledged_is_lost_and_each_refusal_says_why(stack: Stack) -> None:
    chance = random.Random(SEED)
    with people(stack, 3, SEED) as users:
        wait_for("questions", lambda: all(user.told.asked > 3 for user in users), timeout=180)
        target = Target(stack=stack, disk=None)
        done, broken = break_things(target, [RESTARTED] * CRASHES, chance, (1.0, 3.0))
    assert (len(done), broken) == (CRASHES, [])
    assert promises(stack, users) == []


def test_no_connection_that_died_is_used_again(stack: Stack) -> None:
    """Each thread has one; each would fail once, for one person each."""
    with person(stack, "restart-alice") as alice:

        def all_at_once() -> list[int]:
            with ThreadPoolExecutor(THREADS) as pool:
                asked = [pool.submit(alice.http.get, "/v1/models") for _ in range(THREADS)]
                return [each.result().status_code for each in asked]

        assert all_at_once() == [200] * THREADS
        server_crashed(stack)
        time.sleep(0.5)
        assert all_at_once() == [200] * THREADS
