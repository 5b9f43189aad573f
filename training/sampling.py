"""Samples replies in the trainer: re-answers and the gate's. Ungated weights never leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import DynamicCache

from training.adapters import merged
from training.base import Base


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One sampled reply. `ids` include the end token when it has one (`is_finished`)."""

    ids: tuple[int, ...]
    is_finished: bool


def sample_replies(
    base: Base,
    model: PeftModel,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
    check: Callable[[], None],
) -> list[Reply]:
    """Answer all prompts at once, drawing from softmax(logits / temperature); greedy at 0.

    The same seed, prompts and weights give the same replies. `check` is called before each token
    and may raise. Rows that have ended leave the batch.
    """
    if not prompts:
        return []
    generator = torch.Generator(device=base.device).manual_seed(seed)
    ended = torch.tensor(base.eos_ids, device=base.device)
    replies: list[list[int]] = [[] for _ in prompts]
    finished = [False] * len(prompts)
    rows = torch.arange(len(prompts), device=base.device)
    with torch.no_grad(), merged(model, base.autocast_dtype), base.autocast():
        decoder = _Decoder(base, model, prompts)
        for _ in range(max_new_tokens):
            check()
            next_B = _draw(decoder.logits_BV, temperature, generator)
            for row, token in zip(rows.tolist(), next_B.tolist(), strict=True):
                replies[row].append(token)
                finished[row] = token in base.eos_ids
            going_B = torch.isin(next_B, ended, invert=True)
            if not going_B.any():
                break
            rows = rows[going_B]
            decoder.advance(next_B, going_B)
    return [
        Reply(ids=tuple(ids), is_finished=done) for ids, done in zip(replies, finished, strict=True)
    ]


class _Decoder:
    """A batch of sequences, left-padded, with its key-value cache and its next logits (B, V)."""

    def __init__(self, base: Base, model: PeftModel, prompts: Sequence[Sequence[int]]) -> None:
        self.causal: Any = model.get_base_model()
        width = max(len(prompt) for prompt in prompts)
        ids_BT = torch.full((len(prompts), width), base.pad_id, device=base.device)
        self.mask_BT = torch.zeros((len(prompts), width), dtype=torch.long, device=base.device)
        for row, prompt in enumerate(prompts):
            ids_BT[row, width - len(prompt) :] = torch.tensor(list(prompt), device=base.device)
            self.mask_BT[row, width - len(prompt) :] = 1
        self.cache = DynamicCache()
        self._run(ids_BT, (self.mask_BT.cumsum(-1) - 1).clamp(min=0))

    def advance(self, next_B: Tensor, going_B: Tensor) -> None:
        """Append a token to each row that goes on; the others are forgotten."""
        if not going_B.all():
            self.cache.batch_select_indices(going_B.nonzero().squeeze(-1))
            next_B, self.mask_BT = next_B[going_B], self.mask_BT[going_B]
        self.mask_BT = torch.cat([self.mask_BT, torch.ones_like(next_B).unsqueeze(-1)], dim=-1)
        self._run(next_B.unsqueeze(-1), self.mask_BT.sum(-1, keepdim=True) - 1)

    def _run(self, ids_BT: Tensor, positions_BT: Tensor) -> None:
        output = self.causal(
            input_ids=ids_BT,
            attention_mask=self.mask_BT,
            position_ids=positions_BT,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits_BV: Tensor = output.logits[:, -1].float()


def _draw(logits_BV: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature <= 0:
        return logits_BV.argmax(dim=-1)
    probs_BV = torch.softmax(logits_BV / temperature, dim=-1)
    return torch.multinomial(probs_BV, 1, generator=generator).squeeze(-1)
