"""What a job may take by its method, and what waits for another one."""

from __future__ import annotations

import pytest

from clawweb.models import TrainingPolicy, Turn, User
from clawweb.selectors.agent import agent_status
from clawweb.selectors.learning import receipt
from clawweb.services import jobs
from clawweb.services.errors import NothingReady
from clawweb.training_run import sample_for
from rollouts.types import SamplingParams
from tests.factories import claimed_job, down, make_turn, up
from training.config import TrainConfig
from training.prepare import _reason_against

pytestmark = [pytest.mark.db, pytest.mark.django_db]
GREEDY = {"params": SamplingParams(temperature=0.0), "logprobs": None}


def hinted_greedy(user: User, count: int) -> list[Turn]:
    turns = [make_turn(user, **GREEDY) for _ in range(count)]
    for turn in turns:
        down(turn)
    return turns


def taken(user: User, **job: object) -> list[Turn]:
    return [sample.turn for sample in jobs.samples_of(claimed_job(user, **job))]


@pytest.mark.parametrize(
    ("method", "chosen", "takes_greedy"),
    [
        ("combine", {}, True),
        ("opd", {}, True),
        ("kto", {}, True),
        ("binary", {}, False),
        ("opd", {"estimator": "token"}, False),
        ("combine", {"combine": "advantages"}, False),
        ("opd", {"combine": "advantages"}, True),  # says nothing to opd
    ],
)
def test_hints_to_greedy_replies_wait_where_a_method_needs_probabilities(
    alice: User, method: str, chosen: dict[str, str], takes_greedy: bool
) -> None:
    (greedy,) = hinted_greedy(alice, 1)
    down(plain := make_turn(alice))
    assert taken(alice, method=method, chosen=chosen) == [greedy] * takes_greedy + [plain]
    state = "in_training" if takes_greedy else "counted"
    assert receipt(greedy)["state"] == state
    seen = sample_for(greedy.samples.get(), None)  # the trainer would say the same
    why = _reason_against(seen, TrainConfig(method=method, **chosen))
    assert why == (None if takes_greedy else "greedy")


def test_what_waits_for_another_method_keeps_no_newer_rating_from_training(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_SAMPLES", 2)
    hinted_greedy(alice, 2)
    up(fresh := make_turn(alice))
    assert taken(alice, method="binary") == [fresh]


def test_what_waits_for_another_method_starts_no_job_by_itself(alice: User) -> None:
    policy = TrainingPolicy.objects.create(batch=2, method="binary")
    hinted_greedy(alice, 2)
    up(make_turn(alice))
    assert jobs.queue_batch(alice) is None
    policy.method = "combine"
    policy.save()
    assert jobs.queue_batch(alice) is not None


def test_a_method_that_can_use_nothing_says_so(alice: User) -> None:
    hinted_greedy(alice, 1)
    with pytest.raises(NothingReady, match="binary, with these settings, learns from none"):
        jobs.queue_job(user=alice, method="binary")


def test_what_waits_for_another_method_is_not_counted_toward_a_batch(alice: User) -> None:
    TrainingPolicy.objects.create(batch=2, method="binary")
    waits, _ = hinted_greedy(alice, 2)
    down(make_turn(alice))
    assert (agent_status(alice)["have"], agent_status(alice)["need"]) == (1, 2)
    assert receipt(waits)["count"] == {"have": 1, "need": 2}
    assert jobs.queue_batch(alice) is None
