"""The packed step is the users' own steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM

from bench.trainer.packed import Packs, Replies, clip_each, random_replies
from training.config import TrainConfig
from training.logprobs import reverse_kl
from training.tiny import write_tiny

USERS, REPLIES, LENGTH = 3, 2, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"))


def packs_of(folder: Path) -> Packs:
    torch.manual_seed(2)
    return Packs(AutoModelForCausalLM.from_pretrained(folder), USERS)


def some_replies(users: int = USERS) -> Replies:
    torch.manual_seed(1)
    return random_replies(
        users, REPLIES, prompt=4, hint=3, length=LENGTH, vocabulary=50, device="cpu"
    )


def test_packed_and_one_after_the_other_learn_the_same(folder: Path) -> None:
    packs, replies = packs_of(folder), some_replies()
    before = [tensor.clone() for tensor in packs.tensors(0)]
    for _ in range(2):
        torch.testing.assert_close(packs.packed(replies), packs.one_after_the_other(replies))
    for number, (tensor, old) in enumerate(zip(packs.tensors(0), before, strict=True)):
        assert not torch.equal(tensor, old)
        alone = torch.cat([packs.tensors(1 + user)[number] for user in range(USERS)])
        torch.testing.assert_close(tensor, alone, rtol=1e-4, atol=1e-6)


def test_nobody_learns_from_anothers_replies(folder: Path) -> None:
    mine = some_replies()
    others = Replies(
        plain_KNT=mine.plain_KNT.clone(), hinted_KNT=mine.hinted_KNT.clone(), length=LENGTH
    )
    others.plain_KNT[1:], others.hinted_KNT[1:] = 7, 9
    learned = []
    for replies in (mine, others):
        packs = packs_of(folder)
        packs.packed(replies)
        learned.append(packs.tensors(0))
    for one, other in zip(*learned, strict=True):
        torch.testing.assert_close(one[0], other[0])
        assert not torch.equal(one[1], other[1])


def test_a_users_loss_and_gradient_are_those_of_peft(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = some_replies()
    gradients: list[torch.Tensor] = []
    packs = packs_of(folder)
    before = [tensor[1].clone() for tensor in packs.tensors(0)]
    monkeypatch.setattr(
        "bench.trainer.packed.clip_each",
        lambda tensors, limit: gradients.extend(tensor.grad[1].clone() for tensor in tensors),
    )
    loss = packs.packed(replies)[1]

    lora = LoraConfig(
        r=TrainConfig().rank, lora_alpha=TrainConfig().alpha, target_modules="all-linear"
    )
    model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), lora)
    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
    worn = [side["default"].weight for layer in layers for side in (layer.lora_A, layer.lora_B)]
    with torch.no_grad():
        for weight, value in zip(worn, before, strict=True):
            weight.copy_(value)

    def logits(ids_NT: torch.Tensor) -> torch.Tensor:
        logits_NTV: torch.Tensor = model(input_ids=ids_NT).logits
        return logits_NTV[:, -LENGTH - 1 : -1].flatten(0, 1)

    with torch.no_grad(), model.disable_adapter():
        teacher_NV = logits(replies.hinted_KNT[1])
    wanted = reverse_kl(logits(replies.plain_KNT[1]), teacher_NV).mean()
    wanted.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, wanted.detach())
    for weight, gradient in zip(worn, gradients, strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-7)


def test_each_users_gradient_is_clipped_by_its_own_norm() -> None:
    tensors = [torch.zeros(2, 1, 1), torch.zeros(2, 1, 2)]
    tensors[0].grad = torch.tensor([[[3.0]], [[0.3]]])
    tensors[1].grad = torch.tensor([[[0.0, 4.0]], [[0.0, 0.4]]])
    clip_each(tensors, 1.0)  # norms 5 and 0.5
    torch.testing.assert_close(tensors[0].grad.flatten(), torch.tensor([0.6, 0.3]))
    torch.testing.assert_close(tensors[1].grad[:, 0, 1], torch.tensor([0.8, 0.4]))
