"""Charts: which points stay, what is worth a look, whose jobs are compared, and the file of all."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clawweb.alerts import Alert, alerts
from clawweb.config import ROOT
from clawweb.downsampling import FEWEST, is_no_number, kept
from clawweb.figures import CHARTS, summary
from clawweb.models import AdapterState, JobState, StepMetric, TrainingJob, User
from clawweb.selectors.charts import Window, phases_of, series
from clawweb.selectors.learning import metric_points
from clawweb.services import jobs, versions
from tests.factories import claimed_job, make_adapter, rated

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
VALUES = st.one_of(
    st.floats(-1e6, 1e6), st.none(), st.just("nan"), st.just(float("inf")), st.integers(0, 3)
)


# Which points stay


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(VALUES, max_size=300), st.integers(FEWEST, 60))
def test_ends_extremes_and_gaps_stay_and_the_rest_is_few(values: list[Any], most: int) -> None:
    found = kept(values, most)
    assert len(found) <= most
    assert found == sorted(set(found))
    assert found == kept(list(values), most)
    if len(values) <= most:
        assert found == list(range(len(values)))
        return
    assert {0, len(values) - 1} <= set(found)
    left = [values[i] for i in found]
    numbers = [v for v in values if v is not None and not is_no_number(v)]
    if numbers:
        shown = [v for v in left if v is not None and not is_no_number(v)]
        assert (min(shown), max(shown)) == (min(numbers), max(numbers))
    assert (None in left) == (None in values)
    assert any(map(is_no_number, left)) == any(map(is_no_number, values))


def test_a_spike_among_ten_thousand_stays() -> None:
    values: list[Any] = [1.0] * 10_000
    values[6_789] = 50.0
    assert 6_789 in kept(values)
    assert len(kept(values)) <= 2_000


def test_too_few_points_to_keep_anything_are_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        kept([1.0], FEWEST - 1)


# What is worth a look


def points_of(key: str, *values: Any, attempt: int = 1) -> list[dict[str, Any]]:
    return [
        {"step": i + 1, "attempt": attempt, "at": NOW, **({} if v is None else {key: v})}
        for i, v in enumerate(values)
    ]


def rules_of(points: list[dict[str, Any]], **given: Any) -> list[tuple[str, int]]:
    found = alerts(points, **{"is_training": False, "now": NOW, **given})
    assert all(isinstance(alert, Alert) and alert.text and alert.mark for alert in found)
    return [(alert.rule, alert.step) for alert in found]


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("loss", [1.0, "nan"], [("not_a_number", 2)]),
        ("grad_norm", [1.0, 2.0, 1.0, 5.0], []),  # five times the median, no more
        ("grad_norm", [1.0, 2.0, 1.0, 5.1, 6.0], [("gradient_jump", 4)]),
        ("grad_norm", [0.1, 9.0], []),  # nothing to compare with yet
        ("kl_base", [0.5, 0.51, 0.6], [("far_from_base", 2)]),
        ("kl", [0.1, 0.2], []),
        ("kl", [0.1, None, 0.21], [("backwards", 3)]),
        ("kl", [0.01, 0.04], []),  # small
        ("clip_share", [0.3, 0.31], [("clipped", 2)]),
        ("zero_advantage", [0.9, 1.0], [("no_advantage", 2)]),
        ("zero_advantage", [None, None], []),  # not measured is not zero
    ],
)
def test_a_rule_marks_its_first_step(key: str, values: list[Any], expected: list[Any]) -> None:
    assert rules_of(points_of(key, *values)) == expected


def test_each_attempt_is_judged_by_itself() -> None:
    second = [{**point, "attempt": 2, "step": point["step"] + 2} for point in points_of("kl", 0.3)]
    assert rules_of([*points_of("kl", 0.1, 0.1), *second]) == []


def test_steps_on_all_thumbs_are_no_jump_beside_the_hints() -> None:
    on_thumbs = [{**point, "phase": "thumbs"} for point in points_of("grad_norm", *[9.0] * 7, 50.0)]
    points = [*points_of("grad_norm", 1.0, 1.0, 1.0), *on_thumbs[3:]]
    assert rules_of(points) == [("gradient_jump", 8)]
    assert phases_of(points) == [{"step": 4, "mark": "all thumbs"}]
    assert phases_of(points[:3]) == []


def test_a_summary_leaves_out_steps_of_another_loss() -> None:
    points = points_of("loss", 4.0, 3.0, 2.0, 1.0, 9.0)
    points[-1]["phase"] = "thumbs"
    assert summary(CHARTS[0], points).startswith("Now 1.000, at first 4.000")
    assert summary(CHARTS[0], points).endswith("It falls.")
    reward = next(chart for chart in CHARTS if chart.key == "reward")
    rewards = [{**point, "reward": point["loss"]} for point in points]
    assert summary(reward, rewards).startswith("Now 9.00,")


def test_silence_is_told_while_training_only() -> None:
    points = [{**point, "seconds": 40.0} for point in points_of("loss", 1.0)]
    later = NOW + timedelta(seconds=199)
    assert rules_of(points, is_training=True, now=later) == []
    later = NOW + timedelta(seconds=201)
    assert rules_of(points, is_training=True, now=later) == [("stalled", 1)]
    assert rules_of(points, is_training=False, now=later) == []
    assert rules_of([], is_training=True, now=later) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([4.0, 3.0, 2.0, 1.0], "It falls."),
        ([1.0, 2.0, 3.0, 4.0], "It rises."),
        ([1.0, 2.0, 2.0, 1.0], "It stays about level."),
        ([1.0, 2.0], "between 1.000 and 2.000."),
    ],
)
def test_a_summary_says_where_it_goes(values: list[float], words: str) -> None:
    assert summary(CHARTS[0], points_of("loss", *values)).endswith(words)


# What a page is given


def measured_job(user: User, *losses: Any, **values: Any) -> TrainingJob:
    job = TrainingJob.objects.create(user=user, state=values.pop("state", JobState.DEPLOYED))
    StepMetric.objects.bulk_create(
        StepMetric(job=job, attempt=1, step=i + 1, values={"loss": loss, **values})
        for i, loss in enumerate(losses)
    )
    return job


def points_at(client: Client, job: TrainingJob, query: str = "", **headers: Any) -> Any:
    return client.get(f"/jobs/{job.public_id}/series/?{query}", **headers)


def test_a_stretch_is_cut_out_before_points_are_left_out(alice: User) -> None:
    job = measured_job(alice, *[float(i % 7) for i in range(300)])
    (found,) = series(alice, [job], [], Window(low=100, high=119), NOW, most=50)["jobs"]
    assert found["traces"]["loss"]["step"] == list(range(100, 120))
    (found,) = series(alice, [job], [], Window(), NOW, most=50)["jobs"]
    assert len(found["traces"]["loss"]["step"]) <= 50
    assert found["total"] == 300


def test_replies_used_are_summed_up_while_every_step_counts_them(alice: User) -> None:
    job = measured_job(alice, 2.0, 1.0, replies=8)
    (found,) = series(alice, [job], [], Window(), NOW)["jobs"]
    assert found["traces"]["loss"]["samples"] == [8, 16]
    (found,) = series(alice, [measured_job(alice, 1.0)], [], Window(), NOW)["jobs"]
    assert found["traces"]["loss"]["samples"] == [None]
    assert "kl" not in found["traces"]


def test_what_is_no_number_is_kept_by_its_name(alice: User) -> None:
    rated(alice, 1)
    job = claimed_job(alice)
    values = {"loss": math.nan, "grad_norm": math.inf, "kl": None}
    jobs.record_step(job, step=1, steps=4, values=values, phase="")
    (point,) = metric_points(job)
    assert (point["loss"], point["grad_norm"]) == ("nan", "inf")
    assert "kl" not in point


def test_the_tail_brings_what_is_new_and_words_for_all(client: Client, alice: User) -> None:
    client.force_login(alice)
    job = measured_job(alice, 3.0, 2.0, 1.0)
    body = points_at(client, job, "after=2").json()
    assert body["jobs"][0]["traces"]["loss"]["y"] == [1.0]
    assert [row[:3] for row in body["rows"]] == [["3", "1", "1.000"]]
    assert body["words"]["loss"].startswith("Now 1.000, at first 3.000")
    assert body["points"] == 3
    assert body["phases"] == []


def test_what_the_browser_holds_is_not_sent_again(client: Client, alice: User) -> None:
    client.force_login(alice)
    job = measured_job(alice, 3.0)
    first = points_at(client, job)
    same = points_at(client, job, HTTP_IF_NONE_MATCH=first["ETag"])
    assert (same.status_code, same.content) == (304, b"")
    StepMetric.objects.create(job=job, attempt=1, step=2, values={"loss": 1.0})
    assert points_at(client, job, HTTP_IF_NONE_MATCH=first["ETag"]).status_code == 200


def test_lines_stand_where_versions_went_live_and_were_left(client: Client, alice: User) -> None:
    client.force_login(alice)
    job = measured_job(alice, 3.0)
    assert points_at(client, job).json()["marks"] == []
    adapter = make_adapter(alice, 2, AdapterState.STANDBY)
    TrainingJob.objects.filter(pk=job.pk).update(child=adapter)
    versions.go_live(adapter, over=None, why="")
    first = points_at(client, job)
    versions.rollback(alice)
    again = points_at(client, job, HTTP_IF_NONE_MATCH=first["ETag"])
    marks = again.json()["marks"]
    assert [(mark["kind"], mark["text"]) for mark in marks] == [
        ("live", "v2 live"),
        ("rolled_back", "v2 rolled back"),
    ]
    assert {mark["job"] for mark in marks} == {job.public_id}


def names_at(client: Client, job: TrainingJob, others: str) -> list[str]:
    return [row["name"] for row in points_at(client, job, f"with={others}").json()["jobs"]]


def test_own_jobs_are_compared_and_nobody_elses(client: Client, alice: User, bob: User) -> None:
    first, second = measured_job(alice, 1.0), measured_job(alice, 2.0)
    his = measured_job(bob, 9.0)
    client.force_login(alice)
    assert names_at(client, second, "1,1,7,x") == ["Job 2, combine", "Job 1, combine"]
    assert names_at(client, second, his.public_id) == ["Job 2, combine"]
    assert points_at(client, his).status_code == 404
    assert client.get(f"/jobs/{his.public_id}/metrics.csv").status_code == 404
    page = client.get(f"/jobs/{first.public_id}/?with=2").content.decode()
    assert 'value="2" checked' in page
    assert his.public_id not in page


def test_an_admin_compares_everyones(client: Client, admin: User, alice: User, bob: User) -> None:
    hers, his = measured_job(alice, 1.0), measured_job(bob, 2.0)
    client.force_login(admin)
    assert names_at(client, hers, his.public_id) == ["alice: Job 1, combine", "bob: Job 1, combine"]


def test_at_most_eight_jobs_are_drawn(client: Client, alice: User) -> None:
    first, *_ = [measured_job(alice, 1.0) for _ in range(10)]
    client.force_login(alice)
    assert len(names_at(client, first, ",".join(map(str, range(1, 11))))) == 8


def test_the_file_holds_every_value_in_full(client: Client, alice: User) -> None:
    job = measured_job(alice, *[1 / (i + 3) for i in range(2_500)], lr=6e-4)
    client.force_login(alice)
    text = client.get(f"/jobs/{job.public_id}/metrics.csv").content.decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["loss"]) for row in rows] == [1 / (i + 3) for i in range(2_500)]
    assert rows[0]["lr"] == "0.0006"


def test_without_scripts_there_is_a_table_and_what_is_worth_a_look(
    client: Client, alice: User
) -> None:
    job = measured_job(alice, 2.5, "nan")
    client.force_login(alice)
    page = client.get(f"/jobs/{job.public_id}/").content.decode()
    assert '<td class="number">2.500</td>' in page
    assert "Step 2: The sums of this step came out as no number." in page


# The sums that the browser does

MATHS = """
import {
  joined, numbers, placeOfTime, smoothed, stepsBetween, stretched, takesLogarithm, withoutOutliers,
} from %s;
const trace = { step: [1, 2, 3, 4], samples: [8, 16, 24, 32], y: [1, 2, 3, 4] };
const timed = {
  step: [4, 9], elapsed: [10, 20], at: ["2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"],
};
console.log(JSON.stringify([
  smoothed([4, null, 2], 0.5), numbers([1, "nan", null]),
  takesLogarithm([1, null]), takesLogarithm([1, 0]), takesLogarithm([null]),
  stepsBetween(trace, "samples", ["15", "25"]), stepsBetween(trace, "step", ["9", "10"]),
  joined({ step: [1], y: [5] }, { step: [2], y: [6] }),
  withoutOutliers([1, 2, 3, 4, 5, 6, 7, null, 90]),
  withoutOutliers([1, 2, 3, 4, 5, 6, 7, 8]), withoutOutliers([1, 99]),
  ...["elapsed", "step"].map((x) => placeOfTime(timed, "2026-01-01T00:01:00Z", x)),
  stretched([0, 20], [30, 500], "elapsed"), stretched([0, 20], [500], "elapsed"),
  stretched([0, 20], [30], "step"),
]));
"""


def test_the_browsers_sums_by_hand() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on this machine; `make test` says how to get one")
    script = MATHS % json.dumps(str(ROOT / "static/js/chart_math.js"))
    command = [node, "--input-type=module", "--no-warnings", "-e", script]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    # 4; then (0.25 * 4 + 0.5 * 2) / 0.75, the gap left out
    assert json.loads(said) == [
        [4, None, pytest.approx(8 / 3)],
        [1, None, None],
        *(True, False, False),
        [1, 4],
        None,
        {"step": [1, 2], "y": [5, 6]},
        # 3 to 6 is the middle half, so -6 to 15 is near; a twentieth of 1 to 7 is air
        {"range": pytest.approx([0.7, 7.3]), "out": 1},
        *(None, None),
        *(20 + 55, 9),
        pytest.approx([-1.5, 31.5]),  # a line soon after the end has room, one much later has none
        *(None, None),
    ]
