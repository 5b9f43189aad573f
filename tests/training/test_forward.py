"""A prompt that is read once for all rows gives what it gives when every row reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import (
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from tests.training.conftest import make_sample
from tests.training.test_methods import sizes_of_passes
from training import batching, forward
from training.adapters import adapter_tensors
from training.base import Base, _check_head, _check_reading_on, load_base
from training.batching import Item, Pair
from training.config import TrainConfig
from training.errors import BaseInvalid
from training.forward import KeptPrompts, logits, read_once, replies_logprobs, response_hidden
from training.teacher import Teacher


def pairs_of(base: Base) -> list[Pair]:
    """Three prompts that begin with the same words, of 27 tokens, with replies of 9, 8 and 7."""
    samples = [make_sample(base, number) for number in (1, 22, 333)]
    before = base.encode("You are helpful.\n")
    return [
        ((*before, *base.render(sample.messages)), sample.response_ids[: 9 - i])
        for i, sample in enumerate(samples)
    ]


def items_of(base: Base) -> list[Item]:
    """Those replies, each under a hint of three tokens."""
    return [
        Item(
            sample_id=number,
            prompt_ids=prompt,
            response_ids=tuple(response),
            teacher_prompt_ids=(*prompt[:-3], 5, 6, 7, *prompt[-3:]),
            is_hinted=True,
        )
        for number, (prompt, response) in enumerate(pairs_of(base))
    ]


def away_from_the_base(model: PeftModel) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            tensor.normal_(std=0.1)


def states_and_gradients(
    base: Base, model: PeftModel, pairs: Sequence[Pair]
) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    hidden_NH = response_hidden(base, model, pairs)
    hidden_NH.square().sum().backward()
    return hidden_NH.detach(), [
        tensor.grad.clone() for tensor in adapter_tensors(model).values() if tensor.grad is not None
    ]


def test_shared_tokens_change_neither_states_nor_gradients(
    base: Base, model: PeftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    away_from_the_base(model)
    pairs = pairs_of(base)
    assert batching.shared_length([prompt for prompt, _ in pairs], device="cpu")
    once, gradients_once = states_and_gradients(base, model, pairs)
    monkeypatch.setattr(batching, "WORTH_SHARING", 10**9)
    assert not batching.shared_length([prompt for prompt, _ in pairs], device="cpu")
    each, gradients_each = states_and_gradients(base, model, pairs)
    torch.testing.assert_close(once, each, rtol=1e-5, atol=1e-5)
    assert len(gradients_once) == len(gradients_each) > 0
    for one, other in zip(gradients_once, gradients_each, strict=True):
        assert bool(other.any())
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_micro_batches_share_what_their_prompts_begin_with(
    base: Base, model: PeftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read once for all of them, it gives the states and gradients of reading it each time."""
    away_from_the_base(model)
    pairs = pairs_of(base)
    prompts = [prompt for prompt, _ in pairs]
    begins = batching.shared_ids(prompts, device="cpu")
    states, apart = states_and_gradients(base, model, pairs)
    model.zero_grad()
    found = []
    with sizes_of_passes(base) as sizes, read_once(base, model, begins) as read:
        for group in (pairs[:1], pairs[1:]):
            found.append(response_hidden(base, model, group, read))
            found[-1].square().sum().backward()
    assert sizes[0] == (1, len(begins))
    assert [rows for rows, _ in sizes[1:]] == [1, 2]
    assert sizes[1][1] == len(pairs[0][0]) + len(pairs[0][1]) - 1 - len(begins)  # and not again
    torch.testing.assert_close(torch.cat(found), states, rtol=1e-5, atol=1e-5)
    gradients = [tensor.grad for tensor in adapter_tensors(model).values()]
    for one, other in zip(gradients, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    other = [(5, 6, 7, 8), (9, 10)]  # begins otherwise: nothing of what was read serves it
    with read_once(base, model, begins) as read, torch.no_grad():
        torch.testing.assert_close(
            response_hidden(base, model, [other], read), response_hidden(base, model, [other])
        )
    with read_once(base, model, batching.shared_ids(prompts[:1], device="cpu")) as read:
        assert read is None


def test_of_what_was_read_as_much_serves_as_prompts_begin_with(
    base: Base, model: PeftModel
) -> None:
    away_from_the_base(model)
    pairs = pairs_of(base)
    prompts = [prompt for prompt, _ in pairs]
    begins = batching.shared_ids(prompts, device="cpu")
    shorter = [((*prompt[:9], *prompt[-5:]), reply) for prompt, reply in pairs]
    with torch.no_grad(), read_once(base, model, begins) as read, sizes_of_passes(base) as sizes:
        assert read is not None
        (pair,) = shorter[:1]
        found = response_hidden(base, model, [pair], read)
        assert sizes == [(1, len(pair[0]) + len(pair[1]) - 1 - 9)]
        torch.testing.assert_close(
            found, response_hidden(base, model, [pair]), rtol=1e-5, atol=1e-5
        )


def test_the_teacher_reads_what_all_begin_with_once_a_job(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    items = items_of(base)
    prompts = [ids for item in items for ids in (item.prompt_ids, item.teacher_prompt_ids)]
    begins = batching.shared_ids(prompts, device="cpu")
    apart = [Teacher(base, model, config).hidden([item]) for item in items]
    teacher = Teacher(base, model, config)
    with sizes_of_passes(base) as sizes:
        for _ in range(2):  # steps
            teacher.begin(items)
            for item, alone in zip(items, apart, strict=True):
                found = teacher.hidden([item])
                torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)
            teacher.forget()
    first, again = sizes[: 1 + len(items)], sizes[1 + len(items) :]
    assert first[0] == (1, len(begins))
    assert again == [(1, len(item.response_ids)) for item in items]  # of the prompts nothing


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_prompts_that_are_kept_are_not_read_again(
    base: Base, model: PeftModel, precision: torch.dtype | None
) -> None:
    """Other replies to them get the states of reading all, whatever the prompts' lengths; in bf16
    as nearly as it rounds."""
    away_from_the_base(model)
    near = {"rtol": 1e-5, "atol": 1e-5} if precision is None else {"rtol": 0.05, "atol": 0.05}
    base = replace(base, autocast_dtype=precision)
    pairs = pairs_of(base)
    pairs[1] = (*pairs[1][0][:-9], *pairs[1][0][-4:]), pairs[1][1]
    prompts = [tuple(prompt) for prompt, _ in pairs]
    assert len({len(prompt) for prompt in prompts}) == len(prompts)
    others = [(prompt, tuple(reversed(reply))) for prompt, reply in pairs]
    begins = batching.shared_ids(prompts, device="cpu")
    for known in (begins, begins[:-5], ()):
        kept = KeptPrompts(wanted=frozenset(prompts[:2]))
        with torch.no_grad(), read_once(base, model, known) as read:
            response_hidden(base, model, pairs, read, kept)
            with sizes_of_passes(base) as sizes:
                found = response_hidden(base, model, others[:2], read, kept)
                assert sizes == [(2, 9)]
                response_hidden(base, model, others, read, kept)  # the third is not kept
                assert sizes[-1][1] > len(others[2][1])
            apart = [response_hidden(base, model, [pair]) for pair in others[:2]]
            torch.testing.assert_close(found, torch.cat(apart), **near)


def test_what_a_window_slides_past_is_kept_too(base: Base) -> None:
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    size = MistralConfig(
        vocab_size=base.model.config.vocab_size,
        num_hidden_layers=2,
        num_key_value_heads=1,
        sliding_window=16,
        **small,
    )
    model = MistralForCausalLM(size).eval()
    base = replace(base, model=model)
    pairs = [(tuple(range(1, 41)), (5, 6, 7)), (tuple(range(9, 39)), (8, 9))]
    kept = KeptPrompts(wanted=frozenset(prompt for prompt, _ in pairs))
    with torch.no_grad():
        for _ in range(2):
            found = response_hidden(base, model, pairs, None, kept)
            torch.testing.assert_close(
                found, response_hidden(base, model, pairs), rtol=1e-5, atol=1e-5
            )


def test_no_more_prompts_are_kept_than_there_is_room_for(
    base: Base, model: PeftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = pairs_of(base)
    config = base.model.config
    each = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    monkeypatch.setattr(forward, "ROOM", each * (len(pairs[0][0]) - 1 + len(pairs[1][0]) - 1))
    kept = KeptPrompts(wanted=frozenset(tuple(prompt) for prompt, _ in pairs))
    with torch.no_grad():
        response_hidden(base, model, pairs, None, kept)
    assert [kept.has([pair]) for pair in pairs] == [True, True, False]


def test_log_probs_are_of_each_replys_own_words_however_many_there_are(
    base: Base, model: PeftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    away_from_the_base(model)
    pairs = [*pairs_of(base), *((prompt, reply[1:]) for prompt, reply in pairs_of(base))]
    monkeypatch.setattr(forward, "CHUNK", 7)
    found = replies_logprobs(base, model, pairs)
    assert len(found) == 6  # more than are read at once
    for (prompt, reply), found_T in zip(pairs, found, strict=True):
        ids = torch.tensor([[*prompt, *reply]], device=base.device)
        with torch.no_grad():
            logits_TV = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        own_T = torch.log_softmax(logits_TV, dim=-1)[range(len(reply)), list(reply)]
        torch.testing.assert_close(found_T, own_T, rtol=1e-4, atol=1e-4)


def test_the_teachers_passes_may_be_one(base: Base, model: PeftModel, config: TrainConfig) -> None:
    items = items_of(base)
    teacher = Teacher(base, model, config)
    assert batching.shared_length([items[0].prompt_ids, items[0].teacher_prompt_ids], device="cpu")
    for group in (items, items[:1]):  # apart, and in one
        ways = [[item.taught for item in group], [item.plain for item in group]]
        found = teacher._ways(*ways)
        with torch.no_grad(), model.disable_adapter():
            for way, found_NH in zip(ways, found, strict=True):
                apart = [response_hidden(base, model, [pair]) for pair in way]
                torch.testing.assert_close(found_NH, torch.cat(apart), rtol=1e-5, atol=1e-5)


def test_a_model_that_forgets_what_it_has_read_is_refused(base: Base) -> None:
    _check_reading_on(base.model)

    class Forgetful:
        device = base.model.device

        def get_decoder(self) -> object:
            def decoder(**call: object) -> object:
                return base.model.get_decoder()(input_ids=call["input_ids"])

            return decoder

    with pytest.raises(BaseInvalid, match="read on"):
        _check_reading_on(Forgetful())


@pytest.mark.parametrize(
    "change",
    [{"logits_scaling": 4.0}, {"logit_scale": 0.25}, {"final_logit_softcapping": 1.5}],
    ids=["granite", "cohere", "gemma2"],
)
def test_what_follows_the_output_layer_is_part_of_the_logits(
    base: Base, monkeypatch: pytest.MonkeyPatch, change: dict[str, float]
) -> None:
    """By hand: of 3 and 1 a quarter is 0.75 and 0.25; 1.5 tanh(2) is 1.446, 1.5 tanh(2/3) 0.874."""
    monkeypatch.setattr(base.model, "config", SimpleNamespace(**change))
    head = nn.Linear(1, 2, bias=False)
    head.weight.data[:] = torch.tensor([[3.0], [1.0]])
    monkeypatch.setattr(base.model, "get_output_embeddings", lambda: head)
    expected = [1.446, 0.874] if "final_logit_softcapping" in change else [0.75, 0.25]
    found = logits(base, torch.ones(1, 1))
    torch.testing.assert_close(found, torch.tensor([expected]), rtol=1e-3, atol=1e-3)


def test_a_model_with_logits_of_its_own_is_refused(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_head(base.model)
    monkeypatch.setattr(base.model.config, "logits_scaling", 2.0, raising=False)  # not in its code
    with pytest.raises(BaseInvalid, match="logits"):
        _check_head(base.model)


def test_a_cap_on_attention_holds_in_training(tiny_folder: Path, tmp_path: Path) -> None:
    """Gemma 2's. torch's own attention, which transformers takes unasked, has none."""
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_folder)
    config = Gemma2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, initializer_range=0.3,
        attn_logit_softcapping=0.5, final_logit_softcapping=5.0, query_pre_attn_scalar=16,
    )  # fmt: skip
    torch.manual_seed(0)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    capped = replace(load_base(tmp_path, device="cpu"), autocast_dtype=None)
    ids = torch.tensor([capped.encode("Why is the sky blue?")])
    found, other = (
        Gemma2ForCausalLM.from_pretrained(tmp_path, attn_implementation=kind)(input_ids=ids).logits
        for kind in ("eager", "sdpa")
    )
    assert not torch.allclose(found, other, atol=1e-2)  # else there is nothing to tell
    said = ids[0].tolist()
    (ours,) = replies_logprobs(capped, capped.model, [(tuple(said[:5]), tuple(said[5:]))])
    theirs = torch.log_softmax(found[0, 4:-1], dim=-1).gather(-1, ids[0, 5:, None])[:, 0]
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-4)
