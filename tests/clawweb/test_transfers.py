"""Exports and imports as users start them: rows, leases, files, the API, the page, the commands."""

from __future__ import annotations

import json
import os
import stat
import time
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from clawweb import transfer_run
from clawweb.config import config
from clawweb.models import Consent, Transfer, TransferState, Turn, User
from clawweb.selectors import quotas
from clawweb.services import accounts, erasure, imports, transfers
from clawweb.services.errors import AlreadyRunning, LeaseLost, NotRecorded, TooLarge
from clawweb.worker import STOP
from tests.factories import down, make_turn, up
from tests.recorded import brought_in_by_worker, exported_by_worker

pytestmark = pytest.mark.usefixtures("valkey_server", "engine", "transfer_files")


def files() -> list[str]:
    return sorted(path.name for path in transfers.folder().iterdir())


def lines_of(row: Transfer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in transfers.file_of(row).read_text().splitlines()]


def conversation_of(user: User) -> bytes:
    return transfers.file_of(exported_by_worker(user)).read_bytes()


# A transfer's life


def test_an_export_ends_as_a_file_that_only_we_can_read(alice: User) -> None:
    down(make_turn(alice))
    row = exported_by_worker(alice)
    assert (row.state, row.done, row.total, row.note) == (TransferState.DONE, 2, 2, "Lines: 2.")
    assert [line["type"] for line in lines_of(row)] == ["session", "turn"]
    path = transfers.file_of(row)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert files() == [path.name]


@pytest.mark.parametrize("shape", ["kto", "dpo", "sft"])
def test_samples_are_exported_in_each_shape(alice: User, shape: str) -> None:
    first = make_turn(alice, "Why?")
    up(make_turn(alice, "Why?", session=first.session))
    down(first)
    assert len(lines_of(exported_by_worker(alice, shape))) == (2 if shape == "kto" else 1)


def test_nothing_to_export_is_an_empty_file(alice: User) -> None:
    row = exported_by_worker(alice)
    assert (row.state, row.note, lines_of(row)) == (TransferState.DONE, "Lines: 0.", [])


def test_who_has_erased_a_chat_today_can_export_everything(alice: User) -> None:
    turn = make_turn(alice, prompt_tokens=30, reply_tokens=12)
    erasure.bury("session", turn.session.public_id)
    erasure.finish()
    row = exported_by_worker(alice, "everything")
    assert row.state == TransferState.DONE, row.note
    with zipfile.ZipFile(transfers.file_of(row)) as archive:
        profile = json.loads(archive.read("profile.jsonl"))
    assert profile["erased_tokens"] == 42
    assert profile["erased_tokens_since"] == quotas.day().date().isoformat()


def test_one_export_of_a_user_at_a_time(alice: User, bob: User) -> None:
    transfers.queue_export(user=alice)
    with pytest.raises(AlreadyRunning):
        transfers.queue_export(user=alice, shape="kto")
    transfers.queue_export(user=bob)
    transfers.queue_import(user=alice, chunks=[b"{}"])


def test_one_transfer_runs_at_a_time_and_the_next_is_found(alice: User, bob: User) -> None:
    first, second = (transfers.queue_export(user=user) for user in (alice, bob))
    assert transfers.claim(first.public_id)
    assert not transfer_run.run(second.public_id)
    assert [row.pk for row in transfers.forgotten()] == [second.pk]


def lapse(row: Transfer) -> None:
    Transfer.objects.filter(pk=row.pk).update(lease_until=timezone.now() - timedelta(seconds=1))


def test_a_worker_that_died_is_replaced_and_its_half_is_never_served(alice: User) -> None:
    make_turn(alice)
    row = transfers.queue_export(user=alice)
    dead = transfers.claim(row.public_id)
    assert dead
    half = transfers.folder() / f"{row.public_id}.{dead.lease_token}.part"
    half.write_text("half")
    left = half.with_suffix(".jsonl")  # it died after the file was whole, before the row said so
    left.write_text("whole")
    assert not transfer_run.run(row.public_id)  # its lease still holds
    lapse(row)
    assert [found.pk for found in transfers.forgotten()] == [row.pk]
    assert transfer_run.run(row.public_id)
    row.refresh_from_db()
    assert len(lines_of(row)) == 2
    assert not left.exists()
    with pytest.raises(LeaseLost):
        transfers.advance(dead, done=1, total=2)
    with pytest.raises(LeaseLost):
        transfers.end(dead, note="mine", file=half, succeeded=True)
    row.refresh_from_db()
    assert row.note == "Lines: 2."


