from __future__ import annotations

import pytest

from training.advantages import Baseline, reward_advantage, updated_baseline

CAPS = {"sigma_floor": 0.5, "positive_cap": 1.0, "negative_cap": 0.5}


def test_the_baseline_follows_the_votes() -> None:
    # b: 0 -> 0.1 -> 0.1 + 0.1 (-1.1) = -0.01
    # v: 1 -> 0.9 (1 + 0.1 * 1) = 0.99 -> 0.9 (0.99 + 0.1 * 1.21) = 0.9999
    baseline = updated_baseline(Baseline(), [1.0, -1.0], rate=0.1)
    assert baseline.mean == pytest.approx(-0.01, rel=1e-9)
    assert baseline.variance == pytest.approx(0.9999, rel=1e-9)
    assert baseline.count == 2


def test_no_vote_moves_nothing() -> None:
    assert updated_baseline(Baseline(mean=0.3), [], rate=0.1) == Baseline(mean=0.3)


@pytest.mark.parametrize(
    ("reward", "baseline", "expected"),
    [
        (1.0, Baseline(), 1.0),  # (1 - 0) / 1
        (-1.0, Baseline(), -0.5),  # -1, capped at -0.5
        (1.0, Baseline(mean=0.8, variance=0.36), 1 / 3),  # 0.2 / 0.6
        (1.0, Baseline(mean=0.9, variance=0.0), 0.2),  # 0.1 / floor 0.5, not 0.1 / 0
        (1.0, Baseline(mean=-1.0, variance=0.04), 1.0),  # 2 / 0.5 = 4, capped at 1
        (-1.0, Baseline(mean=-0.9, variance=1.0), -0.1),  # expected by now: hardly a push
    ],
)
def test_advantages_by_hand(reward: float, baseline: Baseline, expected: float) -> None:
    assert reward_advantage(reward, baseline, **CAPS) == pytest.approx(expected, rel=1e-6)


def test_a_user_who_always_likes_comes_to_teach_little_and_never_blows_up() -> None:
    baseline = updated_baseline(Baseline(), [1.0] * 100, rate=0.1)
    assert 0 < reward_advantage(1.0, baseline, **CAPS) < 1e-3
