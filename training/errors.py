"""The errors that training can raise.

TrainingError
├── BaseInvalid      the base model's folder cannot be used
├── AdapterInvalid   an adapter's files must not be served or trained from; `reason` says why
├── OptimizerInvalid Adam's stored state does not fit the adapter
├── Diverged         a step's loss or gradient was not finite
└── NoSignal         nothing in the job could train; `dropped` says why for each sample
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class TrainingError(Exception):
    """Root of everything that training/ raises itself."""


class BaseInvalid(TrainingError):
    """The base model's folder is incomplete, or of an architecture that is not understood."""


class AdapterInvalid(TrainingError):
    """An adapter's files must not be served or trained from."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OptimizerInvalid(TrainingError):
    """Adam's stored state does not fit the adapter that is being trained."""


class Diverged(TrainingError):
    """A step's loss or gradient was not finite; the adapter must not be used."""


class NoSignal(TrainingError):
    """Nothing in the job could train. `unheard`: as in TrainResult."""

    def __init__(self, dropped: Mapping[int, str], unheard: Collection[int] = ()) -> None:
        reasons = ", ".join(sorted(set(dropped.values()))) or "no samples"
        super().__init__(f"nothing to train on: {reasons}")
        self.dropped = dict(dropped)
        self.unheard = frozenset(unheard)
