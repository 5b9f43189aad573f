"""Parts of the real system are killed, stopped and robbed of files; nothing is lost.

What happened is read from the API and the rows alone. Waits are upper bounds for a machine that
does other things; only what must not take long at all has a short one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollouts.types import Policy
from tests.loop.conftest import Lesson, rated_turns
from tests.loop.person import (
    ENDLESS,
    LIKELY,
    Person,
    engine_of,
    held_still,
    listed,
    person,
    rows,
    running_requests,
    unread,
    wait_for,
)
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

STORY = "Tell me a long story about a fox, a river and a very old bridge."


def pieces_of(response: httpx.Response) -> Iterator[str]:
    """The texts of a streamed reply; a reply that broke ends with its error."""
    for line in response.iter_lines():
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise InterruptedError(chunk["error"]["message"])
            yield chunk["choices"][0]["delta"].get("content", "")


@contextmanager
def story(someone: Person, **more: Any) -> Iterator[tuple[str, Iterator[str]]]:
    """A long reply that has begun, streamed: its turn, and its pieces."""
    message = {"role": "user", "content": STORY}
    body = {"messages": [message], "max_tokens": 600, "stream": True, **more}
    with someone.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        pieces = pieces_of(response)
        first = next(piece for piece in pieces if piece)
        yield response.headers["X-Clawweb-Turn"], chain([first], pieces)


# The generator and its callers


def test_a_caller_who_hangs_up_ends_the_generation(stack: Stack, bob: Person) -> None:
    with story(bob, **LIKELY) as (turn_id, _):
        pass
    wait_for("vLLM at rest", lambda: not running_requests(stack), timeout=20)
    wait_for("the turn ended", lambda: bob.turn(turn_id)["state"] != "streaming", timeout=20)
    turn = bob.turn(turn_id)
    assert turn["state"] == "stopped"
    assert turn["reply"]
    row = bob.row("turn", public_id=turn_id)
    assert len(listed(row, "logprobs")) == len(listed(row, "response_ids")) < 600


def test_a_caller_who_hangs_up_before_the_whole_reply_ends_it_too(
    stack: Stack, bob: Person
) -> None:
    def turns() -> Any:
        answer = bob.http.get("/api/sessions/hung-up")
        return answer.json()["turns"] if answer.status_code == 200 else []

    body = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 600, **ENDLESS}
    with unread(bob, body, session="hung-up"):
        wait_for("a reply", lambda: [t for t in turns() if t["state"] == "streaming"], timeout=60)
    (turn,) = turns()
    wait_for("vLLM at rest", lambda: not running_requests(stack), timeout=20)
    wait_for("the turn stopped", lambda: bob.turn(turn["id"])["state"] == "stopped", timeout=20)


def test_a_killed_generator_leaves_an_interrupted_reply_with_its_text(
    stack: Stack, bob: Person
) -> None:
    with story(bob, **ENDLESS) as (turn_id, pieces):
        wait_for("a checkpoint", lambda: len(bob.turn(turn_id)["reply"]) > 20, timeout=30)
        stack.kill("generator")
        read = ""
        with contextlib.suppress(InterruptedError):
            for piece in pieces:
                read += piece
            pytest.fail("half a reply was passed off as a whole one")
    turn = bob.turn(turn_id)
    assert turn["state"] == "interrupted"
    assert turn["error"]
    assert len(turn["reply"]) > 20
    # The row is at most a second behind what was streamed.
    assert read.startswith(turn["reply"])
    receipt = bob.rate(turn_id)
    assert (receipt["state"], receipt["drop_reason"]) == ("not_used", "no_logprobs")
    wait_for("vLLM at rest", lambda: not running_requests(stack), timeout=20)
    assert bob.turn(bob.ask("Are you there?"))["state"] == "complete"


# The training worker


def test_a_killed_trainer_is_succeeded_by_another_and_nothing_trains_twice(stack: Stack) -> None:
    with person(stack, "fault-carol") as carol:
        turns = rated_turns(carol, 3)
        job_id = carol.post("/api/jobs", status=202)["id"]
        wait_for("its first step", lambda: carol.points(job_id), timeout=240)
        stack.kill("worker-gpu")
        assert carol.receipt(turns[0])["state"] == "in_training"
        job = carol.until(job_id, "deployed", "refused")
        assert (job["attempt"], job["samples"]) == (2, 3)
        versions = carol.adapters()
        assert [row["name"] for row in versions] == [job["child"]]
        folders = stack.config.var / carol.row("adapterversion", name=job["child"])["path"]
        assert [path.name for path in folders.parent.iterdir() if path.is_dir()] == ["v1.2"]
        points = carol.points(job_id)
        assert [point["step"] for point in points] == list(range(1, len(points) + 1))
        assert {point["attempt"] for point in points} == {1, 2}
        receipts = [carol.receipt(turn) for turn in turns]
        if job["state"] == "deployed":
            assert {(r["state"], r["adapter"]) for r in receipts} == {("learned", job["child"])}
            assert carol.answerer() == job["child"]
        else:
            assert {r["state"] for r in receipts} == {"counted"}
        number = carol.row("trainingjob", public_id=job_id)["id"]
        assert len(rows(stack, "jobsample", job_id=number, role="new")) == 3
        assert len(carol.jobs()) == 1


# The queue


def test_without_valkey_ratings_are_saved_and_work_resumes_by_itself(stack: Stack) -> None:
    if stack.config.redis_url:
        pytest.skip("this Redis is not ours to stop")
    with person(stack, "fault-dave") as dave:
        turns = [dave.ask("What is gravity?", seed=i, max_tokens=4) for i in range(8)]
        for turn in turns[:6]:
            dave.rate(turn)
        with held_still(stack, "valkey"):
            assert dave.rate(turns[6])["state"] == "counted"
            assert dave.turn(dave.ask("Are you there?", max_tokens=4))["state"] == "complete"
            # The queue is asked to carry the job, and cannot.
            assert dave.rate(turns[7])["state"] in ("counted", "in_training")
            assert dave.jobs()[0]["trigger"] == "batch"
            # What it had in memory is gone for good.
            stack.kill("valkey")
        stack.wait_until_ready("valkey")
        job_id = dave.jobs()[0]["id"]
        dave.until(job_id, "loading", "training")
        assert dave.receipt(turns[0])["state"] == "in_training"
        dave.post(f"/api/jobs/{job_id}/cancel", status=202)
        job = dave.until(job_id, "cancelled")
        assert job["samples"] == 8
        wait_for("counted again", lambda: back(dave, turns), timeout=20)
        assert dave.turn(dave.ask("And now?", max_tokens=4))["state"] == "complete"


def back(someone: Person, turns: list[str]) -> bool:
    return {someone.receipt(turn)["state"] for turn in turns} == {"counted"}


# The version's files


def test_a_version_that_cannot_be_loaded_does_not_go_live(stack: Stack, lesson: Lesson) -> None:
    """The deployer is held still while the files of what it should deploy are broken."""
    alice = lesson.person
    lesson.back_to_v1()
    turns = rated_turns(alice, 2)
    job_id = alice.post("/api/jobs", status=202)["id"]
    alice.until(job_id, "gating")
    with held_still(stack, "worker-light"):
        job = alice.until(job_id, "deploying", "refused")
        if job["state"] == "deploying":
            row = alice.row("adapterversion", name=job["child"])
            weights = Path(stack.config.var / row["path"]) / "adapter_model.safetensors"
            os.truncate(weights, 1000)
    if job["state"] == "refused":
        pytest.skip("the gate refused the version, so there was none to deploy")
    job = alice.until(job_id, "failed")
    assert "could not be served" in job["reason"]
    assert alice.live() == lesson.adapter
    assert alice.answerer() == lesson.adapter
    child = next(row for row in alice.adapters() if row["name"] == job["child"])
    assert child["state"] == "refused"
    assert back(alice, [turn for turn in turns if alice.receipt(turn)["state"] != "held_back"])


# vLLM


def test_a_live_version_whose_files_are_gone_falls_back_and_says_so(
    stack: Stack, lesson: Lesson
) -> None:
    lesson.back_to_v1()
    alice = lesson.person
    folder = stack.config.var / alice.row("adapterversion", name=lesson.adapter)["path"]
    away = folder.with_name("away")
    # Out of the server first: it dies of a folder that vanishes under it.
    folder.rename(away)
    try:
        asyncio.run(engine_of(stack).unload(Policy(adapter=lesson.adapter)))
        answer = alice.chat("What is gravity?")
    finally:
        away.rename(folder)
    assert answer.status_code == 200
    assert answer.headers["X-Clawweb-Adapter"] == "base"
    assert "version 1" in answer.headers["X-Clawweb-Fallback"]
    turn = alice.turn(answer.json()["id"])
    assert (turn["version"], turn["adapter"]) == (0, None)
    receipt = alice.rate(turn["id"])
    assert (receipt["state"], receipt["drop_reason"]) == ("not_used", "fallback")
    # It is loaded again by itself, before anybody asks.
    wait_for("v1 served again", lambda: is_served(stack, lesson), timeout=180)
    assert alice.answerer() == lesson.adapter


def is_served(stack: Stack, lesson: Lesson) -> bool:
    return lesson.adapter in asyncio.run(engine_of(stack).loaded())
