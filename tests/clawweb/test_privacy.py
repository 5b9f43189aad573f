"""Everything out, and everything gone: exports of all, erasure of people, retention by age."""

from __future__ import annotations

import json
import zipfile
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from clawweb import transfer_run
from clawweb.config import config
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    AuditEvent,
    ChatSession,
    Comparison,
    Event,
    StepMetric,
    Tombstone,
    TrainingJob,
    TrainingSample,
    Transfer,
    Turn,
    TurnState,
    User,
)
from clawweb.selectors.everything import everything
from clawweb.services import accounts, audit, erasure, jobs, retention, transfers
from clawweb.services.errors import LeaseLost, ServiceError
from clawweb.services.forgetting import erase_learning
from tests.clawweb.access_table import close
from tests.factories import claimed_job, make_adapter, make_turn, rated
from tests.recorded import brought_in, exported

pytestmark = pytest.mark.usefixtures("valkey_server", "engine", "transfer_files", "no_tombstones")


@pytest.fixture
def no_tombstones() -> Any:
    yield
    erasure.tombstone_file().unlink(missing_ok=True)


def lived(user: User) -> TrainingJob:
    """A user with one of everything, and a job that runs."""
    make_adapter(user, 1, AdapterState.LIVE)
    first, *_ = rated(user, 2)
    second = make_turn(user, session=first.session)
    Comparison.objects.create(user=user, kind="blind", first=first, second=second, verdict="tie")
    accounts.make_key(user=user, name="notebook")
    job = claimed_job(user)
    StepMetric.objects.create(job=job, attempt=1, step=1, values={"loss": 0.5})
    return job


# Everything out


def files_of(user: User) -> dict[str, list[dict[str, Any]]]:
    row = transfers.queue_export(user=user, shape="everything")
    assert transfer_run.run(row.public_id)
    path = transfers.file_of(Transfer.objects.get(pk=row.pk))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {
            name.removesuffix(".jsonl"): [
                json.loads(line) for line in archive.read(name).decode().splitlines()
            ]
            for name in archive.namelist()
            if name.endswith(".jsonl")
        }


def test_everything_that_is_kept_is_in_the_zip(alice: User, bob: User) -> None:
    job = lived(alice)
    make_turn(bob, "bob's own words")
    _, plain = accounts.make_key(user=bob, name="bob's")
    files = files_of(alice)
    assert set(files) == set(everything(alice))
    assert files["profile"][0]["username"] == "alice"
    turns = [line for line in files["conversations"] if line["type"] == "turn"]
    assert len(turns) == Turn.objects.filter(session__user=alice).count()
    assert {line["turn"] for line in files["samples"]} <= {line["id"] for line in turns}
    assert files["jobs"][0]["id"] == files["metrics"][0]["job"] == job.public_id
    assert files["versions"][0]["sha256"] == alice.adapters.get().sha256
    assert files["keys"][0]["name"] == "notebook"
    assert files["comparisons"][0]["verdict"] == "tie"
    assert "make_key" in [line["action"] for line in files["audit"]]
    text = json.dumps(files)
    hashed = set(alice.api_keys.values_list("hashed", flat=True))
    for secret in ("bob's own words", plain, alice.password, job.lease_token, *hashed):
        assert secret not in text


def test_the_zip_is_served_to_its_owner_alone(client: Client, alice: User, bob: User) -> None:
    files_of(alice)
    path = f"/api/exports/{Transfer.objects.get().public_id}/file"
    client.force_login(bob)
    assert client.get(path).status_code == 404
    client.force_login(alice)
    response = client.get(path)
    assert response["Content-Type"] == "application/zip"
    assert response["Content-Disposition"].endswith('.zip"')
    close(response)


def test_every_table_about_people_is_in_the_export_or_said_not_to_be(alice: User) -> None:
    """A table that somebody adds must be thought of."""
    tables = {
        relation.related_model.__name__
        for relation in User._meta.related_objects
        if relation.related_model._meta.app_label != "admin"
    }
    exported = {"ChatSession", "TrainingSample", "Comparison", "TrainingJob", "Event", "ApiKey"}
    exported |= {"AdapterVersion", "SavedView", "Transfer", "AuditEvent", "Feedback"}
    exported |= {"UserSession", "Authenticator", "SocialAccount"}
    assert tables - exported <= {
        "SignInLink",
        "User_groups",
        "User_user_permissions",
        "EmailAddress",
    }


# Gone


def test_a_user_goes_with_everything(alice: User, bob: User, engine: Any) -> None:
    lived(alice)
    lived(bob)
    folder = config().var / alice.adapters.get().path
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    name = alice.adapters.get().name
    sessions = set(alice.chat_sessions.values_list("public_id", flat=True))
    files_of(alice)
    file = config().var / Transfer.objects.get().path
    theirs = alice.pk
    before = {model: model.objects.count() for model in (Turn, TrainingSample, StepMetric)}

    erasure.erase_user(alice)
    assert not folder.parent.exists() or folder.exists()  # nothing half
    erasure.finish()

    assert not User.objects.filter(pk=theirs).exists()
    assert not folder.parent.exists()
    assert not file.exists()
    buried = set(Tombstone.objects.values_list("kind", "object_id"))
    assert ("version", name) in buried
    assert [who for kind, who in buried if kind == "user" and who.startswith(f"{theirs}.")]
    assert {("session", session) for session in sessions} <= buried
    assert "alice" not in erasure.tombstone_file().read_text()
    assert {model: model.objects.count() * 2 for model in before} == before  # Bob's are all there
    assert bob.adapters.exists()
    assert AuditEvent.objects.filter(action="erase_user", object_id="alice").exists()


