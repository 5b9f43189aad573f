"""KTO: whole replies against the base, one micro-batch at a time.

A reply's loss depends on its summed log-ratio r alone, and on numbers that are known before: how
many were liked, and z. So its gradient is dL/dr times that of its log-probs, and one pass gives
both: each position's gradient is taken before r is known, and weighed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor

from rollouts.types import Sample
from training.adapters import adapter_tensors, wearing
from training.advantages import Baseline, kto_weights
from training.base import Base
from training.batching import Item, Pair, by_item, micro_batches, shared_ids
from training.config import TrainConfig
from training.forward import CHUNK, Read, logits, logprobs_of, read_once, response_hidden
from training.logprobs import token_logprobs
from training.losses import kto_loss
from training.prepare import newest_wish, prepare

REFERENCES = 16  # mismatched pairs at most that z is estimated on: two passes over each


def kto_backward(
    base: Base,
    model: PeftModel,
    items: Sequence[Item],
    config: TrainConfig,
    check: Callable[[], None],
    *,
    weights: tuple[float, float],
    known: dict[Pair, Tensor],
) -> float:
    """Add the step's gradient to the adapter's, and return KTO's loss.

    `weights`: the job's for liked and disliked replies. A step's own would weigh a kind that it
    happens to hold alone in full. `known`: the base's log-probs of each reply, (T,) nats, as far as
    the job's steps have found them; this one adds its own.
    """
    liked_weight, disliked_weight = weights
    is_fresh = _answers_as_base(model)
    reference, total = 0.0, 0.0
    begins = shared_ids([item.prompt_ids for item in items], device=base.device)
    with read_once(base, model, begins) as read:
        if config.method == "kto" and len(items) > 1 and not is_fresh:
            reference = _reference(base, model, items, config, check, known, read)
        for group in micro_batches(items, config, base.device):
            check()
            hidden_NH = _hidden(base, model, group, read)
            policy_N, slope_NH = _logprobs_and_slopes(base, hidden_NH, _targets(base, group))
            if is_fresh:
                _keep(known, group, policy_N)
            base_N = _base_logprobs(base, model, group, known)
            ratio_B = _sums(policy_N - base_N, group).requires_grad_()
            loss = kto_loss(
                ratio_B,
                torch.tensor([_is_liked(item) for item in group], device=base.device),
                reference=reference,
                beta=config.kto_beta,
                liked_weight=liked_weight,
                disliked_weight=disliked_weight,
            )
            loss = loss * len(group) / len(items)  # it is the group's mean
            (weight_B,) = torch.autograd.grad(loss, ratio_B)
            lengths_B = torch.tensor([len(i.response_ids) for i in group], device=base.device)
            weight_N1 = weight_B.repeat_interleave(lengths_B).unsqueeze(-1)
            hidden_NH.backward(weight_N1 * slope_NH)  # type: ignore[no-untyped-call]
            total += float(loss.detach())
    return total


def config_for_thumbs(
    base: Base, config: TrainConfig, samples: Sequence[Sample], replay: Sequence[Sample]
) -> TrainConfig:
    """The settings that a job really trains with, once it is known what of it can train.

    A job of a method that distils, in which no hint can train (its own or an earlier one), trains
    by the method `thumbs` if it has likes and dislikes that can train. With one kind alone KTO has
    nothing to compare with and would drift: then, and with any hint, `config` stays. A job of KTO
    gets KTO's batch size, number of passes and step length (`thumbs_batch`, `thumbs_epochs`,
    `thumbs_step`).
    """
    if config.distils and config.thumbs != "binary" and not _teaches(base, config, samples, replay):
        thumbs = replace(config, method=config.thumbs)
        own, _ = prepare(base, samples, thumbs, baseline=Baseline())
        if len({_is_liked(item) for item in (*own, *earlier_thumbs(base, replay, thumbs))}) == 2:
            config = thumbs
    return _kto_config(config) if config.is_kto else config


def _kto_config(config: TrainConfig) -> TrainConfig:
    """With KTO's own batch size, number of passes and step length."""
    return replace(
        config,
        batch_size=config.thumbs_batch,
        reward_epochs=config.thumbs_epochs,
        reward_step=config.thumbs_step,
    )


def kto_steps_after_hints(
    base: Base,
    config: TrainConfig,
    samples: Sequence[Sample],
) -> tuple[TrainConfig, list[list[Item]]]:
    """The steps of KTO that a job of "combine" ends with after its hints, and their settings.

    `samples`: all that are known and were not dropped, oldest first. Each step is on the newest
    `thumbs_batch` thumbs, oldest first: those of replies with a hint or a correction, and those
    without a word that were given since the newest wish was first told. An older one says nothing
    of that wish: who liked long replies and then asks for short ones liked them before. Nor does a
    thumb without a word count whose reply had a hint in its prompt that was taken back since. No
    steps where fewer than `kto_beside` are liked, or disliked: KTO compares the two kinds.
    """
    kto = _kto_config(replace(config, method=config.thumbs))
    if config.method != "combine" or not kto.is_kto or not config.kto_beside:
        return kto, []
    told = newest_wish(samples)
    heard = [
        sample
        for place, sample in enumerate(samples)
        if sample.hint or sample.correction or (place > told and not sample.taken_back)
    ]
    items = earlier_thumbs(base, heard, kto)[-config.thumbs_batch :]
    liked = sum(_is_liked(item) for item in items)
    is_enough = min(liked, len(items) - liked) >= config.kto_beside
    return kto, [items] * config.kto_beside_steps if is_enough else []


