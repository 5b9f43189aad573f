"""What a training run reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from training.advantages import Baseline
from training.config import TrainConfig

RATED = "rated"  # on the replies that were rated
REANSWER = "reanswer"  # on the current adapter's own new answers to the same prompts
THUMBS = "thumbs"  # on all thumbs that are known, by KTO after the hints: another loss


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One optimizer step. What was not measured is None, never 0."""

    step: int  # from 1
    steps: int  # planned; a run may stop earlier
    phase: str
    loss: float  # what the step minimizes: each part its own mean, weighted
    reward: float | None  # mean vote of the step's rated replies
    kl: float | None  # mean KL(policy || teacher) of hinted tokens, nats, before the step
    grad_norm: float  # before clipping
    tokens_per_second: float  # response tokens, sampling included
    seconds: float
    replies: int  # that the step rests on
    lr: float | None = None  # as this step used it; None where it was not made
    reward_std: float | None = None  # of the votes; None with less than two
    zero_advantage: float | None = None  # share of the advantages that are 0
    policy_loss: float | None = None  # of the rewarded tokens, their anchor included
    kl_base: float | None = None  # k3 estimate to the base on anchored tokens, nats per token
    correction_nll: float | None = None  # of corrections' words, nats per token, before the step
    entropy: float | None = None  # of the policy before the step, nats per token
    clip_share: float | None = None  # of the rewarded tokens whose ratio was clipped
    policy_lag: float | None = None  # mean versions between a reply's policy and the parent
    response_length: float | None = None  # mean tokens of re-answers
    cut_share: float | None = None  # of re-answers that reached the limit without ending
    memory_mib: float | None = None  # held by this process, or the most that a GPU held


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a run did with each sample, and what the next job of this user starts from."""

    config: TrainConfig  # as it was given, but for what thumbs alone change
    steps: int  # optimizer steps made
    trained: tuple[int, ...]  # ids of the samples that trained
    dropped: Mapping[int, str]  # sample id -> reason
    reanswers: Mapping[int, int]  # sample id -> how often its prompt was answered anew
    # sample id -> log q(y_t) - log pi(y_t) at T = 1, nats, of the tokens that trained: how the hint
    # (boosted, as the teacher has it) moves each of them from what the policy said before this step
    effects: Mapping[int, tuple[float, ...]]
    unheard: frozenset[int]  # samples whose hint names a kind that the teacher does not hear
    baseline: Baseline
    optimizer: torch.optim.Optimizer  # to be saved beside the version
    stopped: str  # "steps", "time", "asked" or "learned" (KL under the hints below kl_stop)
    seconds: float
