"""The teacher of a run: who is shown the hints, and its hidden states on the replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from peft import PeftModel
from torch import Tensor

from training.adapters import snapshot, wearing
from training.base import Base
from training.batching import Item, Pair, by_item, shared_ids
from training.candidates import each_hint, nearest
from training.config import TrainConfig
from training.forward import (
    KeptPrompts,
    Read,
    boosted,
    held_to_question,
    kl_between,
    read_once,
    response_hidden,
)
from training.small_talk import is_of_talk, is_small_talk


class Effect(NamedTuple):
    """How far a hint moves the teacher on one reply."""

    kl_T: Tensor  # KL(plain || hinted and boosted) of each token, nats: what there is to learn
    # share of KL(plain || hinted) that a mere note does not do, 0 of small talk; None: not asked
    own: float | None


class Teacher:
    """The frozen base, or the adapter as it was before the job, with the hint in its prompt.

    Its states on a reply are computed once and kept until `forget`.
    """

    def __init__(self, base: Base, model: PeftModel, config: TrainConfig) -> None:
        self._base, self._model, self._config = base, model, config
        self._adapter = snapshot(model) if config.teacher == "parent" else None  # None: the base
        self._kept: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._begins: tuple[int, ...] = ()  # what the prompts at hand begin with
        self._read: Read | None = None
        answers_anew = config.distils and config.max_steps > 1
        self._prompts = KeptPrompts() if answers_anew else None

    def forget(self) -> None:
        """Of replies that will not be seen again."""
        self._kept.clear()

    def begin(self, items: Sequence[Item]) -> None:
        """What all prompts of these items begin with is read once for all that is asked of them,
        and by the next items if theirs begin with the same. What it has read of the rest of these
        prompts serves the next replies to them."""
        prompts = [ids for i in items for ids in (i.prompt_ids, i.teacher_prompt_ids)]
        self._begins = shared_ids(prompts, device=self._base.device)
        if self._prompts:
            self._prompts.wanted = frozenset(prompts)

    def with_chosen_hint(self, item: Item, check: Callable[[], None] = lambda: None) -> Item:
        """The item under that of its candidate hints which teaches it best: of those that do more
        than a note that asks for nothing, if any does. Nothing is nearer to what it says already.
        """
        check()
        if not item.other_prompts_ids:
            return item
        ways = each_hint(item)
        moving = [way for way in ways if self._moves(way, check)] if item.noted_prompt_ids else []
        return nearest(self._base, self._model, moving or ways, self._config, self._adapter)

    def _moves(self, item: Item, check: Callable[[], None]) -> bool:
        """Whether its hint does more than a note; what it says of the reply is not kept."""
        own = self.effects([item], check)[0].own
        del self._kept[item.sample_id, item.response_ids]
        return own is None or own >= self._config.hint_effect_min

    def effects(
        self, group: Sequence[Item], check: Callable[[], None] = lambda: None
    ) -> list[Effect]:
        """How far its hint moves the teacher on each hinted reply. `check` may raise."""
        ways = [[item.taught for item in group], [item.plain for item in group]]
        if any(item.noted_prompt_ids for item in group):
            # Where nothing is to be compared the plain prompt stands in.
            ways.append([(i.noted_prompt_ids or i.prompt_ids, i.response_ids) for i in group])
        hinted_NH, plain_NH, *noted = self._ways(*ways)
        teacher_NH = boosted(hinted_NH, plain_NH, boost=self._boosts(group))
        self._keep(group, self._held(group, teacher_NH, plain_NH))
        kls = by_item(group, kl_between(self._base, plain_NH, teacher_NH))
        if not noted:
            return [Effect(kl_T, None) for kl_T in kls]
        moved = by_item(group, kl_between(self._base, plain_NH, hinted_NH))
        beyond = by_item(group, kl_between(self._base, noted[0], hinted_NH))
        return [
            Effect(kl_T, 0.0 if self._is_small_talk(item, check) else _own(item, *parts))
            for item, kl_T, *parts in zip(group, kls, beyond, moved, strict=True)
        ]

    def _is_small_talk(self, item: Item, check: Callable[[], None]) -> bool:
        """Whether what was said neither asks for anything nor speaks of the reply, however far it
        moves the base."""
        base, model, said, config = self._base, self._model, item.said_ids, self._config
        if not config.small_talk_nats or not said:
            return False
        with wearing(model, None):
            return is_small_talk(
                base, model, said, config.small_talk_nats, check
            ) and not is_of_talk(base, model, item.plain, said, config.of_talk_nats, check)

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
            taught, plain = [item.taught for item in group], [item.plain for item in group]
            hinted_NH, plain_NH = self._ways(taught, plain)
            teacher_NH = boosted(hinted_NH, plain_NH, boost=self._boosts(group))
            return self._held(group, teacher_NH, plain_NH)
        return self._states([item.taught for item in group])

    def _held(self, group: Sequence[Item], teacher_NH: Tensor, plain_NH: Tensor) -> Tensor:
        """The teacher's states, those of hinted replies held to what was asked."""
        if not any(item.unasked_prompt_ids for item in group):
            return teacher_NH
        # Where nothing is to be held the plain prompt stands in, and nothing is moved.
        pairs = [(i.unasked_prompt_ids or i.prompt_ids, i.response_ids) for i in group]
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

    def _ways(self, *ways: Sequence[Pair]) -> list[Tensor]:
        """Hidden states on the same replies after each way's prompts, (N, H) each."""
        if len(ways[0]) > 1:
            return [self._states(way) for way in ways]
        states = self._states([pair for way in ways for pair in way])  # the conversation is shared
        return list(states.chunk(len(ways)))

    @torch.no_grad()
    def _states(self, pairs: Sequence[Pair]) -> Tensor:
        with wearing(self._model, self._adapter):
            if self._read is None or self._read.ids != self._begins:
                with read_once(self._base, self._model, self._begins) as self._read:
                    pass
            return response_hidden(self._base, self._model, pairs, self._read, self._prompts)


def own_share(beyond_T: Tensor, moved_T: Tensor) -> float:
    """KL(under a note || hinted) / KL(plain || hinted): near 0, anything under the marker does what
    this hint does. A share: nats per token shrink with a long conversation before the question."""
    moved = float(moved_T.mean())
    return float(beyond_T.mean()) / moved if moved > 0 else 0.0


def _own(item: Item, beyond_T: Tensor, moved_T: Tensor) -> float | None:
    if not item.noted_prompt_ids:
        return None
    return own_share(beyond_T, moved_T) if item.taught != item.plain else 0.0
