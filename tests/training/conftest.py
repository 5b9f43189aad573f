"""The tiny model, and a way to make samples of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from rollouts.types import Message, Sample
from training.adapters import attach, detach
from training.advantages import Baseline
from training.base import Base, load_base
from training.batching import Item
from training.config import TrainConfig
from training.forward import kl_between, response_hidden
from training.prepare import prepare
from training.tiny import TEMPLATE, write_tiny
from training.trainer import train
from training.types import StepMetrics, TrainResult

DEVICE = os.environ.get("TEST_DEVICE", "cpu")  # or "cuda": see CONTRIBUTING.md
ATOL = 1e-7 if DEVICE == "cpu" else 1e-5  # of gradients: a GPU adds up in any order


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def shared_base(tiny_folder: Path) -> Base:
    """In fp32 on every machine: worked examples are exact. Others would use bf16."""
    base = load_base(tiny_folder, device="cpu")
    base.model.to(DEVICE)
    return replace(base, device=DEVICE, autocast_dtype=None)


@pytest.fixture
def base(shared_base: Base) -> Iterator[Base]:
    """The base; a test that leaves an adapter on it would spoil the next one: it fails here."""
    shared_base.cache.clear()
    yield shared_base
    assert not any("lora_" in name for name, _ in shared_base.model.named_parameters())


@pytest.fixture
def refusing(tiny_folder: Path, tmp_path: Path) -> Callable[[str], Base]:
    """`refusing("messages | length > 1")`: the tiny model, whose template takes no such."""

    def refuse(what: str) -> Base:
        file = tmp_path / "strict.jinja"
        file.write_text(f"{{% if {what} %}}{{{{ raise_exception('no') }}}}{{% endif %}}{TEMPLATE}")
        return load_base(tiny_folder, device="cpu", chat_template=file)

    return refuse


@pytest.fixture
def config() -> TrainConfig:
    return TrainConfig(
        lr=5e-3, batch_size=8, max_steps=4, rated_tokens=24, reanswer_tokens=12, gate_tokens=8,
        small_talk_nats=0.0,  # what the tiny model tells apart is chance
    )  # fmt: skip


@pytest.fixture
def model(base: Base, config: TrainConfig) -> Iterator[PeftModel]:
    model = attach(base, config, None)
    yield model
    detach(base, model)


def make_sample(base: Base, number: int = 1, **changes: Any) -> Sample:
    """A rated turn of the tiny model; `changes` replace fields."""
    messages = [Message(role="user", content=f"question {number}")]
    reply = base.encode(f"answer {number}, at some length")
    fields: dict[str, Any] = {
        "id": number,
        "messages": messages,
        "prompt_ids": base.render(messages),
        "response_ids": reply,
        "rollout_logprobs": [-1.0] * len(reply),
        "temperature": 0.7,
        "template_hash": base.template_hash,
        "reward": -1.0,
        "hint": "Please answer in one word.",
        "correction": None,
    }
    return Sample(**(fields | changes))


def nothing() -> None:
    """A check that never ends the run."""


class Cancelled(Exception):
    pass


def cancel_after(calls: int) -> Callable[[], None]:
    """A check that ends the run when it is called once more than so often."""
    left = iter(range(calls))

    def check() -> None:
        if next(left, None) is None:
            raise Cancelled

    return check


def job(
    base: Base, model: PeftModel, samples: Sequence[Sample], config: TrainConfig, **more: Any
) -> tuple[TrainResult, list[StepMetrics]]:
    steps: list[StepMetrics] = []
    settings: dict[str, Any] = {"baseline": Baseline(), "on_step": steps.append, "check": nothing}
    return train(base, model, samples, config, **(settings | more)), steps


def samples(base: Base, count: int = 8, **changes: Any) -> list[Sample]:
    return [make_sample(base, number, **changes) for number in range(1, count + 1)]


def items_of(base: Base, given: Sequence[Sample], config: TrainConfig) -> list[Item]:
    return prepare(base, given, config, baseline=Baseline())[0]


@torch.no_grad()
def hinted_kl(base: Base, model: PeftModel, items: Sequence[Item]) -> float:
    own = response_hidden(base, model, [(i.prompt_ids, i.response_ids) for i in items])
    with model.disable_adapter():
        teacher = response_hidden(
            base, model, [(i.teacher_prompt_ids, i.response_ids) for i in items]
        )
    return float(kl_between(base, own, teacher).mean())
