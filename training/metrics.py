"""A step's numbers for the charts, from what its gradient was made of; None = not measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import psutil
import torch

from training.batching import Item
from training.step import StepSums
from training.types import StepMetrics

MIB = 2**20


def step_metrics(
    items: Sequence[Item],
    sums: StepSums,
    *,
    step: int,
    steps: int,
    phase: str,
    grad_norm: float,
    lr: float | None,
    seconds: float,
    device: str,
) -> StepMetrics:
    """`items` are the step's replies, `sums` what their micro-batches added up to."""
    tokens = sum(len(item.response_ids) for item in items)
    rewards = [item.reward for item in items if item.reward is not None]
    idle = [float(item.advantage == 0) for item in items if item.advantage is not None]
    fresh = [item for item in items if item.is_fresh]
    cut = [item.is_finished is False for item in fresh if item.is_finished is not None]
    return StepMetrics(
        step=step,
        steps=steps,
        phase=phase,
        loss=sums.loss,
        reward=_mean(rewards),
        kl=_share(sums.kl, sums.hinted_tokens),
        grad_norm=grad_norm,
        tokens_per_second=tokens / max(seconds, 1e-9),
        seconds=seconds,
        replies=len(items),
        lr=lr,
        reward_std=statistics.pstdev(rewards) if len(rewards) > 1 else None,
        # KTO trains by no advantage, whatever its items carry.
        zero_advantage=_mean(idle) if sums.rewarded_tokens else None,
        policy_loss=sums.policy_loss if sums.rewarded_tokens else None,
        kl_base=_share(sums.kl_base, sums.anchored_tokens),
        correction_nll=_share(sums.correction_nll, sums.corrected_tokens),
        entropy=_share(sums.entropy, sums.tokens),
        clip_share=_share(sums.clipped_tokens, sums.rewarded_tokens),
        policy_lag=_mean([0.0 if item.is_fresh else float(item.version_age) for item in items]),
        response_length=_mean([float(len(item.response_ids)) for item in fresh]),
        cut_share=_mean([float(is_cut) for is_cut in cut]),
        memory_mib=_memory_mib(device),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _share(value: float, of: float) -> float | None:
    return value / of if of else None


def begin_memory(device: str) -> None:
    """A GPU's peak is counted from here on: a job's is its own."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)


def _memory_mib(device: str) -> float:
    """The most that the GPU has held in this job, else what the process holds now."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device) / MIB
    return float(psutil.Process().memory_info().rss) / MIB
