"""The bench's model: served to be asked, and loaded to be trained."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.personas.people import Answer
from bench.personas.questions import is_recipe
from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.engines.base import Engine
from rollouts.errors import EngineUnavailable
from rollouts.hints import hinted_messages
from rollouts.types import Message, Policy, Rollout, SamplingParams
from tests.realstack import running
from training.base import Base, load_base

MAX_TOKENS, TEMPERATURE = 160, 0.7
AT_ONCE = 16  # replies asked for: of more, the last would wait longer than an engine may be silent


class Lab:
    """A served model, the same model to train, and a folder for versions."""

    def __init__(self, engine: Engine, base: Base, folder: Path) -> None:
        self.engine, self.base, self.folder = engine, base, folder
        self.first_evals: dict[tuple[str, int], dict[str, Any]] = {}  # by person and seed

    @property
    def dtype(self) -> str:
        """What trains."""
        return "fp32" if self.base.autocast_dtype is None else "bf16"

    def ask(
        self, prompts: Sequence[Sequence[Message]], policy: Policy, *, seed: int
    ) -> list[Rollout]:
        """One sampled reply to each, AT_ONCE at a time."""

        async def all_of_them() -> list[Rollout]:
            places = asyncio.Semaphore(AT_ONCE)

            async def one(number: int, prompt: Sequence[Message]) -> Rollout:
                params = SamplingParams(
                    temperature=TEMPERATURE, max_tokens=MAX_TOKENS, seed=seed + number
                )
                async with places:
                    return await self.engine.generate(prompt, policy=policy, params=params)

            return await asyncio.gather(*(one(i, prompt) for i, prompt in enumerate(prompts)))

        return asyncio.run(all_of_them())

    def serve(self, policy: Policy, instead_of: Policy) -> None:
        asyncio.run(self.engine.load(policy))
        self.unload(instead_of)

    def unload(self, policy: Policy) -> None:
        """No row is lost to a server that has gone: the next question to it says so."""
        if policy.adapter is not None:
            with suppress(EngineUnavailable):
                asyncio.run(self.engine.unload(policy))


@contextmanager
def own_lab() -> Iterator[Lab]:
    """A lab whose server and versions are there while it is."""
    with running("--parts", "vllm") as stack, tempfile.TemporaryDirectory() as folder:
        key = stack.config.secret("vllm_key", stack.config.vllm_key)
        engine = build_engine(EngineConfig(url=stack.config.vllm, key=key))
        yield Lab(engine, load_base(stack.config.model_folder), Path(folder))


def asked(question: str, hints: Sequence[str] = ()) -> list[Message]:
    """The question, with the hints under their marker."""
    return hinted_messages(
        [Message(role="user", content=question)], hint="\n".join(hints), correction=None
    )


def answer_of(question: str, rollout: Rollout) -> Answer:
    return Answer(
        question=question,
        text=rollout.text,
        tokens=len(rollout.response_ids),
        has_ended=rollout.finish_reason == "stop",
        is_recipe=is_recipe(question),
    )
