"""The audit log: who did what, in which request, without texts; and nobody rewrites it."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.contrib.auth.models import AbstractBaseUser
from django.test import Client

from clawweb.models import AdapterState, AuditEvent, FeedbackReason, TrainingJob, User
from clawweb.models.audit import WrittenOnce
from clawweb.services import accounts, audit, jobs, versions
from clawweb.tables import cell
from tests.factories import make_adapter, make_turn, rated

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")
SECRET = "a secret of alice's"


def last() -> AuditEvent:
    return AuditEvent.objects.latest("id")


def acts() -> list[str]:
    return list(AuditEvent.objects.order_by("id").values_list("action", flat=True))


def signed_in(client: Client, user: AbstractBaseUser) -> Client:
    client.force_login(user)
    return client


def test_an_act_is_written_down_with_its_actor_and_its_request(client: Client, alice: User) -> None:
    signed_in(client, alice).post(
        "/settings/consent/", {"consent": "keep"}, headers={"X-Request-Id": "request-1"}
    )
    row = last()
    assert (row.actor, row.actor_name, row.action) == (alice, "alice", "change_consent")
    assert (row.kind, row.object_id, row.request_id) == ("user", "alice", "request-1")
    assert (row.before["consent"], row.after["consent"]) == ("train", "keep")


def test_a_command_is_the_systems_own(alice: User) -> None:
    accounts.make_link(alice)
    assert (last().actor, last().actor_name, last().action) == (None, "system", "make_link")
    assert last().subject == alice


def test_each_act_that_matters_is_written(client: Client, admin: User) -> None:
    accounts.add_user(username="carol", password="correct horse battery")
    key, _ = accounts.make_key(user=admin, name="a key")
    accounts.revoke_key(user=admin, key_id=key.pk)
    make_adapter(admin, 1, AdapterState.STANDBY)
    second = make_adapter(admin, 2, AdapterState.STANDBY)
    versions.promote(user=admin, adapter=second)
    versions.rollback(admin)
    rated(admin, 1)
    jobs.cancel_job(jobs.queue_job(user=admin))
    signed_in(client, admin).post("/api/exports", {}, content_type="application/json")
    assert acts() == [
        *("add_user", "make_key", "revoke_key", "promote_version", "roll_back_version"),
        *("start_job", "cancel_job", "sign_in", "export_data"),
    ]


def test_deciding_twice_is_written_once(alice: User) -> None:
    rated(alice, 1)
    job = jobs.queue_job(user=alice)
    assert jobs.cancel_job(job)
    assert not jobs.cancel_job(TrainingJob.objects.get(pk=job.pk))
    assert acts() == ["start_job", "cancel_job"]


def test_no_text_and_no_secret_gets_in(client: Client, admin: User, alice: User) -> None:
    make_turn(alice, SECRET, reply=SECRET)
    alice.instructions = SECRET
    alice.save()
    _, plain = accounts.make_key(user=alice, name=SECRET)
    link = accounts.make_link(alice)
    signed_in(client, admin)
    client.post(
        f"/admin/clawweb/user/{alice.pk}/password/",
        {"password1": "battery horse 7", "password2": "battery horse 7", "usable_password": "true"},
    )
    assert last().action == "set_password"
    kept = str(list(AuditEvent.objects.values()))
    for text in (SECRET, plain, plain[-8:], link, "battery horse"):
        assert text not in kept


def test_an_admin_who_changes_a_role_is_in_it(client: Client, admin: User, alice: User) -> None:
    form: dict[str, Any] = {
        "username": "alice",
        "role": "trainer",
        "is_active": "on",
        "tokens_per_day": 100,
    }
    response = signed_in(client, admin).post(f"/admin/clawweb/user/{alice.pk}/change/", form)
    assert response.status_code == 302, response.content.decode()
    row = last()
    assert (row.actor, row.subject, row.action) == (admin, alice, "change_row")
    assert row.before == {"role": "user", "tokens_per_day": None}
    assert row.after == {"role": "trainer", "tokens_per_day": 100}


def test_nobody_is_given_anothers_name_in_other_letters(
    client: Client, admin: User, alice: User
) -> None:
    form = {"username": "ROOT", "role": "user", "is_active": "on"}
    page = signed_in(client, admin).post(f"/admin/clawweb/user/{alice.pk}/change/", form)
    assert "There is already a user called root." in page.content.decode()
    client.post(f"/admin/clawweb/user/{alice.pk}/change/", {**form, "username": "Alice"})
    alice.refresh_from_db()
    assert alice.username == "Alice"


def test_a_reason_that_is_deleted_leaves_its_line(client: Client, admin: User) -> None:
    reason = FeedbackReason.objects.create(slug="odd", label="Odd", hint="Be even.")
    signed_in(client, admin).post(
        f"/admin/clawweb/feedbackreason/{reason.pk}/delete/", {"post": "yes"}
    )
    assert not FeedbackReason.objects.filter(slug="odd").exists()
    assert (last().action, last().object_id) == ("delete_row", "odd")


def test_nobody_rewrites_a_line(client: Client, admin: User) -> None:
    audit.record("add_user", admin)
    row = last()
    row.action = "nothing"
    for rewrite in (row.save, row.delete, AuditEvent.objects.all().delete):
        with pytest.raises(WrittenOnce):
            rewrite()
    with pytest.raises(WrittenOnce):
        AuditEvent.objects.update(action="nothing")
    signed_in(client, admin)
    assert client.get(f"/admin/clawweb/auditevent/{row.pk}/change/").status_code == 200
    assert client.post(f"/admin/clawweb/auditevent/{row.pk}/change/", {}).status_code == 403
    assert client.post(f"/admin/clawweb/auditevent/{row.pk}/delete/", {}).status_code == 403
    assert AuditEvent.objects.get(pk=row.pk).action == "add_user"


def test_a_line_outlives_its_user(alice: User) -> None:
    audit.record("make_link", alice, actor=alice)
    alice.delete()
    assert (last().actor, last().actor_name, last().object_id) == (None, "alice", "alice")


def test_admins_search_and_take_it_out(client: Client, admin: User, alice: User) -> None:
    audit.record("make_link", alice)
    audit.record("add_user", admin)
    page = signed_in(client, admin).get("/admin/clawweb/auditevent/?q=alice").content.decode()
    assert "make_link" in page
    assert "/admin/clawweb/auditevent/csv/?q=alice" in page
    response = client.get("/admin/clawweb/auditevent/csv/?q=alice")
    rows = list(csv.DictReader(io.StringIO(response.getvalue().decode())))  # type: ignore[attr-defined]
    assert [row["object_id"] for row in rows] == ["alice"]
    assert last().action == "export_audit"


@pytest.mark.parametrize("query", ["foo=bar", "at__gte=soon"])
def test_a_filter_that_is_none_takes_nothing_out(client: Client, admin: User, query: str) -> None:
    page = signed_in(client, admin).get(f"/admin/clawweb/auditevent/csv/?{query}")
    assert page["Location"] == "/admin/clawweb/auditevent/"
    assert last().action == "sign_in"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum(a1)"])
def test_no_cell_of_it_is_a_formula(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.db
def test_an_act_on_somebody_with_a_long_name_is_written_down(alice: User) -> None:
    name = "n" * 150  # as many letters as a username may have
    user = accounts.add_user(username=name, password=None)
    accounts.set_consent(user=user, consent="keep")
    assert acts()[-2:] == ["add_user", "change_consent"]
    assert last().subject == user
    assert name.startswith(last().object_id)
    last().full_clean()  # its columns are as wide: PostgreSQL refuses what is wider