def test_the_fence_is_first(alice: User) -> None:
    job = lived(alice)
    _, plain = accounts.make_key(user=alice, name="k")
    erasure.erase_user(alice)
    assert accounts.key_for(plain) is None
    assert not User.objects.get(pk=alice.pk).is_active
    assert TrainingJob.objects.get(pk=job.pk).state == "cancelled"
    with pytest.raises(LeaseLost):
        jobs.advance(job, phase="as if nothing had happened")


def test_a_reply_that_is_being_written_is_stopped_and_waited_for(alice: User) -> None:
    turn = make_turn(alice, state=TurnState.STREAMING)
    erasure.erase_user(alice)
    erasure.finish()
    turn.refresh_from_db()
    assert turn.stop_requested
    Turn.objects.filter(pk=turn.pk).update(state=TurnState.STOPPED)
    erasure.finish()
    assert not User.objects.filter(pk=alice.pk).exists()


def test_a_loaded_version_is_unloaded_before_its_files_go(alice: User, engine: Any) -> None:
    from asgiref.sync import async_to_sync

    from clawweb.engine import install_id
    from clawweb.selectors.learning import policy_of

    adapter = make_adapter(alice, 1)
    AdapterVersion.objects.filter(pk=adapter.pk).update(name=f"{install_id()}-u{alice.pk}-v1-ab")
    adapter.refresh_from_db()
    async_to_sync(engine.load)(policy_of(adapter))
    assert adapter.name in async_to_sync(engine.loaded)()
    erasure.erase_user(alice)
    erasure.finish()
    assert async_to_sync(engine.loaded)() == {}


def test_a_worker_that_ends_its_file_late_leaves_nothing(alice: User) -> None:
    theirs = alice.pk
    erasure.erase_user(alice)
    erasure.finish()
    late = config().var / "adapters" / f"u{theirs}" / "v1.1"
    late.mkdir(parents=True)
    erasure.finish()
    assert not late.parent.exists()


def test_a_restored_backup_is_erased_again(alice: User, bob: User) -> None:
    session = make_turn(bob).session
    erasure.erase_user(alice)
    erasure.bury("session", session.public_id)
    Tombstone.objects.all().delete()  # as the backup has it
    User.objects.filter(pk=alice.pk).update(is_active=True)
    assert erasure.replay() == 2
    assert erasure.replay() == 0
    erasure.finish()
    assert not User.objects.filter(pk=alice.pk).exists()
    assert not ChatSession.objects.filter(pk=session.pk).exists()
    assert User.objects.filter(pk=bob.pk).exists()


def test_versions_that_learned_from_a_chat_that_goes_after_a_restore_are_marked(
    alice: User,
) -> None:
    turn = rated(alice, 1)[0]
    learned = make_adapter(alice, 2, AdapterState.LIVE, parent=make_adapter(alice, 1))
    TrainingSample.objects.update(state="trained", adapter=learned)
    erasure.bury("session", turn.session.public_id)
    erasure.finish()
    assert not ChatSession.objects.exists()
    assert list(alice.adapters.filter(forgot_at=None)) == [learned.parent]


def test_a_line_torn_by_a_power_cut_costs_no_other(
    alice: User, caplog: pytest.LogCaptureFixture
) -> None:
    erasure.bury("session", "sess-1")
    with erasure.tombstone_file().open("a") as file:
        file.write('{"kind": "sess')
    erasure.bury("session", "sess-2")
    with erasure.tombstone_file().open("ab") as file:
        file.write(b"\0\xff\n[]\n7\n\n")
    Tombstone.objects.all().delete()  # as the backup has it
    assert erasure.replay() == 2
    assert set(Tombstone.objects.values_list("object_id", flat=True)) == {"sess-1", "sess-2"}
    assert "line 2 of tombstones.jsonl" in caplog.text


def test_what_is_brought_in_after_it_was_erased_stays(alice: User) -> None:
    """Twice, too: erased under its own name, and under the one that it had then."""
    turn = make_turn(alice)
    make_turn(alice, session=turn.session, parent=turn)
    lines = exported(alice)
    names = set()
    for _ in range(3):
        erase_learning(alice)
        brought_in(alice, lines)
        erasure.finish()
        again = brought_in(alice, lines).report
        assert (again.sessions, again.turns, again.known) == (0, 0, 2)
        assert Turn.objects.get(parent=None).children.count() == 1
        names.add(ChatSession.objects.get().public_id)
    assert len(names) == 3