def test_what_kills_its_worker_each_time_fails(alice: User) -> None:
    row = transfers.queue_export(user=alice)
    for _ in range(transfers.MAX_ATTEMPTS):
        assert transfers.claim(row.public_id)
        lapse(row)
    assert not transfer_run.run(row.public_id)
    row.refresh_from_db()
    assert row.state == TransferState.FAILED
    assert "died each time" in row.note


def test_a_worker_that_is_asked_to_end_puts_it_back(alice: User) -> None:
    make_turn(alice)
    row = transfers.queue_export(user=alice)
    STOP.set()
    try:
        assert not transfer_run.run(row.public_id)
    finally:
        STOP.clear()
    row.refresh_from_db()
    assert (row.state, row.lease_token) == (TransferState.QUEUED, "")
    assert files() == []
    assert transfer_run.run(row.public_id)


def test_progress_is_told_while_it_is_made(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_run, "PROGRESS_SECONDS", 0)
    told = []
    monkeypatch.setattr(transfers, "advance", lambda row, **values: told.append(values))
    for _ in range(3):
        make_turn(alice)
    row = transfers.queue_export(user=alice)
    transfer_run.run(row.public_id)
    assert [values["done"] for values in told] == [1, 2, 3, 4, 5, 6, 6]
    assert {values["total"] for values in told} == {6}


