"""A version that waits for the model server: what its job says meanwhile, and how it is let go."""

from __future__ import annotations

import pytest
from django.test import Client

from clawweb import deployment, sentences
from clawweb.models import User
from clawweb.selectors.learning import job_json
from clawweb.services import versions
from tests.clawweb.test_deploying import no_answer
from tests.factories import handed_over

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def test_a_job_says_that_it_waits_for_the_server_only_while_it_does(alice, engine, monkeypatch):
    job, _ = handed_over(alice)
    with monkeypatch.context() as away:
        away.setattr(engine, "load", no_answer)
        told: list[str] = []
        away.setattr(versions, "changed", lambda user, what, *ids: told.extend(ids))
        deployment.deploy(job.public_id)
        assert told == [job.public_id]  # open pages look again
    job.refresh_from_db()
    assert "does not answer" in job_json(job)["waits_for"]
    again = versions.claim_deploy(job.public_id)
    assert (again.phase, job_json(again)["waits_for"]) == (sentences.GOING_LIVE, "")


def test_a_job_that_waits_to_go_live_can_be_thrown_away(client: Client, alice: User) -> None:
    """A model server that is away for long holds up no other training."""
    job, _ = handed_over(alice)
    client.force_login(alice)
    for path in ("/jobs/", f"/jobs/{job.public_id}/"):
        text = client.get(path).content.decode()
        assert f'data-stop="{job.public_id}"' in text
        assert "data-keeps" not in text  # it has stopped already
    assert client.post(f"/api/jobs/{job.public_id}/cancel").status_code == 202
    for path in ("/jobs/", f"/jobs/{job.public_id}/"):
        text = client.get(path).content.decode()
        assert f'data-stop="{job.public_id}"' not in text
        assert "stopping …" in text