def test_somebody_else_with_an_erased_number_after_a_restore_stays(alice: User) -> None:
    erasure.erase_user(alice)
    erasure.finish()
    newcomer = User.objects.create_user("newcomer", id=alice.pk)
    folder = config().var / make_adapter(newcomer, 1, AdapterState.LIVE).path
    erasure.finish()
    newcomer.refresh_from_db()
    assert newcomer.is_active
    assert folder.is_dir()


def test_erased_versions_that_a_restore_brings_back_go_again(alice: User, bob: User) -> None:
    gone = make_adapter(alice, 1, AdapterState.LIVE)
    theirs = make_adapter(bob, 1, AdapterState.LIVE)
    erasure.bury("version", gone.name)
    erasure.finish()
    gone.refresh_from_db()
    theirs.refresh_from_db()
    assert (gone.state, theirs.state) == (AdapterState.ERASED, AdapterState.LIVE)
    assert not (config().var / gone.path).exists()
    assert (config().var / theirs.path).exists()


def test_the_last_admin_stays(admin: User) -> None:
    with pytest.raises(ServiceError, match="the only admin"):
        erasure.erase_user(admin)
    assert User.objects.get(pk=admin.pk).is_active


def test_one_closes_ones_account_by_typing_ones_name(client: Client, alice: User) -> None:
    client.force_login(alice)
    client.post("/settings/delete/", {"name": "alicia"})
    assert User.objects.get(pk=alice.pk).is_active
    assert client.post("/settings/delete/", {"name": "alice"})["Location"] == "/signin/"
    assert not User.objects.get(pk=alice.pk).is_active
    assert client.get("/chat/").status_code == 302


def test_an_admin_erases_a_person(client: Client, admin: User, alice: User) -> None:
    lived(alice)
    client.force_login(admin)
    path = f"/admin/clawweb/user/{alice.pk}/delete/"
    assert "with all chats, ratings and versions" in client.get(path).content.decode()
    client.post(path, {"post": "yes"})
    erasure.finish()
    assert not User.objects.filter(pk=alice.pk).exists()


# What is old


@pytest.fixture
def old(alice: User) -> dict[str, Any]:
    """One of each, a month old; and as many that are new."""
    month = timezone.now() - timedelta(days=30)
    turns = [make_turn(alice), make_turn(alice)]
    ChatSession.objects.filter(pk=turns[0].session_id).update(updated_at=month)
    job = TrainingJob.objects.create(user=alice, state="deployed")
    for step, at in enumerate((month, timezone.now())):
        metric = StepMetric.objects.create(job=job, attempt=1, step=step, values={})
        StepMetric.objects.filter(pk=metric.pk).update(at=at)
        event = Event.objects.create(user=alice, kind="x")
        Event.objects.filter(pk=event.pk).update(at=at)
    AuditEvent.objects.all().forget()
    audit.record("old", alice)
    from django.db.models import QuerySet

    QuerySet(AuditEvent).update(at=month)  # past the guard, as time itself
    audit.record("new", alice)
    return {"session": turns[0].session_id}


def left() -> list[int]:
    """Chats, metrics, events and lines of the audit that are there."""
    chats = ChatSession.objects.filter(deleted_at=None).count()
    return [chats, *(model.objects.count() for model in (StepMetric, Event, AuditEvent))]


def test_nothing_goes_by_itself(old: Any) -> None:
    assert set(retention.apply().values()) == {None}
    assert left() == [2, 2, 2, 2]


@pytest.mark.parametrize("table", range(4))
def test_each_table_goes_by_its_own_setting(old: Any, setting: Any, table: int) -> None:
    rule = retention.RULES[table]
    setting(**{rule.setting: 7})
    assert retention.apply(dry_run=True)[rule.name] == 1
    assert left() == [2, 2, 2, 2]
    assert retention.apply()[rule.name] == 1
    assert left() == [1 if index == table else 2 for index in range(4)]


def test_what_is_pinned_or_in_use_stays(alice: User, old: Any, setting: Any) -> None:
    setting(keep_chats_days=7)
    session = ChatSession.objects.filter(pk=old["session"])
    session.update(pinned=True)
    assert retention.apply()["chats"] == 0
    session.update(pinned=False)
    turns = Turn.objects.filter(session=old["session"])
    turns.update(state="streaming", finished_at=None)
    assert retention.apply()["chats"] == 0
    turns.update(state="complete")  # from a file that does not say when it ended
    assert retention.apply()["chats"] == 1


def test_a_chat_that_is_pinned_while_the_old_ones_go_stays(
    alice: User, old: Any, setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting(keep_chats_days=7)
    asked: list[int] = []

    def now() -> Any:
        asked.append(1)
        if len(asked) == 2:  # between looking and hiding
            ChatSession.objects.filter(pk=old["session"]).update(pinned=True)
        return timezone.now()

    monkeypatch.setattr(retention, "timezone", SimpleNamespace(now=now))
    retention.apply()
    assert ChatSession.objects.get(pk=old["session"]).deleted_at is None


def test_the_command_says_what_would_go(
    old: Any, setting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    setting(keep_metrics_days=7)
    call_command("retention", "--dry-run")
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == ["chats: kept for ever", "metrics: 1 would go"]
    assert left() == [2, 2, 2, 2]
