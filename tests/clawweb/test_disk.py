"""A disk that fills up: nothing big starts, chats and ratings go on, nothing that was said is lost.

The lower half fills real disks of a few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test import Client

from clawweb import disk, training_run
from clawweb.config import config
from clawweb.copies import copy_sqlite
from clawweb.models import Feedback, JobState, TrainingJob, TransferState, Turn, User
from clawweb.selectors.agent import agent_status
from clawweb.services import feedback, jobs, serving, transfers
from clawweb.services.errors import DiskFull
from clawweb.stack import backup
from clawweb.stack.terminal import StackError
from tests.clawweb.test_training_run import job_of, quick  # noqa: F401  # few tokens
from tests.factories import down, make_turn, rated
from tests.recorded import exported_by_worker
from tests.small_disk import SmallDisk, small_disk_at

pytestmark = pytest.mark.usefixtures("engine")
MORE_THAN_ANY_DISK = 1 << 40  # MiB


@pytest.fixture
def full(setting: Any) -> None:
    setting(disk_free_mib=MORE_THAN_ANY_DISK)


# Below the reserve


def test_no_job_is_queued_or_taken_and_the_sweep_tries_again(alice: User, setting: Any) -> None:
    setting(batch=1)
    rated(alice, 1)
    job = jobs.queue_job(user=alice)
    setting(disk_free_mib=MORE_THAN_ANY_DISK)
    assert jobs.claim_job(job.public_id) is None
    assert jobs.forgotten_jobs() == [job]
    setting(disk_free_mib=0)
    assert jobs.claim_job(job.public_id) is not None


def test_who_asks_is_told_why_and_ratings_wait(client: Client, alice: User, full: None) -> None:
    rated(alice, 8)
    with pytest.raises(DiskFull, match=r"almost full.*Chats and ratings go on"):
        jobs.queue_job(user=alice)
    assert jobs.queue_batch(alice) is None
    assert "almost full" in agent_status(alice)["held_up"]
    client.force_login(alice)
    answer = client.post("/api/jobs", {}, content_type="application/json")
    assert (answer.status_code, answer.json()["title"]) == (507, "disk_full")
    assert agent_status(alice)["have"] == 8


@pytest.mark.usefixtures("transfer_files")
def test_no_export_or_import_starts(alice: User, setting: Any) -> None:
    waiting = transfers.queue_export(user=alice)
    setting(disk_free_mib=MORE_THAN_ANY_DISK)
    for ask in (
        lambda: transfers.queue_export(user=alice, shape="kto"),
        lambda: transfers.queue_import(user=alice, chunks=[b"{}"]),
    ):
        with pytest.raises(DiskFull):
            ask()
    assert transfers.claim(waiting.public_id) is None
    assert transfers.forgotten() == [waiting]
    setting(disk_free_mib=0)
    assert transfers.claim(waiting.public_id) is not None


def test_no_backup_is_begun(alice: User, full: None, tmp_path: Path) -> None:
    with pytest.raises(StackError, match="CLAWWEB_DISK_FREE_MIB"):
        backup.write_backup(config(), tmp_path / "backup.zip")
    assert list(tmp_path.iterdir()) == []


def test_operators_see_it_and_chats_are_not_turned_away(
    client: Client, admin: User, full: None
) -> None:
    found = client.get("/readyz").json()["parts"]
    assert found["disk"].startswith("low: ")
    assert found["database"] == "ok"
    client.force_login(admin)
    page = " ".join(client.get("/parts/system/").content.decode().split())
    assert "No job, export, import or backup starts below" in page
    assert f"clawweb_disk_reserve_bytes {float(MORE_THAN_ANY_DISK << 20)}" in client.get(
        "/metrics"
    ).content.decode()  # fmt: skip


def test_with_room_nothing_is_said(client: Client, alice: User, setting: Any) -> None:
    setting(disk_free_mib=0)
    assert client.get("/readyz").json()["parts"]["disk"] == "ok"
    assert agent_status(alice)["held_up"] == ""


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        OperationalError("database or disk is full"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_known_by_whoever_says_it_and_below_others_words(error: Exception) -> None:
    assert disk.is_full(error)
    outer = ValueError("saving failed")
    outer.__cause__ = error
    assert disk.is_full(outer)
    assert not disk.is_full(OSError(5, "Input/output error"))


# Filled to the last block


@pytest.fixture
def database_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    """The rows are on a disk of their own, as the product opens them."""
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL's disk is its own")
    monkeypatch.setattr("clawweb.events._send", lambda *_: None)
    ours = connections["default"]
    with small_disk_at(tmp_path / "disk", mib=16) as small:
        path = small.path / "clawweb.sqlite3"
        copy_sqlite(Path(ours.settings_dict["NAME"]), path)
        there = ours.copy("default")
        there.settings_dict = {**ours.settings_dict, "NAME": str(path)}
        connections["default"] = there
        try:
            yield small
        finally:
            there.close()
            connections["default"] = ours


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
def test_a_rating_is_saved_or_refused_and_none_that_was_saved_is_lost(
    database_there: SmallDisk, client: Client
) -> None:
    alice = User.objects.create_user("alice")
    turn = make_turn(alice)
    client.force_login(alice)
    acknowledged = rate_until_it_fails(database_there, turn, alice)
    body = {"value": 1, "comment": "x" * 3000}
    answer = client.post(
        f"/api/turns/{turn.public_id}/feedback", body, content_type="application/json"
    )
    assert (answer.status_code, answer.json()["title"]) == (507, "disk_full")
    assert "What was saved before is kept" in answer.json()["detail"]
    assert said_of(turn) == acknowledged
    assert Turn.objects.get().reply == turn.reply  # reading goes on
    database_there.empty()
    down(turn)
    assert len(said_of(turn)) == len(acknowledged) + 1
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA integrity_check")
        assert cursor.fetchall() == [("ok",)]


def rate_until_it_fails(small: SmallDisk, turn: Turn, user: User) -> list[str]:
    small.fill(but=256 << 10)
    acknowledged: list[str] = []

    def go_on() -> None:
        for number in range(1000):
            said = f"{number} " + "x" * 3000
            feedback.rate_turn(turn=turn, author=user, changes={"comment": said})
            acknowledged.append(said)

    with pytest.raises(OperationalError, match="disk is full"):
        go_on()
    return acknowledged


def said_of(turn: Turn) -> list[str]:
    return list(Feedback.objects.filter(turn=turn).order_by("id").values_list("comment", flat=True))


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
def test_a_version_that_finds_no_room_leaves_nothing_and_waits(alice: User) -> None:
    job = job_of(alice)
    home = config().var / serving.home_of(alice.pk)
    with small_disk_at(home, mib=1) as small:
        small.fill(but=20 << 10)
        assert not training_run.run(job.public_id)
        job.refresh_from_db()
        assert (job.state, job.attempt, job.reason) == (JobState.QUEUED, 1, "")
        assert job.events.last().text == "the disk was full"
        assert [path.name for path in home.iterdir()] == ["ballast"]
        TrainingJob.objects.filter(pk=job.pk).update(crashes=jobs.MAX_ATTEMPTS - 2)
        assert not training_run.run(job.public_id)
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert "no room on the disk" in job.reason
    assert agent_status(alice)["have"] == 3  # its ratings count again


def test_an_export_that_finds_no_room_says_so(alice: User) -> None:
    with small_disk_at(transfers.folder(), mib=1) as small:
        for number in range(40):
            make_turn(alice, f"{number} " + "x" * 3000)
        small.fill(but=40 << 10)
        row = exported_by_worker(alice)
        assert (row.state, row.path) == (TransferState.FAILED, "")
        assert row.note == "The disk is full. Try again when there is room."
        assert [path.name for path in transfers.folder().iterdir()] == ["ballast"]
