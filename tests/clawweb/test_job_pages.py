"""What the pages of jobs say: how long one will take, and what to do about one that led nowhere."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from clawweb.models import JobState, TrainingJob, User
from clawweb.selectors.learning import seconds_left

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


def page_of(client: Client, user: User, path: str) -> str:
    client.force_login(user)
    return client.get(path).content.decode()


def test_a_running_job_says_how_long_it_will_take(client: Client, alice: User) -> None:
    for seconds in (60, 100, 900):
        TrainingJob.objects.create(
            user=alice, state=JobState.DEPLOYED, timings={"train": seconds - 10, "gate": 10}
        )
    job = TrainingJob.objects.create(
        user=alice,
        state=JobState.TRAINING,
        started_at=timezone.now() - timedelta(seconds=40),
    )
    assert seconds_left(job) == pytest.approx(60, abs=2)
    assert "about a minute left" in page_of(client, alice, f"/jobs/{job.public_id}/")


def test_nobody_says_how_long_the_first_job_will_take(alice: User) -> None:
    job = TrainingJob(user=alice, state=JobState.TRAINING, started_at=timezone.now())
    assert seconds_left(job) is None


@pytest.mark.parametrize("state", ["refused", "no_signal", "cancelled", "failed"])
def test_a_job_that_led_nowhere_says_what_to_do(client: Client, alice: User, state: str) -> None:
    job = TrainingJob.objects.create(user=alice, state=state, method="kto")
    html = page_of(client, alice, f"/jobs/{job.public_id}/")
    assert "Your agent is unchanged" in html
    assert 'id="retry" name="method" value="kto"' in html