def _teaches(
    base: Base, config: TrainConfig, samples: Sequence[Sample], replay: Sequence[Sample]
) -> bool:
    """Whether anything can be distilled: earlier hints however old their replies are by now."""
    known = [*samples, *(replace(sample, version_age=0) for sample in replay)]
    said = [sample for sample in known if sample.is_hinted]
    return any(item.is_hinted for item in prepare(base, said, config, baseline=Baseline())[0])


def earlier_thumbs(base: Base, replay: Sequence[Sample], config: TrainConfig) -> list[Item]:
    """The items of earlier jobs' rated samples, oldest first, for a step of KTO beside a job's own;
    none by other methods. KTO compares with the base, so it does not matter which version wrote a
    reply."""
    if not config.is_kto:
        return []
    rated = [replace(sample, version_age=0) for sample in replay if sample.reward]
    return prepare(base, rated, config, baseline=Baseline())[0]


def weights_of(items: Sequence[Item]) -> tuple[float, float]:
    """What liked and disliked replies weigh in a job on these items."""
    liked = sum(_is_liked(item) for item in items)
    return kto_weights(liked, len(items) - liked)


def mismatched(items: Sequence[Item]) -> list[Item]:
    """Each prompt with the next item's reply, of the newest: what KTO's reference KL is estimated
    on."""
    items = items[-REFERENCES:]
    replies = [*items[1:], items[0]]
    return [
        replace(item, response_ids=other.response_ids)
        for item, other in zip(items, replies, strict=True)
    ]


@torch.no_grad()
def _reference(
    base: Base,
    model: PeftModel,
    items: Sequence[Item],
    config: TrainConfig,
    check: Callable[[], None],
    known: dict[Pair, Tensor],
    read: Read | None,
) -> float:
    """z = max(0, mean r of the mismatched replies)."""
    ratios: list[Tensor] = []
    for group in micro_batches(mismatched(items), config, base.device):
        check()
        policy_N = _logprobs(base, _hidden(base, model, group, read), group)
        ratios.append(_sums(policy_N - _base_logprobs(base, model, group, known), group))
    return max(0.0, float(torch.cat(ratios).mean()))


def _answers_as_base(model: PeftModel) -> bool:
    """Whether the adapter adds exactly nothing: every B is 0, as in a user's first job."""
    tensors = adapter_tensors(model).items()
    return not any(bool(tensor.any()) for name, tensor in tensors if ".lora_B." in name)


def _logprobs_and_slopes(base: Base, hidden_NH: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """log pi(y_t), (N,), and its gradient by the hidden state it was read from, (N, H)."""
    leaf_NH = hidden_NH.detach().requires_grad_()
    parts: list[Tensor] = []
    for start in range(0, len(leaf_NH), CHUNK):
        chunk = slice(start, start + CHUNK)
        part_N = token_logprobs(logits(base, leaf_NH[chunk]), targets_N[chunk])
        part_N.sum().backward()  # type: ignore[no-untyped-call]
        parts.append(part_N.detach())
    assert leaf_NH.grad is not None
    return torch.cat(parts), leaf_NH.grad


@torch.no_grad()
def _base_logprobs(
    base: Base, model: PeftModel, group: Sequence[Item], known: dict[Pair, Tensor]
) -> Tensor:
    """As `_logprobs`, of the base: it stays as it is through all of a job's steps."""
    if any(item.plain not in known for item in group):
        with wearing(model, None):
            _keep(known, group, _logprobs(base, _hidden(base, model, group), group))
    return torch.cat([known[item.plain] for item in group])


def _keep(known: dict[Pair, Tensor], group: Sequence[Item], logprobs_N: Tensor) -> None:
    parts = by_item(group, logprobs_N)
    known.update({item.plain: part_T for item, part_T in zip(group, parts, strict=True)})


def _logprobs(base: Base, hidden_NH: Tensor, group: Sequence[Item]) -> Tensor:
    """log pi(y_t) of the group's replies, row by row, (N,) nats."""
    return logprobs_of(base, hidden_NH, _targets(base, group))


def _sums(values_N: Tensor, group: Sequence[Item]) -> Tensor:
    """The sum over each reply's tokens, (B,)."""
    return torch.stack([part_T.sum() for part_T in by_item(group, values_N)])


def _hidden(
    base: Base, model: PeftModel, group: Sequence[Item], read: Read | None = None
) -> Tensor:
    return response_hidden(base, model, [item.plain for item in group], read)


def _targets(base: Base, group: Sequence[Item]) -> Tensor:
    return torch.tensor([t for item in group for t in item.response_ids], device=base.device)


def _is_liked(item: Item) -> bool:
    return (item.reward or 0.0) > 0
