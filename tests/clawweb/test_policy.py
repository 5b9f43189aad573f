"""The training policy: what an admin changes while everything runs."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from clawweb.config import config
from clawweb.models import AuditEvent, JobState, TrainingJob, TrainingPolicy, User
from clawweb.selectors.agent import agent_status
from clawweb.selectors.learning import receipt
from clawweb.selectors.policy import quiet_until
from clawweb.services import finishing, jobs
from tests.factories import claimed_job, rated

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


def at(hour: int, minute: int = 0, day: int = 1) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("first", "end", "now", "until"),
    [
        (time(22), time(7), at(21, 59), None),
        (time(22), time(7), at(22), at(7, day=2)),
        (time(22), time(7), at(6, 59), at(7)),
        (time(22), time(7), at(7), None),
        (time(9), time(17, 30), at(12), at(17, 30)),
        (time(9), time(17, 30), at(8), None),
        (None, None, at(12), None),
    ],
)
def test_quiet_hours_may_pass_midnight(
    first: time | None, end: time | None, now: datetime, until: datetime | None
) -> None:
    assert quiet_until(TrainingPolicy(quiet_from=first, quiet_until=end), now) == until


@pytest.mark.parametrize(
    "hours", [{"quiet_from": time(9)}, {"quiet_from": time(9), "quiet_until": time(9)}]
)
def test_quiet_hours_have_a_beginning_and_an_end(hours: dict[str, time]) -> None:
    with pytest.raises(ValidationError):
        TrainingPolicy(**hours).clean()


def test_fewer_ratings_start_a_job_by_the_method_that_was_chosen(alice: User) -> None:
    TrainingPolicy.objects.create(batch=3, method="combine")
    turns = rated(alice, 2)
    assert receipt(turns[0])["text"] == "counted (2 of 3)"
    assert jobs.queue_batch(alice) is None
    rated(alice, 1)
    job = jobs.queue_batch(alice)
    assert (job.method, agent_status(alice)["need"]) == ("combine", 3)


def test_in_quiet_hours_a_full_batch_waits_and_says_so(alice: User, monkeypatch: Any) -> None:
    TrainingPolicy.objects.create(batch=2, quiet_from=time(22), quiet_until=time(7))
    now = at(23)
    for module in ("clawweb.services.jobs", "clawweb.selectors.learning"):
        monkeypatch.setattr(f"{module}.timezone.now", lambda: now)
    rated(alice, 1)
    assert agent_status(alice)["held_up"] == ""
    rated(alice, 1)
    assert jobs.queue_batch(alice) is None
    assert "before 07:00 UTC" in agent_status(alice)["held_up"]
    now = at(7, 1, day=2)
    assert agent_status(alice)["held_up"] == ""
    assert jobs.queue_batch(alice) is not None


def test_who_asks_is_trained_in_quiet_hours_too(alice: User, monkeypatch: Any) -> None:
    TrainingPolicy.objects.create(quiet_from=time(22), quiet_until=time(7))
    monkeypatch.setattr("clawweb.services.jobs.timezone.now", lambda: at(23))
    rated(alice, 1)
    assert jobs.queue_job(user=alice).method == "combine"


@pytest.mark.parametrize(
    ("body", "method"), [({}, "opd"), ({"method": None}, "opd"), ({"method": "combine"}, "combine")]
)
def test_who_asks_and_names_no_method_is_trained_by_the_installations(
    client: Client, alice: User, body: dict[str, Any], method: str
) -> None:
    TrainingPolicy.objects.create(method="opd")
    rated(alice, 1)
    client.force_login(alice)
    answer = client.post("/api/jobs", body, content_type="application/json")
    assert (answer.status_code, answer.json()["method"]) == (202, method)


def test_an_admin_sets_it_and_the_settings_say_where_it_comes_from(
    client: Client, admin: User
) -> None:
    client.force_login(admin)
    page = "/admin/clawweb/trainingpolicy/"
    said = {"batch": "4", "method": "binary", "quiet_from": "22:00", "quiet_until": "06:30"}
    settings = client.get(f"{page}add/").content.decode()
    assert f"Empty: {config().batch}, as the settings say." in settings
    assert client.post(f"{page}add/", {**said, "method": "magic"}).status_code == 200
    assert not TrainingPolicy.objects.exists()
    assert client.post(f"{page}add/", said).status_code == 302
    row = TrainingPolicy.objects.get()
    assert (row.batch, row.method, row.quiet_until) == (4, "binary", time(6, 30))
    assert client.get(f"{page}add/").status_code == 403  # there is one for everybody
    assert AuditEvent.objects.filter(action="add_row").exists()
    effective = client.get("/settings/effective/").content.decode()
    assert "training policy" in effective
    assert not TrainingJob.objects.exists()


def test_the_jobs_page_names_the_method_that_starts_by_itself(client: Client, alice: User) -> None:
    client.force_login(alice)
    assert "or by the button above, uses combine" in client.get("/jobs/").content.decode()
    TrainingPolicy.objects.create(method="binary")
    assert "or by the button above, uses binary" in client.get("/jobs/").content.decode()


@pytest.mark.parametrize("meanwhile", [0, 1])
def test_after_a_job_that_was_left_without_ratings_a_newer_one_is_waited_for(
    alice: User, meanwhile: int
) -> None:
    rated(alice, config().batch)
    job = claimed_job(alice)
    rated(alice, meanwhile)
    finishing.give_back_untrained(job, ())
    jobs.end_job(job, state=JobState.NO_SIGNAL)
    assert (jobs.queue_batch(alice) is not None) == bool(meanwhile)
