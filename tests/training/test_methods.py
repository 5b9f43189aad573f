"""What each method makes of a rating: its gradient, what it needs, and what it leaves out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from tests.training.conftest import ATOL, DEVICE, items_of, job, make_sample, samples
from tests.training.test_trainer import gradients, weights
from training.adapters import adapter_tensors, snapshot, wearing
from training.advantages import distillation_advantages
from training.base import Base
from training.batching import Item
from training.config import ESTIMATORS, METHODS, TrainConfig
from training.errors import NoSignal
from training.forward import boosted, response_hidden, response_logprobs
from training.logprobs import reverse_kl, token_logprobs
from training.losses import distillation_loss, topk_distillation_loss
from training.prepare import NO_LOGPROBS
from training.step import counts_of
from training.teacher import Teacher

UNCAPPED: dict[str, float] = {"importance_cap": 1e9, "negative_importance_cap": 1e9}


def with_method(config: TrainConfig, method: str, **more: object) -> TrainConfig:
    return dataclasses.replace(config, method=method, **more)  # type: ignore[arg-type]


def walk_away(model: PeftModel, far: float = 0.1) -> None:
    """The adapter leaves the base, so that anchors and log-ratios are not 0."""
    chance = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            tensor.add_(far * torch.randn(tensor.shape, generator=chance).to(tensor.device))


def same(
    found: Sequence[Tensor], wanted: Sequence[Tensor], rtol: float = 1e-4, atol: float = ATOL
) -> None:
    assert max(float(w.abs().max()) for w in wanted) > 1e-5
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


# The estimators of a hint's lesson


def test_token_advantages_are_minus_the_reverse_kls_gradient_on_average() -> None:
    torch.manual_seed(0)
    policy = torch.randn(1, 5, requires_grad=True)
    teacher = torch.randn(1, 5)
    (wanted,) = torch.autograd.grad(reverse_kl(policy, teacher).sum(), policy)
    found = torch.zeros(1, 5)
    for word in range(5):  # sum over what could be sampled, with its probability
        ids = torch.tensor([word])
        own = token_logprobs(policy, ids)
        gain = distillation_advantages(token_logprobs(teacher, ids), own)
        (slope,) = torch.autograd.grad((gain * own).sum(), policy)
        found -= own.detach().exp() * slope
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_hints_alone_change_the_adapter(
    base: Base, model: PeftModel, config: TrainConfig, estimator: str
) -> None:
    before = snapshot(model)
    given = samples(base, 4, reward=None)
    result, steps = job(base, model, given, with_method(config, "opd", estimator=estimator))
    assert result.trained == (1, 2, 3, 4)
    assert {step.reward for step in steps} == {None}
    assert all(
        not torch.equal(tensor, before[name])
        for name, tensor in snapshot(model).items()
        if "lora_B" in name
    )


def test_topk_over_the_whole_vocabulary_is_the_reverse_kl() -> None:
    torch.manual_seed(0)
    rows, teacher = torch.randn(3, 7, requires_grad=True), torch.randn(3, 7)
    mask = torch.tensor([True, True, False])
    whole = distillation_loss(rows, teacher, mask, forward_share=0.0, tokens=2)
    topk = topk_distillation_loss(rows, teacher, mask, k=7, support="student", clip=100.0, tokens=2)
    torch.testing.assert_close(topk, whole, rtol=1e-5, atol=1e-7)
    one, other = (torch.autograd.grad(loss, rows)[0] for loss in (topk, whole))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_wide_support_lowers_the_kl_under_the_hints_too(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = dataclasses.replace(config, estimator="topk", topk=64, topk_clip=5.0, max_steps=12)
    _, steps = job(base, model, samples(base), settings)
    first, last = steps[0].kl, steps[-1].kl
    assert first is not None
    assert last is not None
    assert last < 0.8 * first


def test_the_tokens_estimator_needs_the_log_probs_of_sampling(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = dataclasses.replace(config, estimator="token")
    given = [make_sample(base, 1), make_sample(base, 2, rollout_logprobs=None)]
    result, _ = job(base, model, given, settings)
    assert result.dropped == {2: NO_LOGPROBS}


def test_a_token_gradient_is_the_teachers_log_ratio_times_the_words(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    walk_away(model)
    settings = with_method(config, "opd", estimator="token", clip_low=1.0, **UNCAPPED)
    (item,) = items_of(base, [make_sample(base, 1)], settings)
    item = dataclasses.replace(item, is_fresh=True, temperature=1.0)
    own_T = grad_logprobs(base, model, item)
    with torch.no_grad(), model.disable_adapter():
        pair = (item.teacher_prompt_ids, item.response_ids)
        gain_T = response_logprobs(base, model, pair) - own_T.detach()
    (-(gain_T * own_T).mean()).backward()  # type: ignore[no-untyped-call]
    wanted = taken_gradients(model)
    same(gradients(base, model, [item], settings), wanted)


# Thumbs alone


@pytest.mark.parametrize("method", ["binary", "kto", "apo_zero_unpaired"])
@pytest.mark.parametrize("reward", [1.0, -1.0])
@pytest.mark.parametrize("count", [1, 8])
def test_equal_thumbs_and_a_single_one_still_teach(
    base: Base, model: PeftModel, config: TrainConfig, method: str, reward: float, count: int
) -> None:
    given = samples(base, count, reward=reward)
    pairs = [(s.prompt_ids, s.response_ids[: config.rated_tokens]) for s in given]
    before = sum(float(response_logprobs(base, model, pair).sum()) for pair in pairs)
    result, steps = job(base, model, given, with_method(config, method))
    after = sum(float(response_logprobs(base, model, pair).sum()) for pair in pairs)
    assert (after - before) * reward > 0.01
    assert len(result.trained) == count
    assert {step.kl for step in steps} == {None}  # the hint took no part
    assert result.reanswers == {}


def test_binary_needs_the_log_probs_of_sampling_and_kto_does_not(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = [make_sample(base, 1, rollout_logprobs=None)]
    with pytest.raises(NoSignal) as refused:
        job(base, model, given, with_method(config, "binary"))
    assert refused.value.dropped == {1: NO_LOGPROBS}
    result, _ = job(base, model, given, with_method(config, "kto"))
    assert result.trained == (1,)


def test_a_later_pass_over_thumbs_is_clipped_around_the_policy_before_the_job(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = with_method(config, "binary", anchor_weight=0.0)
    pushes = {}
    for reward in (1.0, -1.0):
        (item,) = items_of(base, [make_sample(base, 1, reward=reward)], settings)
        pair = (item.prompt_ids, item.response_ids)
        own_T = response_logprobs(base, model, pair, temperature=item.temperature)
        risen = tuple((own_T - 0.5).tolist())  # every ratio is e^0.5, beyond 1.28
        item = dataclasses.replace(item, proximal_logprobs=risen)
        found = gradients(base, model, [item], settings)
        pushes[reward] = max(float(g.abs().max()) for g in found)
    assert pushes[1.0] == 0.0  # it has risen enough
    assert pushes[-1.0] > 1e-4  # and may fall


def test_epochs_go_over_thumbs_again_and_never_over_hints(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = dataclasses.replace(config, reward_epochs=3, max_steps=2)
    _, steps = job(base, model, samples(base, hint=None), settings)
    assert [step.phase for step in steps] == ["rated"] * 3
    _, steps = job(base, model, samples(base), settings)
    assert [step.phase for step in steps] == ["rated", "reanswer"]


# Both at once


def test_combined_losses_are_each_the_mean_over_their_own_tokens(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    walk_away(model)
    both = with_method(config, "combine", reward_weight=0.5, distill_weight=2.0, anchor_weight=0.0)
    hinted = make_sample(base, 1, reward=None)
    rewarded = make_sample(base, 22, hint=None, reward=1.0)
    items = items_of(base, [hinted, rewarded], both)
    counts = counts_of(items, both)
    assert (counts.distilled, counts.rewarded) == (
        len(items[0].response_ids),
        len(items[1].response_ids),
    )
    together = gradients(base, model, items, both)
    opd = with_method(config, "opd", anchor_weight=0.0)
    lesson = gradients(base, model, items_of(base, [hinted], opd), opd)
    thumb = gradients(base, model, items_of(base, [rewarded], opd), opd)
    same(together, [2.0 * a + 0.5 * b for a, b in zip(lesson, thumb, strict=True)])


def test_through_the_words_two_losses_are_each_the_mean_over_their_own_tokens(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    walk_away(model)
    both = with_method(
        config, "combine", estimator="token", reward_weight=0.5, distill_weight=2.0,
        anchor_weight=0.0,
    )  # fmt: skip
    hinted = make_sample(base, 1, reward=None)
    rewarded = make_sample(base, 22, hint=None, reward=1.0)
    together = gradients(base, model, items_of(base, [hinted, rewarded], both), both)
    token = dataclasses.replace(config, estimator="token", anchor_weight=0.0)
    lesson = gradients(base, model, items_of(base, [hinted], token), token)
    thumb = gradients(base, model, items_of(base, [rewarded], token), token)
    same(together, [2.0 * a + 0.5 * b for a, b in zip(lesson, thumb, strict=True)])


def test_combined_advantages_add_the_vote_to_the_teachers_log_ratio(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    walk_away(model)
    config = dataclasses.replace(config, **UNCAPPED)  # a sum may have another sign than its terms
    summed = with_method(config, "combine", combine="advantages", reward_weight=0.5)
    sample = make_sample(base, 1, reward=-1.0)
    together = gradients(base, model, items_of(base, [sample], summed), summed)
    token = with_method(config, "opd", estimator="token")
    lesson = gradients(base, model, items_of(base, [sample], token), token)
    binary = with_method(config, "binary", anchor_weight=0.0)
    thumb = gradients(base, model, items_of(base, [sample], binary), binary)
    same(together, [a + 0.5 * b for a, b in zip(lesson, thumb, strict=True)])


@pytest.mark.parametrize("combine", ["losses", "advantages"])
def test_without_a_hint_both_combinations_are_the_thumb_alone(
    base: Base, model: PeftModel, config: TrainConfig, combine: str
) -> None:
    walk_away(model)
    both = with_method(config, "combine", combine=combine)
    sample = make_sample(base, 1, hint=None)
    binary = with_method(config, "binary")
    same(
        gradients(base, model, items_of(base, [sample], both), both),
        gradients(base, model, items_of(base, [sample], binary), binary),
    )


def test_under_opd_the_thumb_of_a_hinted_reply_moves_nothing(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    def moved(method: str, reward: float) -> list[Tensor]:
        settings = dataclasses.replace(config, method=method)
        items = items_of(base, [make_sample(base, 1, reward=reward)], settings)
        return gradients(base, model, items, settings)

    walk_away(model)
    pairs = zip(moved("opd", 1.0), moved("opd", -1.0), strict=True)
    assert all(torch.equal(liked, disliked) for liked, disliked in pairs)
    pairs = zip(moved("combine", 1.0), moved("combine", -1.0), strict=True)
    assert not any(torch.equal(liked, disliked) for liked, disliked in pairs)


def test_a_hinted_reply_of_unknown_log_probs_is_distilled_without_its_thumb(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    both = with_method(config, "combine")
    sample = make_sample(base, 1, rollout_logprobs=None)
    (item,) = items_of(base, [sample], both)
    assert item.is_hinted
    assert item.advantage is None


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_a_mixed_job_and_changes_the_adapter(
    base: Base, model: PeftModel, config: TrainConfig, method: str
) -> None:
    before = weights(model)
    given = [
        make_sample(base, n, reward=-1.0 if n % 2 else 1.0, hint="One word." if n % 2 else None)
        for n in range(1, 9)
    ]
    result, steps = job(base, model, given, with_method(config, method, max_steps=2))
    assert len(result.trained) == 8
    assert steps[0].reward == 0.0
    moved = [float((a - b).abs().max()) for a, b in zip(weights(model), before, strict=True)]
    assert max(moved) > 1e-4


# Teachers and candidate hints


def test_the_parent_as_teacher_is_the_adapter_before_the_job(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    """And stays that while the policy moves on: a moving teacher degenerates."""
    walk_away(model)
    items = items_of(base, [make_sample(base, 1)], config)
    teacher = Teacher(base, model, dataclasses.replace(config, teacher="parent"))
    before_NH = teacher.hidden(items)
    with torch.no_grad():
        hinted = [(item.teacher_prompt_ids, item.response_ids) for item in items]
        plain = [(item.prompt_ids, item.response_ids) for item in items]
        states = [response_hidden(base, model, pairs) for pairs in (hinted, plain)]
    torch.testing.assert_close(before_NH, boosted(*states, boost=config.hint_boost))
    walk_away(model)
    teacher.forget()
    assert torch.equal(teacher.hidden(items), before_NH)
    with torch.no_grad():
        assert not torch.equal(response_hidden(base, model, hinted), states[0])


def test_the_two_teachers_teach_differently(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    walk_away(model)
    start = snapshot(model)
    ends = []
    for teacher in ("base", "parent"):
        with wearing(model, start):
            job(base, model, samples(base), dataclasses.replace(config, teacher=teacher))
            ends.append(weights(model))
    assert any(not torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("teacher", ["base", "parent"])
def test_what_no_hint_teaches_is_anchored_to_the_base_whoever_the_teacher(
    base: Base, model: PeftModel, config: TrainConfig, teacher: str
) -> None:
    walk_away(model, far=0.02)  # the parent is not the base
    given = [make_sample(base, 1, hint=None), make_sample(base, 2)]
    thumb = given[0]
    settings = dataclasses.replace(config, teacher=teacher, max_steps=1)
    pair = (thumb.prompt_ids, thumb.response_ids[: config.rated_tokens])
    with model.disable_adapter():
        base_T = response_logprobs(base, model, pair)
    away_T = base_T - response_logprobs(base, model, pair)  # d of k3 = e^d - d - 1
    k3 = float((away_T.exp() - away_T - 1).mean())
    _, (step,) = job(base, model, given, settings)
    assert step.kl_base == pytest.approx(k3, rel=1e-4)
    assert k3 > 1e-4


def grad_logprobs(base: Base, model: PeftModel, item: Item) -> Tensor:
    """log pi of the item's reply with a graph, (T,), by a plain forward pass."""
    ids = torch.tensor([[*item.prompt_ids, *item.response_ids]], device=DEVICE)
    rows = model(input_ids=ids).logits[0, len(item.prompt_ids) - 1 : -1]
    return token_logprobs(rows, torch.tensor(list(item.response_ids), device=DEVICE))


def taken_gradients(model: PeftModel) -> list[Tensor]:
    found = [t.grad for t in adapter_tensors(model).values() if t.grad is not None]
    model.zero_grad()
    return found


@contextmanager
def sizes_of_passes(base: Base) -> Iterator[list[tuple[int, int]]]:
    """(rows, width) of each forward pass that is made inside."""
    sizes: list[tuple[int, int]] = []

    def note(_module: object, _args: object, given: dict[str, Tensor]) -> None:
        rows, width = given["input_ids"].shape
        sizes.append((rows, width))

    hook = base.model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield sizes
    finally:
        hook.remove()
