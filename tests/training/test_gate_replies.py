"""The replies that the gate samples: as the job says, and what is in them."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest
from peft import PeftModel

from tests.training.conftest import Cancelled, cancel_after, nothing
from tests.training.test_gate import PROMPTS, gate
from training.base import Base
from training.config import TrainConfig
from training.drift import Wishes
from training.gate import measure, reply_measures
from training.sampling import Reply, sample_replies


@pytest.mark.parametrize(
    "changes", [{"gate_tokens": 9}, {"gate_temperature": 0.9}, {"seed": 5}], ids=str
)
def test_replies_are_sampled_as_the_job_says_and_not_taken_from_another(
    base: Base, model: PeftModel, config: TrainConfig, changes: dict[str, int]
) -> None:
    other = replace(config, **changes)
    gate(base, model, config)
    sampled = Mock(side_effect=sample_replies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.gate.sample_replies", sampled)
        gate(base, model, other)
        assert sampled.call_count == 2  # its own, and the base's
        assert {
            "temperature": other.gate_temperature,
            "max_new_tokens": other.gate_tokens,
            "seed": other.seed,
        }.items() <= sampled.call_args.kwargs.items()
        measure(base, model, None, (), PROMPTS[:2], Wishes(), other, nothing)
        assert sampled.call_count == 4


def test_a_reply_of_the_end_token_alone_is_empty(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [Reply(ids=(*base.encode(text), base.eos_ids[0]), is_finished=True) for text in "ab"]
    said.append(Reply(ids=base.eos_ids[:1], is_finished=True))
    monkeypatch.setattr("training.gate.sample_replies", lambda *_, **__: said)
    assert gate(base, model, config)["empty"].value == pytest.approx(1 / 3)


def test_the_gate_can_be_stopped_while_it_asks_what_was_asked(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [Reply(ids=base.encode("a"), is_finished=False)] * len(PROMPTS)
    monkeypatch.setattr("training.gate.sample_replies", lambda *_, **__: said)
    # Of its own replies after their own prompts, and after others; then of the base's.
    for checks in range(4):
        base.cache.clear()
        with pytest.raises(Cancelled):
            reply_measures(base, model, None, PROMPTS, config, cancel_after(checks))
    base.cache.clear()
    assert reply_measures(base, model, None, PROMPTS, config, cancel_after(4))