def test_a_disk_that_is_full_is_told(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    make_turn(alice)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    row = exported_by_worker(alice)
    assert row.state == TransferState.FAILED
    assert row.note == "The disk is full. Try again when there is room."
    assert files() == []


def test_a_worker_that_fails_after_it_was_replaced_writes_nothing(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = transfers.queue_export(user=alice)

    def replaced(_: Any) -> None:
        lapse(row)
        assert transfers.claim(row.public_id)
        raise OSError("the file is gone")

    monkeypatch.setattr(transfer_run, "_export", replaced)
    assert transfer_run.run(row.public_id)
    row.refresh_from_db()
    assert (row.state, row.note) == (TransferState.RUNNING, "")


def test_what_was_erased_while_it_was_written_leaves_no_file(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_turn(alice)
    row = transfers.queue_export(user=alice)
    end = transfers.end

    def erased(*args: Any, **values: Any) -> None:
        Transfer.objects.all().delete()
        end(*args, **values)

    monkeypatch.setattr(transfers, "end", erased)
    assert not transfer_run.run(row.public_id)
    assert files() == []


def test_what_breaks_is_told(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_run, "lines_of", lambda *_: 1 / 0)
    row = exported_by_worker(alice)
    assert (row.state, row.note) == (
        TransferState.FAILED,
        "It broke, and the log says more: ZeroDivisionError",
    )


def test_files_are_erased_after_seven_days(alice: User, bob: User) -> None:
    old, new = exported_by_worker(alice), exported_by_worker(bob)
    stray = transfers.folder() / "file-x.1-y.part"
    stray.write_text("left by a worker that died")
    young = transfers.folder() / "file-z.1-y.part"
    young.write_text("being written")
    os.utime(stray, (0, time.time() - 2 * 86400))
    Transfer.objects.filter(pk=old.pk).update(finished_at=timezone.now() - timedelta(days=8))
    transfers.erase_old()
    old.refresh_from_db()
    assert files() == sorted([young.name, Path(new.path).name])
    assert old.path == ""


# Bringing in


def test_what_was_exported_comes_in_again(alice: User, bob: User) -> None:
    down(make_turn(alice, "Why?"))
    row = brought_in_by_worker(bob, conversation_of(alice))
    assert row.state == TransferState.DONE
    assert row.note == "New sessions: 1, turns: 1, ratings: 1."
    assert (row.shape, row.done, row.total) == ("conversations", 2, 2)
    assert Turn.objects.filter(session__user=bob).count() == 1


def test_what_was_sent_in_is_erased_when_it_is_in_the_rows(alice: User) -> None:
    row = brought_in_by_worker(alice, b"nonsense\n")
    assert (row.state, files()) == (TransferState.FAILED, [])
    assert row.note.splitlines()[1].startswith("line 1: it is not JSON")


def test_an_import_that_died_in_the_middle_is_done_over(
    alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        make_turn(alice)
    raw = conversation_of(alice)
    monkeypatch.setattr(imports, "AT_ONCE", 2)
    row = transfers.queue_import(user=bob, chunks=[raw])
    advance = transfers.advance

    def dies(held: Transfer, *, done: int, total: int) -> None:
        if done > 4:
            raise KeyboardInterrupt
        advance(held, done=done, total=total)

    monkeypatch.setattr(transfers, "advance", dies)
    with pytest.raises(KeyboardInterrupt):
        transfer_run.run(row.public_id)
    assert Turn.objects.filter(session__user=bob).count() == 2
    monkeypatch.setattr(transfers, "advance", advance)
    lapse(row)
    assert transfer_run.run(row.public_id)
    assert Turn.objects.filter(session__user=bob).count() == 4
    row.refresh_from_db()
    assert "Here already: 2." in row.note


def test_a_file_that_is_too_large_is_refused_at_once(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "MAX_UPLOAD", 10)
    with pytest.raises(TooLarge):
        transfers.queue_import(user=alice, chunks=[b"12345", b"67890", b"1"])
    assert files() == []
    assert not Transfer.objects.exists()


def test_who_keeps_nothing_cannot_bring_in(alice: User) -> None:
    alice.consent = Consent.NOTHING
    alice.save()
    with pytest.raises(NotRecorded):
        transfers.queue_import(user=alice, chunks=[b"{}"])
    assert files() == []


def test_a_change_of_mind_before_it_runs_holds(alice: User) -> None:
    row = transfers.queue_import(user=alice, chunks=[b"{}"])
    accounts.set_consent(user=alice, consent="nothing")
    transfer_run.run(row.public_id)
    row.refresh_from_db()
    assert row.state == TransferState.FAILED
    assert "keep nothing" in row.note
    assert files() == []


# Commands


def said_by(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    call_command(*args)
    return capsys.readouterr().out


def test_the_commands_take_out_and_bring_in(
    alice: User, bob: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    down(make_turn(alice, "Why?"))
    path = tmp_path / "alice.jsonl"
    call_command("exportdata", "alice", "--output", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == said_by(capsys, "exportdata", "alice")
    assert said_by(capsys, "importdata", "bob", str(path)).startswith("New sessions: 1, turns: 1")
    assert json.loads(said_by(capsys, "exportdata", "bob", "--shape", "kto"))["label"] is False
    for wrong in (["exportdata", "nobody"], ["importdata", "alice", "gone.jsonl"]):
        with pytest.raises(CommandError):
            call_command(*wrong)
    (tmp_path / "wrong.csv").write_text("a,b\n1,2\n")
    with pytest.raises(CommandError, match="Lines left out: 2"):  # a script must not go on
        call_command("importdata", "bob", str(tmp_path / "wrong.csv"))
    with pytest.raises(CommandError):  # what is there is not written over
        call_command("exportdata", "alice", "--output", str(path))


def test_an_export_to_a_file_that_breaks_off_leaves_none(
    alice: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_turn(alice)
    path = tmp_path / "alice.jsonl"

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(CommandError, match="No space left"):
            call_command("exportdata", "alice", "--output", str(path))
    assert not path.exists()
    call_command("exportdata", "alice", "--output", str(path))  # its name is free


def test_sessions_are_counted_as_upstream_counts_them(
    alice: User, bob: User, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = make_turn(alice, "private words")
    make_turn(alice, session=turn.session, parent=turn)
    make_turn(alice, session=turn.session, turn_type="side")
    up(turn)
    make_turn(bob)
    told = json.loads(said_by(capsys, "inspect_sessions", "--json"))
    assert told["totals"] == {"users": 2, "sessions": 2, "turns_main": 3, "turns_side": 1}
    assert told["samples"] == {"ready": 1}
    assert [(row["user"], row["turns_main"], row["turns_side"]) for row in told["sessions"]] == [
        ("bob", 1, 0),
        ("alice", 2, 1),
    ]
    assert told["sessions"][1]["samples"] == {"ready": 1}

    table = said_by(capsys, "inspect_sessions", "--user", "alice")
    assert "1 session, 2 main turns, 1 side turn" in table
    assert "ready 1" in table
    assert turn.session.public_id in table
    assert "private words" not in table
    assert "bob" not in table


def test_the_list_of_sessions_has_an_end(alice: User, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        make_turn(alice)
    table = said_by(capsys, "inspect_sessions", "--limit", "2")
    assert "3 sessions" in table
    assert table.count("sess-") == 2
    assert "1 more" in table
    with pytest.raises(CommandError):
        call_command("inspect_sessions", "--user", "nobody")


def test_the_folder_is_in_the_data_folder() -> None:
    assert transfers.folder() == config().var / "transfers"
