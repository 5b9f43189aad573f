"""The errors that talking to a model can raise.

RolloutError
├── EngineUnavailable   no answer: down, refused, timed out. Trying again later may help.
├── EngineRefused       an answer, and it is no (4xx/5xx with a reason). Trying again will not.
│   ├── PromptTooLong   prompt plus reply do not fit the model's context
│   ├── UnknownAdapter  the engine does not serve this adapter (any more)
│   └── AdapterRejected the engine would not load these files, or serves others under the name
├── BadReply            the engine, or a judge, broke its own format
├── JudgeUnavailable    no vote now: down, busy, timed out. Asking again later may help.
└── JudgeRefused        no vote, and asking again will not help
"""


class RolloutError(Exception):
    """Root of everything that rollouts/ raises."""


class EngineUnavailable(RolloutError):
    """The engine did not answer."""


class EngineRefused(RolloutError):
    """The engine answered with an error; the message says what it said."""


class PromptTooLong(EngineRefused):
    """The prompt does not fit the context."""


class UnknownAdapter(EngineRefused):
    """The engine does not serve this adapter."""


class AdapterRejected(EngineRefused):
    """The engine refused an adapter's files, or another folder is served under its name."""


class BadReply(RolloutError):
    """The engine's answer is not in the form it promised."""


class JudgeUnavailable(RolloutError):
    """The judge did not vote; it may later, after `wait` seconds if it said so."""

    def __init__(self, message: str, *, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class JudgeRefused(RolloutError):
    """The judge will not vote on this; the message says why."""
