"""Replies that the trainer samples: seeded, ended where they end, each row as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from peft import PeftModel

from tests.training.conftest import DEVICE, Cancelled, cancel_after, nothing
from tests.training.test_gate import shake
from training.base import Base
from training.sampling import Reply, sample_replies


def greedy(base: Base, model: PeftModel, prompts: Sequence[tuple[int, ...]]) -> list[Reply]:
    return sample_replies(
        base, model, prompts, temperature=0.0, max_new_tokens=12, seed=0, check=nothing
    )


def test_sampling_is_seeded_and_ends_at_the_end_token(base: Base, model: PeftModel) -> None:
    shake(model)
    prompts = [base.encode("a"), base.encode("a longer prompt than that")]

    def sampled(seed: int, temperature: float = 1.0) -> list[Reply]:
        settings = {"temperature": temperature, "max_new_tokens": 40, "seed": seed}
        return sample_replies(base, model, prompts, **settings, check=nothing)  # type: ignore[arg-type]

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert sampled(1, temperature=0.0) == sampled(2, temperature=0.0)
    for seed in range(5):
        for reply in sampled(seed):
            ends = [i for i, token in enumerate(reply.ids) if token in base.eos_ids]
            assert ends == ([len(reply.ids) - 1] if reply.is_finished else [])
            assert reply.is_finished or len(reply.ids) == 40


def test_padding_a_prompt_does_not_change_its_greedy_reply(base: Base, model: PeftModel) -> None:
    shake(model)
    prompts = [base.encode("a"), base.encode("a longer prompt than that")]
    one_by_one = [*greedy(base, model, prompts[:1]), *greedy(base, model, prompts[1:])]
    assert greedy(base, model, prompts) == one_by_one


def test_greedy_replies_are_the_models_own_argmax(base: Base, model: PeftModel) -> None:
    shake(model)
    prompt = base.encode("what now")
    (reply,) = sample_replies(
        base, model, [prompt], temperature=0.0, max_new_tokens=6, seed=0, check=nothing
    )
    ids = torch.tensor([[*prompt, *reply.ids]], device=DEVICE)
    with torch.no_grad():
        best = model(input_ids=ids).logits[0].argmax(-1)[len(prompt) - 1 : -1]
    assert tuple(best.tolist()) == reply.ids


def test_a_row_that_has_ended_leaves_the_others_to_themselves(
    base: Base, model: PeftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shake(model)
    prompts = [base.encode(text) for text in ("a", "a longer prompt than that", "what now")]
    whole = [reply.ids for reply in greedy(base, model, prompts)]
    assert [len(ids) for ids in whole] == [12] * 3
    for first in range(3):  # whose second token ends a reply from now on
        end = whole[first][1]
        monkeypatch.setattr(base.model.generation_config, "eos_token_id", end)
        wanted = [ids[: ids.index(end) + 1] if end in ids else ids for ids in whole]
        found = greedy(base, model, prompts)
        assert [reply.ids for reply in found] == wanted
        assert [reply.is_finished for reply in found] == [end in ids for ids in whole]
        assert min(map(len, wanted)) < max(map(len, wanted))  # some went on


def test_the_colder_the_nearer_to_the_likeliest_word(base: Base, model: PeftModel) -> None:
    shake(model)
    prompts = [base.encode("a"), base.encode("what now")]

    def sampled(temperature: float) -> list[Reply]:
        return sample_replies(
            base, model, prompts, temperature=temperature, max_new_tokens=12, seed=0, check=nothing
        )

    assert sampled(1e-4) == greedy(base, model, prompts) != sampled(1e4)


def test_what_nobody_asked_is_not_answered(base: Base, model: PeftModel) -> None:
    assert greedy(base, model, []) == []


def test_a_cancelled_job_ends_before_the_next_token(base: Base, model: PeftModel) -> None:
    def sampled(check: Callable[[], None]) -> list[Reply]:
        return sample_replies(
            base, model, [(5, 6)], temperature=0.0, max_new_tokens=3, seed=0, check=check
        )

    assert sampled(cancel_after(3))
    with pytest.raises(Cancelled):
        sampled(cancel_after(2))
