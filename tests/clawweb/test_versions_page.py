"""The page of versions: the drawing, what each learned, what is loaded, what is on trial."""

from __future__ import annotations

import asyncio
import re

import pytest
from django.test import Client

from clawweb.api.openai import _models_of
from clawweb.models import (
    AdapterState,
    DropReason,
    GateResult,
    JobState,
    TrainingJob,
    TrainingSample,
    User,
)
from clawweb.selectors.learning import policy_of
from clawweb.services import feedback, finishing, jobs, trials
from clawweb.views.versions import EDGE, LANE, STEP, drawing
from rollouts.errors import EngineUnavailable
from tests.factories import down, make_adapter, make_turn, rated, registered, up

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


@pytest.fixture
def page(client: Client, alice: User):
    client.force_login(alice)

    def text(path: str = "/parts/adapters/") -> str:
        return re.sub(r"\s+", " ", client.get(path).content.decode())

    return text


def test_what_led_to_the_live_version_is_a_line_and_the_rest_are_branches(alice) -> None:
    first = make_adapter(alice, 1)
    second = make_adapter(alice, 2, parent=first)
    left = make_adapter(alice, 3, parent=second)
    live = make_adapter(alice, 4, AdapterState.LIVE, parent=second)
    on_left = make_adapter(alice, 5, parent=left)
    other = make_adapter(alice, 6, parent=second)
    drawn = drawing([other, on_left, live, left, second, first], live, second)
    lanes = [(node["y"] - drawn["nodes"][0]["y"]) // LANE for node in drawn["nodes"]]
    assert lanes == [0, 0, 0, 1, 0, 1, 2]
    columns = [node["x"] for node in drawn["nodes"]]
    assert columns == [columns[0] + n * STEP for n in range(7)]
    assert len(drawn["edges"]) == 6
    assert [node["version"] for node in drawn["nodes"] if node.get("is_previous")] == [2]


def test_a_version_whose_parent_is_gone_grows_from_base(alice) -> None:
    drawn = drawing([make_adapter(alice, 7)], None, None)
    assert drawn["edges"][0].startswith(f"M{EDGE} {EDGE}")


def test_the_newest_version_stands_first(alice, page) -> None:
    """On the page and in the list of models, where the one that answers now is looked for."""
    for number in (1, 2, 3):
        make_adapter(alice, number)
    assert re.findall(r'id="v(\d)-h"', page()) == ["3", "2", "1"]
    assert [found["id"] for found in _models_of(alice)[2:]] == ["agent@v3", "agent@v2", "agent@v1"]


def test_the_page_says_what_each_version_learned_and_how_it_is_liked(alice, page) -> None:
    adapter = make_adapter(alice, 1, AdapterState.LIVE)
    up(make_turn(alice))
    down(make_turn(alice))
    changes = {"value": -1, "correction": "rather so"}
    feedback.rate_turn(turn=make_turn(alice), author=alice, changes=changes)
    TrainingSample.objects.update(adapter=adapter)
    up(make_turn(alice, version=1))
    text = page()
    assert "1 liked, 2 disliked, 1 corrected" in text
    assert "100% liked (21 to 100%), 1 vote" in text
    assert "(too few)" in text


def test_a_refused_version_says_how_many_ratings_it_was_trained_on(alice, page) -> None:
    """As its job does: that they count again makes them no fewer."""
    rated(alice, 3)
    job, _ = registered(alice, accepted=False)
    jobs.end_job(job, state=JobState.REFUSED, reason="it repeats itself")
    assert "3 ratings" in page().split("Learned from")[1].split("</div>")[0]
    assert "3 ratings" in page(f"/parts/jobs/{job.public_id}/head/")


def test_a_refused_version_did_not_learn_from_what_its_trainer_could_not_use(alice, page) -> None:
    rated(alice, 4)
    job, _ = registered(alice, accepted=False)
    unusable, refused_twice, *_ = TrainingSample.objects.order_by("pk")
    finishing.drop_samples(job, {unusable.pk: DropReason.HINT_NO_EFFECT})
    TrainingSample.objects.filter(pk=refused_twice.pk).update(refusals=1)
    jobs.end_job(job, state=JobState.REFUSED, reason="it repeats itself")
    refused_twice.refresh_from_db()
    assert refused_twice.drop_reason == DropReason.REFUSED  # by this version, which learned from it
    assert "3 ratings" in page().split("Learned from")[1].split("</div>")[0]


@pytest.mark.parametrize(
    ("measure", "value", "limit", "ok", "cells"),
    [
        ("cut_off", 0.917, 1.0, None, ["92%", "–", "not judged"]),
        ("preference", None, -0.05, None, ["–", "–", "not measured"]),
        ("length", 48.0, 3.0, True, ["48", "at least 3", "ok"]),
        ("drift", 0.0071, 0.207, True, ["0.007", "at most 0.207", "ok"]),
        ("empty", 0.0, 0.25, True, ["0%", "at most 25%", "ok"]),
        ("way", 1.0, 0.3, True, ["100%", "at least 30%", "ok"]),
    ],
)
def test_a_test_says_what_it_was_held_against(
    alice: User,
    page,
    measure: str,
    value: float | None,
    limit: float,
    ok: bool | None,
    cells: list[str],
) -> None:
    adapter = make_adapter(alice, 1)
    TrainingJob.objects.create(user=alice, child=adapter, config={"gate_tokens": 48})
    GateResult.objects.create(adapter=adapter, measure=measure, value=value, limit=limit, ok=ok)
    text = page()
    row = re.findall(r"<td[^>]*>(.*?)</td>", text.split('<table class="gate">')[1])
    assert [re.sub("<[^>]+>", "", cell) for cell in row[:3]] == cells
    assert "cut off after 48 tokens" in text


def test_versions_of_another_base_are_out_and_say_why(alice, page) -> None:
    make_adapter(alice, 1, base_hash="another")
    text = page()
    assert "trained on another base model than is served now" in text
    assert "is-out" in text
    assert "Make live: version 1" not in text
    assert "Try it: version 1" not in text


def test_the_way_back_is_marked(alice, page) -> None:
    first = make_adapter(alice, 1)
    make_adapter(alice, 2, AdapterState.LIVE, parent=first, live_before=[first.pk])
    text = page()
    assert text.count("A rollback leads here") == 1
    assert "v1, previous: standby" in text


def test_what_the_server_has_loaded_is_listed_and_only_ones_own(
    alice, bob, engine, page, monkeypatch
) -> None:
    assert "None of your versions is loaded" in page("/parts/adapters/served/")
    for adapter in (make_adapter(alice, 3), make_adapter(bob, 8)):
        asyncio.run(engine.load(policy_of(adapter)))
    text = page("/parts/adapters/served/")
    assert "v3" in text
    assert "v8" not in text

    async def down() -> dict[str, str]:
        raise EngineUnavailable("no")

    monkeypatch.setattr(engine, "loaded", down)
    assert "does not answer" in page("/parts/adapters/served/")


def test_a_trial_is_shown_beside_the_live_version(alice, page) -> None:
    make_adapter(alice, 1, AdapterState.LIVE)
    adapter = make_adapter(alice, 2)
    assert "Try it: version 2" in page()
    trials.start_trial(adapter=adapter, share=30)
    for vote in (up, down):
        vote(make_turn(alice, version=2, trial=True))
    text = page()
    assert "v2 answers 30% of your chat" in text
    assert "50% liked" in text
    assert "Try it: version 2" not in text
