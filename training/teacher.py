"""The teacher of a run: who is shown the hints, and its hidden states on the replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from peft import PeftModel
from torch import Tensor

from training.adapters import snapshot, wearing
from training.base import Base
from training.batching import Item, Pair, by_item
from training.candidates import with_chosen_hint
from training.config import TrainConfig
from training.forward import boosted, held_to_question, kl_between, response_hidden


class Effect(NamedTuple):
    """How far a hint moves the teacher on one reply, nats per token."""

    taught_T: Tensor  # KL(plain || hinted and boosted) of each token: what there is to learn
    beyond_note: float | None  # KL(under a note || hinted), the mean; None where not compared

    @property
    def own(self) -> float | None:
        """The hint's own part: none of a mere note, none of no words at all."""
        beyond = self.beyond_note
        return None if beyond is None else min(beyond, float(self.taught_T.mean()))


class Teacher:
    """The frozen base, or the adapter as it was before the job, with the hint in its prompt.

    Its states on a reply are computed once and kept until `forget`.
    """

    def __init__(self, base: Base, model: PeftModel, config: TrainConfig) -> None:
        self._base, self._model, self._config = base, model, config
        self._adapter = snapshot(model) if config.teacher == "parent" else None  # None: the base
        self._kept: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def forget(self) -> None:
        """Of replies that will not be seen again."""
        self._kept.clear()

    def with_chosen_hint(self, item: Item) -> Item:
        """The item under that of its candidate hints which teaches it best."""
        return with_chosen_hint(self._base, self._model, item, self._config, self._adapter)

    def effects(self, group: Sequence[Item]) -> list[Effect]:
        """How far its hint moves the teacher on each hinted reply."""
        hinted_NH, plain_NH = self._both_ways(group)
        teacher_NH = boosted(hinted_NH, plain_NH, boost=self._boosts(group))
        self._keep(group, self._held(group, teacher_NH, plain_NH))
        taught = by_item(group, kl_between(self._base, plain_NH, teacher_NH))
        beyond = self._beyond_notes(group, hinted_NH)
        return [Effect(*pair) for pair in zip(taught, beyond, strict=True)]

    def _beyond_notes(self, group: Sequence[Item], hinted_NH: Tensor) -> list[float | None]:
        """KL(under a note that asks for nothing || hinted) on each reply, the mean."""
        if not all(item.noted_prompt_ids for item in group):
            return [None] * len(group)
        noted_NH = self._states([(item.noted_prompt_ids, item.response_ids) for item in group])
        kls = by_item(group, kl_between(self._base, noted_NH, hinted_NH))
        return [float(kl_T.mean()) for kl_T in kls]

    def hidden(self, group: Sequence[Item]) -> Tensor:
        """Hidden states on the replies, (N, H), row by row. Of replies that no hint teaches the
        frozen base's, whoever the teacher: it is their anchor."""
        keys = [(item.sample_id, item.response_ids) for item in group]
        missing = [item for item, key in zip(group, keys, strict=True) if key not in self._kept]
        is_base = self._adapter is None  # then one pass serves both
        if taught := [item for item in missing if item.is_hinted or is_base]:
            self._keep(taught, self._boosted(taught))
        if anchored := [item for item in missing if not item.is_hinted and not is_base]:
            plain = [item.plain for item in anchored]
            with torch.no_grad(), wearing(self._model, None):
                self._keep(anchored, response_hidden(self._base, self._model, plain))
        return torch.cat([self._kept[key] for key in keys])

    def _boosted(self, group: Sequence[Item]) -> Tensor:
        if any(item.boost or item.unasked_prompt_ids for item in group if item.is_hinted):
            hinted_NH, plain_NH = self._both_ways(group)
            teacher_NH = boosted(hinted_NH, plain_NH, boost=self._boosts(group))
            return self._held(group, teacher_NH, plain_NH)
        return self._states([item.taught for item in group])

    def _held(self, group: Sequence[Item], teacher_NH: Tensor, plain_NH: Tensor) -> Tensor:
        """The teacher's states, those of hinted replies held to what was asked."""
        if not any(item.unasked_prompt_ids for item in group):
            return teacher_NH
        # Where nothing is to be held the plain prompt stands in, and nothing is moved.
        prompts = [item.unasked_prompt_ids or item.prompt_ids for item in group]
        pairs = [(ids, item.response_ids) for ids, item in zip(prompts, group, strict=True)]
        boosts_N1 = torch.cat([self._question_boosts(len(item.response_ids)) for item in group])
        return held_to_question(teacher_NH, plain_NH, self._states(pairs), boost=boosts_N1)

    def _question_boosts(self, length: int) -> Tensor:
        """Those of one reply, (length, 1): what is held all along keeps less of a wish."""
        is_first_T = torch.arange(length, device=self._base.device) < self._config.question_tokens
        return self._config.question_boost * is_first_T.unsqueeze(-1)

    def _boosts(self, group: Sequence[Item]) -> Tensor:
        """Each token's, (N, 1)."""
        boosts = [item.boost for item in group for _ in item.response_ids]
        return torch.tensor(boosts, device=self._base.device).unsqueeze(-1)

    def _keep(self, group: Sequence[Item], teacher_NH: Tensor) -> None:
        for item, teacher_TH in zip(group, by_item(group, teacher_NH), strict=True):
            self._kept[item.sample_id, item.response_ids] = teacher_TH

    def _both_ways(self, group: Sequence[Item]) -> tuple[Tensor, Tensor]:
        """Hidden states on the replies with the hints and without, (N, H) each."""
        hinted, plain = [item.taught for item in group], [item.plain for item in group]
        if len(group) > 1:
            return self._states(hinted), self._states(plain)
        hinted_TH, plain_TH = self._states([*hinted, *plain]).chunk(2)  # the conversation is shared
        return hinted_TH, plain_TH

    @torch.no_grad()
    def _states(self, pairs: Sequence[Pair]) -> Tensor:
        with wearing(self._model, self._adapter):
            return response_hidden(self._base, self._model, pairs)
