"""Two web processes, three Celery workers and two model servers on one host: one system.

`make test-cluster` runs it: it starts three systems, which takes longer than CI has.
Each server is a `manage.py up --parts vllm` of its own; the rest knows both by their addresses.
That any web process reads on any reply is in test_web_workers.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from clawweb.stack.parts import worker_gpu
from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.types import Policy
from tests.loop.conftest import rated_turns
from tests.loop.person import ENDED, JOB_SECONDS, Person, person, rows, wait_for
from tests.realstack import QUICK, Stack, new_stack, running, started

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not os.environ.get("TESTS_CLUSTER"), reason="make test-cluster runs it"),
]
KEY = "the-servers-key"


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Stack]]:
    """Each with its own core: two servers would both take the first."""
    with ExitStack() as both:
        yield [
            both.enter_context(running("--parts", "vllm", vllm_key=KEY, vllm_cpu_bind=str(core)))
            for core in sorted(os.sched_getaffinity(0))[:2]
        ]


@pytest.fixture(scope="module")
def cluster(servers: list[Stack]) -> Iterator[Stack]:
    urls = ",".join(server.config.vllm for server in servers)
    with running(**QUICK, vllm_url=urls, vllm_key=KEY, web_workers="2") as stack:
        yield stack


@contextmanager
def second_gpu_worker(cluster: Stack) -> Iterator[None]:
    command = ["worker-gpu-2@" + word.partition("@")[2] if word.startswith("worker-gpu@") else word
               for word in worker_gpu(cluster.config).command]  # fmt: skip
    log = cluster.var / "log" / "worker-gpu-2.log"
    with log.open("w") as output:
        worker = subprocess.Popen(command, env=cluster.env, stdout=output, stderr=output)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def held(server: Stack) -> dict[str, str]:
    """What a server serves, by name, with the folder."""
    models = httpx.get(
        f"{server.config.vllm}/v1/models",
        headers={"Authorization": f"Bearer {KEY}"},
        trust_env=False,
        timeout=30,
    ).json()["data"]
    return {model["id"]: model["root"] for model in models if model["id"] != "base"}


def test_one_job_one_version_on_both_servers_and_one_server_may_die(
    cluster: Stack, servers: list[Stack]
) -> None:
    with person(cluster, "cluster-alice") as alice, second_gpu_worker(cluster):
        adapter, folder = a_version(alice, servers)
        assert alice.answerer() == adapter

        servers[0].stop()
        assert {alice.answerer(f"Question {n}?") for n in range(3)} == {adapter}

        servers[0].start("--parts", "vllm")  # it has forgotten everything
        wait_for(
            "the server that came back holds the version",
            lambda: held(servers[0]).get(adapter) == folder,
            timeout=60,
        )
        assert alice.answerer() == adapter


def a_version(alice: Person, servers: list[Stack]) -> tuple[str, str]:
    """Eight ratings; the job runs once, however many workers there are, and its version is served
    and proven everywhere when it goes live, not after. Its name and folder."""
    cluster = alice.stack
    rated_turns(alice, 8)
    job_id = wait_for("a job", alice.jobs, timeout=60)[0]["id"]
    wait_for(
        "a live version",
        lambda: (
            rows(cluster, "adapterversion", state="live") or alice.job(job_id)["state"] in ENDED
        ),
        timeout=JOB_SECONDS,
        every=0.2,
    )
    holding = [held(server) for server in servers]
    job = alice.until(job_id, "deployed")
    row = alice.row("adapterversion", name=job["child"])
    folder = str(cluster.var / row["path"])
    assert [names.get(job["child"]) for names in holding] == [folder, folder]
    probe = json.loads((cluster.var / f"{row['path']}.probe.json").read_text())
    for server in servers:
        seen = scored(server, job["child"], probe)
        assert seen == pytest.approx(probe["adapter_logprobs"], abs=1e-2)
    assert (job["attempt"], len(alice.jobs())) == (1, 1)
    assert len(rows(cluster, "event", kind="started")) == 1
    return str(job["child"]), folder


def test_a_backup_restored_into_an_empty_folder_answers_with_the_same_adapter(
    cluster: Stack, servers: list[Stack], tmp_path: Path
) -> None:
    """Rows, weights and names come back; the model servers find the version in its new place."""
    live = rows(cluster, "adapterversion", state="live")[0]
    probe = json.loads((cluster.var / f"{live['path']}.probe.json").read_text())
    before = scored(servers[0], live["name"], probe)
    cluster.manage("backup", str(tmp_path / "backup.zip"))
    cluster.stop()
    urls = ",".join(server.config.vllm for server in servers)
    restored = new_stack(**QUICK, vllm_url=urls, vllm_key=KEY)
    restored.manage("restore", str(tmp_path / "backup.zip"))
    with started(restored), person(restored, "cluster-alice") as alice:
        folder = str(restored.var / live["path"])
        wait_for(
            "both servers have it from its new folder",
            lambda: [held(server).get(live["name"]) for server in servers] == [folder, folder],
            timeout=60,
        )
        assert alice.answerer() == live["name"]
        assert scored(servers[0], live["name"], probe) == pytest.approx(before, abs=1e-4)


def scored(server: Stack, adapter: str, probe: dict[str, Any]) -> list[float]:
    """The probe's log-probs by this server."""
    engine = build_engine(EngineConfig(url=server.config.vllm, key=KEY))
    ids = probe["prompt_ids"], probe["response_ids"]
    return asyncio.run(engine.score(*ids, policy=Policy(adapter=adapter)))
