"""Arithmetic in bf16, where the processor or the GPU has it: near to fp32's, and it learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from tests.training.conftest import DEVICE, job, samples
from training import adapters, forward
from training.adapters import attach, merged, wearing
from training.base import Base, load_base
from training.config import TrainConfig
from training.forward import response_hidden, response_logprobs

on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="what a CPU alone does")


@pytest.fixture
def half(base: Base) -> Base:
    return replace(base, autocast_dtype=torch.bfloat16)


def test_log_probs_are_near_those_of_fp32(base: Base, half: Base) -> None:
    pair = (base.encode("a question"), base.encode("an answer, at some length"))
    exact, rounded = (response_logprobs(one, one.model, pair) for one in (base, half))
    assert not torch.equal(exact, rounded)
    assert (rounded.float() - exact).abs().mean() < 0.05  # nats per token


def test_weights_rounded_once_give_the_numbers_of_autocast(half: Base, model: PeftModel) -> None:
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.02)
    with model.disable_adapter():  # rounds; a version that is switched off is not frozen for that
        plain = both_ways(half, model)
    moved = both_ways(half, model)
    for lowered, rounded_anew in (plain, moved):
        assert all(torch.equal(a, b) for a, b in zip(lowered, rounded_anew, strict=True))
    assert len(moved[0]) > len(plain[0]) == 1  # gradients too
    assert not torch.equal(plain[0][0], moved[0][0])


def both_ways(half: Base, model: PeftModel) -> list[list[Tensor]]:
    """Logits, and the gradients of what is trained, with weights rounded once and by autocast."""
    found = []
    for arithmetic in (half.lowered, half.autocast):
        model.zero_grad()
        with arithmetic():
            logits = model(input_ids=torch.arange(8, device=DEVICE)[None] + 5).logits.float()
        if logits.requires_grad:
            logits.square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([logits.detach(), *grads])
    return found


@on_cpu
def test_attention_by_plain_products_walks_back_alike(half: Base, model: PeftModel) -> None:
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.02)
    pairs = [([5, 6, 7], [8, 9, 10]), ([11, 12], [13])]  # of other lengths: one is padded
    exact = replace(half, autocast_dtype=None)
    ways = {}
    for way, one, most in (("plain", half, 192), ("torch's", half, 0), ("exact", exact, 192)):
        model.zero_grad()
        with mock.patch.object(forward, "PLAIN_ATTENTION", most), seeing_attention(half) as seen:
            hidden_NH = response_hidden(one, model, pairs).float()
            hidden_NH[:, ::2].sum().backward()  # not of all: the last norm keeps their length
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        ways[way] = seen.pop(), torch.cat(grads)
    names, gradients = zip(*ways.values(), strict=True)
    assert names == ("eager", "sdpa", "sdpa")
    assert half.model.config._attn_implementation == "sdpa"
    plain, torchs, exactly = gradients
    assert not torch.equal(plain, torchs)
    off, torchs_off = ((one - exactly).norm() / exactly.norm() for one in (plain, torchs))
    assert 0 < off < 2 * torchs_off < 0.1


@on_cpu
def test_a_policy_that_has_not_moved_has_its_teachers_numbers(half: Base, model: PeftModel) -> None:
    pairs = [([5, 6, 7], [8, 9, 10]), ([11, 12], [13])]
    with torch.no_grad(), model.disable_adapter(), seeing_attention(half) as seen:
        teacher_NH = response_hidden(half, model, pairs)
    assert seen == ["eager"]
    assert torch.equal(response_hidden(half, model, pairs), teacher_NH)


@on_cpu
def test_attention_is_put_back_when_a_pass_fails(half: Base, model: PeftModel) -> None:
    with pytest.raises(IndexError):
        response_hidden(half, model, [([half.model.config.vocab_size], [5, 6])])
    assert half.model.config._attn_implementation == "sdpa"


@contextmanager
def seeing_attention(base: Base) -> Iterator[list[str]]:
    """The implementation that each pass runs with."""
    seen: list[str] = []
    decoder = base.model.get_decoder()
    hook = decoder.register_forward_pre_hook(
        lambda *_: seen.append(base.model.config._attn_implementation)
    )
    try:
        yield seen
    finally:
        hook.remove()


def test_the_exact_weights_stay_as_they_are(half: Base, model: PeftModel) -> None:
    before = [(name, p, p.clone()) for name, p in half.model.named_parameters()]
    head, words = half.model.get_output_embeddings(), half.model.get_input_embeddings()
    was_tied = head.weight is words.weight
    with half.lowered():
        assert head.weight.dtype == torch.bfloat16
        assert words.weight.dtype == torch.float32  # as autocast leaves it
    with pytest.raises(KeyError), half.lowered():
        raise KeyError
    assert (head.weight is words.weight) == was_tied
    for (name, param, value), (now, same) in zip(
        before, half.model.named_parameters(), strict=True
    ):
        assert now == name
        assert same is param
        assert torch.equal(same, value)


def test_replies_are_sampled_from_merged_weights_rounded_once(half: Base, model: PeftModel) -> None:
    ids = torch.arange(8, device=DEVICE)[None] + 5
    with torch.no_grad(), half.autocast():
        expected = model(input_ids=ids).logits.float()
        with merged(model, torch.bfloat16):
            found = model(input_ids=ids).logits.float()
    assert (found - expected).abs().max() < 0.05


@pytest.mark.skipif(DEVICE != "cpu" or not adapters._LAYS_OUT, reason="a CPU with bf16 does it")
def test_for_samples_weights_are_laid_out_once_and_say_the_same_to_the_bit(
    half: Base, model: PeftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, ids = half.model.get_output_embeddings(), torch.arange(8)[None] + 5
    plainly = head.forward
    with torch.no_grad(), half.autocast():
        with merged(model, torch.bfloat16):
            assert head.forward != plainly
            found = model(input_ids=ids).logits
        assert head.forward == plainly
        with pytest.raises(KeyError), merged(model, torch.bfloat16):
            raise KeyError
        assert "forward" not in vars(head)
        monkeypatch.setattr(adapters, "_LAYS_OUT", False)
        with merged(model, torch.bfloat16):
            assert head.forward == plainly
            assert head.weight.dtype == torch.bfloat16
            assert torch.equal(model(input_ids=ids).logits, found)


@pytest.mark.skipif(not adapters._LAYS_OUT, reason="a CPU with bf16 does it")
@pytest.mark.parametrize("rows", [1, 4, 24])
def test_a_product_laid_out_has_its_bias(rows: int) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 40)
    x_BI = torch.randn(rows, 24)
    with torch.no_grad():
        found = adapters._laid_out(layer, torch.bfloat16)(x_BI)
        low = layer.to(torch.bfloat16)
        torch.testing.assert_close(found, low(x_BI.to(torch.bfloat16)), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_what_an_adapter_adds_survives_the_rounding_for_samples(
    tiny_folder: Path, config: TrainConfig, stored: torch.dtype
) -> None:
    """Checkpoints are in bf16, so that whatever is less than half a step of it would round away."""
    half = replace(load_base(tiny_folder, device="cpu"), autocast_dtype=torch.bfloat16)
    half.model.to(torch.bfloat16).to(stored)
    model = attach(half, config, None)
    torch.manual_seed(0)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.001)
    ids = torch.arange(200)[None] + 5
    with torch.no_grad(), half.autocast():
        own = model(input_ids=ids).logits.float()
        with wearing(model, None):
            of_base = model(input_ids=ids).logits.float()
        with merged(model, torch.bfloat16):
            sampled = model(input_ids=ids).logits.float()
    added, survived = own - of_base, sampled - of_base
    share = (survived * added).sum() / (added * added).sum()
    assert 0.85 < share < 1.15  # 0.6 when the sum was rounded


def test_a_step_moves_the_adapter(half: Base, model: PeftModel, config: TrainConfig) -> None:
    one_step = replace(config, max_steps=1, train_seconds=1e6)
    result, steps = job(half, model, samples(half, 4), one_step)
    assert result.steps == len(steps) == 1
    moved = [
        value.abs().max().item() for name, value in model.named_parameters() if "lora_B" in name
    ]
    assert max(moved) > 0
