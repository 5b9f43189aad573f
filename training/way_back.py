"""Moves a version back to where the gate lets it answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from peft import PeftModel

from training.adapters import round_to_saved, scale, snapshot
from training.base import Base
from training.config import TrainConfig
from training.drift import Wishes, drift, drift_limit
from training.gate import Measure, decide, reply_measures

LEAST_SHARE = 0.3  # of its way from the base that a version is moved back to
CLOSER = 0.98  # how much less each try is at least
REPLIES_CLOSER = 0.8  # and where its replies fail, which do not say how far: each try samples anew


def step_back(
    base: Base,
    model: PeftModel,
    parent: Path | None,
    neutral: Sequence[str],
    wishes: Wishes,
    config: TrainConfig,
    check: Callable[[], None],
) -> float:
    """Move `model` straight back toward the base until its drift and its replies would pass.

    Returns the share s of its way from the base that is left: 1 when nothing was moved. Below
    LEAST_SHARE it stops, and the gate will say what is wrong with the version. This is projected
    gradient descent onto a ball of KL (the limit of TRPO, arXiv 1502.05477, eq. 14): the nearest
    point on the ray, not on the job's own step, so that a version at the limit can still turn. KL
    is quadratic near the base, so each try is s sqrt(limit / drift), and a little more. Within the
    ball, what broke the replies (a loop, no end) fades on the same ray.
    """
    limit = drift_limit(base, model, neutral, wishes, config, check)
    end, share = snapshot(model), 1.0
    round_to_saved(model)
    while share > LEAST_SHARE:
        if (found := drift(base, model, neutral, config, check)) > limit:
            closer = min(CLOSER, math.sqrt(limit / found))
        elif decide(reply_measures(base, model, parent, neutral, config, check)).accepted:
            break
        else:
            closer = REPLIES_CLOSER
        share = max(LEAST_SHARE, share * closer)
        scale(model, end, share=share)
        round_to_saved(model)
    return share


def way_measure(share: float) -> Measure:
    """What `step_back` left of the version's way: told beside the tests, and none itself."""
    text = "nothing of what was learned had to be taken back"
    if share < 1:
        text = f"{share:.0%} of what was learned is kept: the whole of it led too far"
    return Measure(measure="way", value=share, limit=LEAST_SHARE, ok=True, text=text)
