"""Advantages: of a vote, of a teacher's log-probs. Numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """One user's running mean and variance of thumbs; carried from job to job. b0 = 0, v0 = 1."""

    mean: float = 0.0
    variance: float = 1.0
    count: int = 0


def updated_baseline(baseline: Baseline, rewards: Sequence[float], *, rate: float) -> Baseline:
    """b <- b + a (s - b),  v <- (1 - a)(v + a (s - b)^2), one vote s after the other.

    Exponentially weighted moments (West 1979); the mean as in prime-rl's running baseline.
    """
    mean, variance = baseline.mean, baseline.variance
    for reward in rewards:
        deviation = reward - mean
        mean += rate * deviation
        variance = (1 - rate) * (variance + rate * deviation**2)
    return Baseline(mean=mean, variance=variance, count=baseline.count + len(rewards))


def reward_advantage(
    reward: float,
    baseline: Baseline,
    *,
    sigma_floor: float,
    positive_cap: float,
    negative_cap: float,
) -> float:
    """A = clip((s - b) / max(sigma, floor), -cap_neg, cap_pos), the same for each token of a reply.

    A person sees one answer, so there is no group to compare with (REINFORCE with a running
    baseline, Williams 1992; normalised globally as in REINFORCE++, arXiv 2501.03262).
    """
    sigma = max(math.sqrt(baseline.variance), sigma_floor)
    advantage = (reward - baseline.mean) / sigma
    return min(max(advantage, -negative_cap), positive_cap)


def distillation_advantages(teacher_logprobs_N: Tensor, policy_logprobs_N: Tensor) -> Tensor:
    """A_t = log q(y_t) - log pi(y_t) of the sampled words, (N,) nats, no gradient.

    Minus its mean under pi is KL(pi || q), so a policy gradient with it descends the reverse KL:
    OpenClaw-RL's first generation (arXiv 2603.10165, token-level OPD).
    """
    return (teacher_logprobs_N - policy_logprobs_N).detach()


def kto_weights(liked: int, disliked: int) -> tuple[float, float]:
    """(w_liked, w_disliked): the commoner kind counts less, so that both kinds weigh the same.

    KTO, arXiv 2402.01306, section 4: keep w_D n_D : w_U n_U near 1. One kind alone has weight 1.
    """
    if not liked or not disliked:
        return 1.0, 1.0
    return min(1.0, disliked / liked), min(1.0, liked / disliked)
