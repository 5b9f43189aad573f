"""What operators watch: numbers of rows, and none for what was not measured."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from clawweb.config import ROOT
from clawweb.models import DropReason, SampleState, TrainingJob, TrainingSample, Turn, TurnState
from clawweb.selectors import operations
from tests.factories import claimed_job, make_adapter, make_turn, rated

pytestmark = pytest.mark.django_db


def scraped(client) -> str:
    return client.get("/metrics").content.decode()


def test_nothing_measured_is_no_line(client, engine):
    text = scraped(client)
    for name in ("clawweb_first_token_seconds", "clawweb_waiting_seconds", "clawweb_job_seconds"):
        assert f"{name}{{" not in text
    assert 'clawweb_waiting{line="replies"} 0.0' in text


def test_the_funnel_narrows(alice, bob, client, engine):
    rated(alice, 3)
    standing, gone = make_adapter(alice, 1), make_adapter(alice, 2, rolled_back_at=timezone.now())
    first, second, third = TrainingSample.objects.order_by("id")
    TrainingSample.objects.filter(pk=first.pk).update(state=SampleState.TRAINED, adapter=standing)
    TrainingSample.objects.filter(pk=second.pk).update(state=SampleState.TRAINED, adapter=gone)
    TrainingSample.objects.filter(pk=third.pk).update(
        state=SampleState.DROPPED, drop_reason=DropReason.TOO_LONG
    )
    rated(bob, 1)
    assert operations.funnel() == {"given": 4, "usable": 3, "learned": 2, "standing": 1}
    text = scraped(client)
    assert 'clawweb_funnel{stage="standing"} 1.0' in text
    assert 'clawweb_dropped{reason="too_long"} 1.0' in text


def test_lines_say_how_long_the_oldest_waits(alice, client, engine):
    turn = make_turn(alice)
    Turn.objects.filter(pk=turn.pk).update(
        state=TurnState.PENDING, created_at=timezone.now() - timedelta(seconds=30)
    )
    count, seconds = operations.waiting()["replies"]
    assert count == 1
    assert seconds == pytest.approx(30, abs=5)


def test_first_words_are_of_the_last_minutes_alone(alice):
    now = timezone.now()
    for age, seconds in ((1, 2.0), (2, 4.0), (600, 60.0)):
        turn = make_turn(alice)
        first = now - timedelta(seconds=age)
        asked = first - timedelta(seconds=seconds)
        row = {"first_token_at": first, "created_at": asked, "lease_token": "a generator's"}
        Turn.objects.filter(pk=turn.pk).update(**row)
    make_turn(alice, first_token_at=now, created_at=now - timedelta(hours=1))  # brought in
    found = operations.first_token_seconds()
    assert found[0.99] == pytest.approx(4.0)
    assert len(found) == 3


def test_quantiles_are_of_values_that_were_there():
    assert operations.quantiles([]) == {}
    assert operations.quantiles([3.0]) == {0.5: 3.0, 0.95: 3.0, 0.99: 3.0}
    assert operations.quantiles(range(101)) == {0.5: 50, 0.95: 95, 0.99: 99}


def test_a_jobs_phases_are_medians_of_what_went_live(alice, engine):
    rated(alice, 8)
    job = claimed_job(alice)
    TrainingJob.objects.filter(pk=job.pk).update(
        state="deployed", timings={"gate": 14.0, "probe": {"difference": 0.5}, "bad_replies": 2}
    )
    assert operations.job_seconds() == {"gate": 14.0}


def test_the_board_draws_what_is_served_and_all_of_it(client, alice, engine):
    make_turn(alice)
    board = json.loads((ROOT / "docs" / "grafana.json").read_text())
    drawn = {
        re.match(r"\w+", target["expr"]).group()
        for panel in board["panels"]
        for target in panel["targets"]
    }
    source = (ROOT / "clawweb" / "api" / "metrics.py").read_text()
    assert drawn == set(re.findall(r'"(clawweb_\w+)"', source))
