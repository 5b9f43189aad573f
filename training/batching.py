"""Items: which stand in a step, how it is cut and becomes padded tensors. Knows no model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix

import torch
from torch import Tensor

from training.config import TrainConfig

Pair = tuple[Sequence[int], Sequence[int]]  # prompt ids, response ids

# Tokens not read again: fewer cost as much as a pass of their own. A GPU is done with thousands
# before the next pass is launched.
WORTH_SHARING, GPU_WORTH_SHARING = 32, 4096
GPU_BATCH = 4  # times as many tokens at once as on a CPU: a pass of few takes it as long


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One reply to learn from: by distillation (a teacher's prompt) or by reward (an advantage).

    `teacher_prompt_ids` is the hinted prompt, or the plain one again for a reply that no hint
    teaches: the frozen base is then the anchor instead of the teacher. `other_prompts_ids` are
    the prompts under candidate hints, of which the trainer chooses one.
    """

    sample_id: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    teacher_prompt_ids: tuple[int, ...]
    is_hinted: bool  # a hint teaches it
    other_prompts_ids: tuple[tuple[int, ...], ...] = ()
    noted_prompt_ids: tuple[int, ...] = ()  # under a note that asks for nothing; (): not compared
    said_ids: tuple[tuple[int, ...], ...] = ()  # its hint's sentences; (): not looked at
    others_said_ids: tuple[tuple[tuple[int, ...], ...], ...] = ()  # and of each candidate
    unasked_prompt_ids: tuple[int, ...] = ()  # without what was asked; (): not held to it
    boost: float = 0.0  # how much further than its hint alone its teacher goes
    correction_ids: tuple[int, ...] = ()  # what the user wrote instead, to be learned as it stands
    correction_weights: tuple[float, ...] = ()  # of each of these: what the reply had teaches less
    rollout_logprobs: tuple[float, ...] | None = None
    proximal_logprobs: tuple[float, ...] | None = None  # None: those of the policy as it is
    is_fresh: bool = False  # the policy as it is has sampled it: no importance weight
    temperature: float = 1.0
    advantage: float | None = None  # None: this reply is not trained by reward
    reward: float | None = None  # the vote itself, for the charts
    version_age: int = 0  # versions since the one that wrote it, for the charts
    is_finished: bool | None = None  # a re-answer's: whether it ended by itself

    @property
    def plain(self) -> Pair:
        """The reply after its prompt, as the policy reads it."""
        return self.prompt_ids, self.response_ids

    @property
    def taught(self) -> Pair:
        """And as the teacher reads it."""
        return self.teacher_prompt_ids, self.response_ids

    @property
    def length(self) -> int:
        """Tokens of its longest sequence, the teacher's included."""
        prompts = (self.prompt_ids, self.teacher_prompt_ids, *self.other_prompts_ids)
        prompt = max(len(ids) for ids in prompts)
        return prompt + len(self.response_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """Sequences of prompt + response: P tokens that all begin with, then B rows of what follows,
    padded on the right.

    The first `known` of the P tokens have been read already. `attention_mask_BT` has P + T columns,
    False where there is padding. `predicts_BT` marks the positions whose output predicts a response
    token: the one before the response up to the one before its last token, which predicts nothing
    and is left out. Read row by row they line up with the response tokens.
    """

    known: int
    shared_ids_P: Tensor
    input_ids_BT: Tensor
    attention_mask_BT: Tensor
    predicts_BT: Tensor


def by_item(items: Sequence[Item], rows_N: Tensor) -> tuple[Tensor, ...]:
    """What stands row by row for all replies' tokens, (N, ...): each reply's, (T, ...)."""
    return torch.split(rows_N, [len(item.response_ids) for item in items])


def pad_batch(
    pairs: Sequence[Pair], *, pad_id: int, device: str, read_ids: Sequence[int] = ()
) -> PaddedBatch:
    """Pad (prompt ids, response ids) pairs. Prompts and responses must not be empty.

    `read_ids`: tokens that were read before; as many as all the prompts begin with count."""
    prompts = [prompt for prompt, _ in pairs]
    known = _begins_alike([*prompts, (*read_ids, -1)])
    shared = max(known, shared_length(prompts, device=device))
    width = max(len(prompt) + len(response) - 1 for prompt, response in pairs)
    input_ids_BT = torch.full((len(pairs), width), pad_id, dtype=torch.long)
    attention_mask_BT = torch.zeros((len(pairs), width), dtype=torch.bool)
    predicts_BT = torch.zeros((len(pairs), width), dtype=torch.bool)
    for row, (prompt, response) in enumerate(pairs):
        end = len(prompt) + len(response) - 1
        input_ids_BT[row, :end] = torch.tensor([*prompt, *response[:-1]], dtype=torch.long)
        attention_mask_BT[row, :end] = True
        predicts_BT[row, len(prompt) - 1 : end] = True
    return PaddedBatch(
        known=known,
        shared_ids_P=input_ids_BT[0, :shared].to(device),
        input_ids_BT=input_ids_BT[:, shared:].to(device),
        attention_mask_BT=attention_mask_BT.to(device),
        predicts_BT=predicts_BT[:, shared:].to(device),
    )


def shared_length(prompts: Sequence[Sequence[int]], *, device: str) -> int:
    """How many first tokens of the prompts are to be read once for all of them: as many as are the
    same, but for each prompt's last, whose output differs by what follows; 0 if it is not worth it.
    """
    worth = WORTH_SHARING if device == "cpu" else GPU_WORTH_SHARING
    same = _begins_alike(prompts)
    return same if same * (len(prompts) - 1) >= worth else 0


def shared_ids(prompts: Sequence[Sequence[int]], *, device: str) -> tuple[int, ...]:
    """Those tokens; none of no prompts."""
    return tuple(prompts[0][: shared_length(prompts, device=device)]) if prompts else ()


def _begins_alike(prompts: Sequence[Sequence[int]]) -> int:
    most = min(len(prompt) for prompt in prompts) - 1
    return min(most, len(commonprefix([tuple(ids) for ids in prompts])))  # noqa: RUF071 - no paths


def micro_batches(items: Sequence[Item], config: TrainConfig, device: str) -> list[list[Item]]:
    """Cut into groups whose padded size (what all share, and rows x the rest of the longest) is at
    most `micro_batch_tokens`, on a GPU GPU_BATCH times that.

    Items of like length share a group, so that little is padding. One item that is longer than
    that by itself is a group of its own.
    """
    most = config.micro_batch_tokens * (1 if device == "cpu" else GPU_BATCH)
    groups: list[list[Item]] = []
    for item in sorted(items, key=lambda item: item.length):
        if groups and padded_size([*groups[-1], item], device=device) <= most:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def padded_size(group: Sequence[Item], *, device: str) -> int:
    """Tokens that a pass over the group runs through the layers, at most: under the longest of
    their prompts. (Keys and values of what is shared are held once for each row all the same.)"""
    plain, taught = ([i.prompt_ids for i in group], [i.teacher_prompt_ids for i in group])
    shared = min(shared_length(plain, device=device), shared_length(taught, device=device))
    return shared + len(group) * (max(item.length for item in group) - shared)


def in_steps(items: Sequence[Item], *, batch_size: int) -> list[list[Item]]:
    """Optimizer steps of at most `batch_size` items, in the order given."""
    return [list(items[i : i + batch_size]) for i in range(0, len(items), batch_size)]


def in_steps_beside(
    items: Sequence[Item], earlier: Sequence[Item], batch_size: int
) -> list[list[Item]]:
    """A job's steps, the last filled up with the newest of what was rated earlier (oldest first):
    no step is without any of the job's own."""
    *full, last = in_steps(items, batch_size=batch_size)
    room = batch_size - len(last)
    return [*full, [*earlier[max(0, len(earlier) - room) :], *last]]


def reanswer_sets(items: Sequence[Item], config: TrainConfig) -> int:
    """ceil((max_steps - 1) sqrt(d / n)): how many sets of re-answers n rated replies ask for of
    which d were not liked as they were.

    Who has what they want is left alone: more sets would take the version nowhere but about. One
    complaint among seven likes is more than an eighth of what eight complaints ask for: it is what
    the version before has left to learn (decision 0034). None where nothing is distilled.
    """
    most = config.max_steps - 1 if config.distils else 0
    if config.reanswer_sets == "all":
        return most
    unliked = sum(item.is_hinted or not (item.reward and item.reward > 0) for item in items)
    return math.ceil(most * math.sqrt(unliked / len(items)))


def chosen_for_reanswer(
    hinted: Sequence[Item], replayed: Sequence[Item], *, turn: int, batch_size: int
) -> list[Item]:
    """Up to `batch_size` items, the job's own first, going round when there are more of them."""
    own = window(hinted, turn, batch_size)
    return own + window(replayed, turn, batch_size - len(own))


def window(items: Sequence[Item], turn: int, size: int) -> list[Item]:
    """The `turn`th up to `size` of the items, going round."""
    count = min(size, len(items))
    return [items[(turn * count + i) % len(items)] for i in range(count)]
