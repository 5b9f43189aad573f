"""A job on the tiny model: what it learns, what it reports, and what stops it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from rollouts.hints import NOTE
from tests.training.conftest import (
    ATOL,
    DEVICE,
    Cancelled,
    cancel_after,
    hinted_kl,
    items_of,
    job,
    make_sample,
    samples,
)
from training.adapters import adapter_tensors, attach, detach
from training.advantages import Baseline
from training.base import Base
from training.batching import Item, chosen_for_reanswer
from training.config import COMBINES, ESTIMATORS, TrainConfig
from training.errors import Diverged, NoSignal
from training.forward import boosted, kl_between, logits, response_hidden, response_logprobs
from training.step import counts_of, group_backward


def weights(model: PeftModel) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in adapter_tensors(model).values()]


def gradients(base: Base, model: PeftModel, items: list[Item], config: TrainConfig) -> list[Tensor]:
    """The gradient of one micro-batch on every adapter tensor."""
    with torch.no_grad(), model.disable_adapter():
        teacher = response_hidden(
            base, model, [(i.teacher_prompt_ids, i.response_ids) for i in items]
        )
    group_backward(base, model, items, teacher, config=config, counts=counts_of(items, config))
    found = [t.grad for t in adapter_tensors(model).values() if t.grad is not None]
    model.zero_grad()
    return found


def test_a_job_lowers_the_kl_under_the_hints(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = samples(base)
    items = items_of(base, given, config)
    config = dataclasses.replace(config, hint_boost=0.0)
    before = hinted_kl(base, model, items)
    result, steps = job(base, model, given, config)
    assert hinted_kl(base, model, items) < before - 0.05
    assert steps[0].kl == pytest.approx(before, rel=1e-3)
    assert result.steps == len(steps) == 4


def test_a_boost_goes_further_the_way_the_hint_moved_the_logits(base: Base) -> None:
    hinted, plain = torch.randn(2, 3, 32).to(DEVICE)
    z_h, z_p = logits(base, hinted), logits(base, plain)
    expected = z_h + 0.5 * (z_h - z_p)
    assert torch.allclose(logits(base, boosted(hinted, plain, boost=0.5)), expected, atol=1e-4)
    assert torch.equal(boosted(hinted, plain, boost=0.0), hinted)


def test_a_boosted_job_learns_from_the_boosted_teacher(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = samples(base)
    items = items_of(base, given, config)
    pairs = [(i.prompt_ids, i.response_ids) for i in items]
    with torch.no_grad():  # the fresh adapter is the base
        plain = response_hidden(base, model, pairs)
        hinted = response_hidden(
            base, model, [(i.teacher_prompt_ids, i.response_ids) for i in items]
        )
    expected = float(kl_between(base, plain, boosted(hinted, plain, boost=0.7)).mean())
    _, steps = job(base, model, given, dataclasses.replace(config, hint_boost=0.7))
    assert steps[0].kl == pytest.approx(expected, rel=1e-3)


def test_a_jobs_steps_are_rated_first_and_then_reanswers(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    result, steps = job(base, model, samples(base), config)
    assert [s.phase for s in steps] == ["rated", "reanswer", "reanswer", "reanswer"]
    assert [(s.step, s.steps) for s in steps] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert result.reanswers == dict.fromkeys(range(1, 9), 3)
    assert result.trained == tuple(range(1, 9))
    assert result.stopped == "steps"


def test_one_set_of_reanswers_may_train_more_than_once(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = dataclasses.replace(config, max_steps=3, reanswer_steps=2)
    result, steps = job(base, model, samples(base, 2), settings)
    assert [s.phase for s in steps] == ["rated", *["reanswer"] * 4]
    assert {s.steps for s in steps} == {5}
    assert result.reanswers == {1: 2, 2: 2}  # two sets
    # A second step begins where the first has left the same replies: nearer to the teacher.
    kl = [s.kl for s in steps if s.kl is not None]
    assert kl[2] < kl[1]
    assert kl[4] < kl[3]


def test_a_second_step_on_reanswers_is_clipped_around_the_policy_that_gave_them(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, set[bool]]] = []

    def backward(base: Base, model: PeftModel, group: Sequence[Item], *args: Any, **more: Any):  # type: ignore[no-untyped-def]
        seen.append((group[0].is_fresh, {item.proximal_logprobs is not None for item in group}))
        return group_backward(base, model, group, *args, **more)

    monkeypatch.setattr("training.trainer.group_backward", backward)
    job(base, model, samples(base, 2), dataclasses.replace(config, max_steps=2, reanswer_steps=2))
    assert seen == [(False, {False}), (True, {True}), (True, {True})]
    seen.clear()
    job(base, model, samples(base, 2), dataclasses.replace(config, max_steps=2))
    assert seen == [(False, {False}), (True, {False})]


def test_nineteen_samples_make_three_rated_steps(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    _, steps = job(base, model, samples(base, 19), config)
    assert [s.phase for s in steps].count("rated") == 3
    assert {s.steps for s in steps} == {6}


def test_the_reward_is_the_mean_vote_and_absent_when_nobody_voted(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    mixed = [make_sample(base, 1, reward=1.0), make_sample(base, 2), make_sample(base, 3)]
    _, steps = job(base, model, [*mixed, make_sample(base, 4, reward=None)], config)
    assert steps[0].reward == pytest.approx(-1 / 3)
    assert steps[1].reward is None


def test_thumbs_alone_report_no_kl_under_hints_and_are_not_reanswered(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    result, steps = job(base, model, samples(base, hint=None, reward=1.0), config)
    assert [s.kl for s in steps] == [None]
    assert result.reanswers == {}


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_a_thumb_moves_the_replys_own_log_prob(
    base: Base, model: PeftModel, config: TrainConfig, reward: float
) -> None:
    sample = make_sample(base, 1, hint=None, reward=reward)
    pair = (sample.prompt_ids, sample.response_ids[: config.rated_tokens])
    before = float(response_logprobs(base, model, pair).sum())
    job(base, model, [sample], dataclasses.replace(config, anchor_weight=0.0))
    after = float(response_logprobs(base, model, pair).sum())
    assert (after - before) * reward > 0.01


def test_the_anchor_holds_a_thumbs_push_back(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    """At the base the anchor pulls nowhere; away from it the gradient points back."""
    item = items_of(base, [make_sample(base, 1, hint=None)], config)
    free = dataclasses.replace(config, reward_weight=0.0)
    assert all(float(g.abs().max()) < 1e-6 for g in gradients(base, model, item, free))
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            tensor.add_(0.1)
    pull = gradients(base, model, item, free)
    assert max(float(g.abs().max()) for g in pull) > 1e-3


ALL_WAYS = [
    *({"estimator": name} for name in ESTIMATORS),
    *({"method": "combine", "combine": name} for name in COMBINES),
]


@pytest.mark.parametrize("distilled", ALL_WAYS, ids=str)
def test_a_sample_without_a_hint_has_exactly_no_distillation_gradient(
    base: Base, model: PeftModel, config: TrainConfig, distilled: dict[str, Any]
) -> None:
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            tensor.add_(0.1)
    config = dataclasses.replace(config, **distilled)
    only_distilled = dataclasses.replace(config, reward_weight=0.0, anchor_weight=0.0)
    item = items_of(base, [make_sample(base, 1, hint=None)], config)
    assert all(float(g.abs().max()) == 0.0 for g in gradients(base, model, item, only_distilled))
    hinted = items_of(base, [make_sample(base, 1)], config)
    found = gradients(base, model, hinted, only_distilled)
    assert max(float(g.abs().max()) for g in found) > 1e-3


def test_unknown_sampling_log_probs_of_hinted_replies_stay_out_of_the_gradient(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    mixed = [make_sample(base, 1, rollout_logprobs=None), make_sample(base, 2, hint=None)]
    found = gradients(base, model, items_of(base, mixed, config), config)
    assert found
    assert all(bool(torch.isfinite(g).all()) for g in found)


def test_micro_batches_do_not_change_the_gradient(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    items = items_of(base, [make_sample(base, 1), make_sample(base, 22, hint=None)], config)
    together = gradients(base, model, items, config)
    counts = counts_of(items, config)
    for item in items:
        with torch.no_grad(), model.disable_adapter():
            teacher = response_hidden(base, model, [(item.teacher_prompt_ids, item.response_ids)])
        group_backward(base, model, [item], teacher, config=config, counts=counts)
    apart = [t.grad for t in adapter_tensors(model).values() if t.grad is not None]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=10 * ATOL)


@pytest.mark.parametrize("hint", [" ", NOTE])
def test_a_hint_that_changes_nothing_is_dropped(
    base: Base, model: PeftModel, config: TrainConfig, hint: str
) -> None:
    idle = make_sample(base, 2, hint=hint)
    result, _ = job(base, model, [make_sample(base, 1), idle], config)
    assert result.dropped == {2: "hint_no_effect"}
    assert result.trained == (1,)


def test_nothing_to_learn_from_is_said_and_changes_nothing(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    before = weights(model)
    given = [make_sample(base, 1, hint=" "), make_sample(base, 2, hint=None, reward=None)]
    with pytest.raises(NoSignal) as caught:
        job(base, model, given, config)
    assert caught.value.dropped == {1: "hint_no_effect", 2: "no_signal"}
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_a_job_stops_when_the_hint_is_learned(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    result, steps = job(base, model, samples(base), dataclasses.replace(config, kl_stop=1e9))
    assert (result.stopped, len(steps)) == ("learned", 2)


def test_no_step_is_begun_that_would_end_too_late(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    now = iter(range(0, 10_000, 20))  # each look at the clock takes 20 s
    result, _ = job(base, model, samples(base), config, clock=lambda: float(next(now)))
    assert (result.stopped, result.steps) == ("time", 2)


def test_a_jobs_steps_use_the_shrunk_learning_rate(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = samples(base, 2)
    items = items_of(base, given, config)
    pairs = [(i.prompt_ids, i.response_ids) for i in items]
    with torch.no_grad():  # the fresh adapter is the base
        plain = response_hidden(base, model, pairs)
        hinted = response_hidden(
            base, model, [(i.teacher_prompt_ids, i.response_ids) for i in items]
        )
    teacher = boosted(hinted, plain, boost=config.hint_boost)
    effect = float(kl_between(base, plain, teacher).mean())
    settings = dataclasses.replace(config, kl_full_share=1.0)
    result, steps = job(base, model, given, settings)
    last = steps[-1].kl
    assert last is not None
    assert result.optimizer.param_groups[0]["lr"] == pytest.approx(
        config.lr * min(1.0, last / effect) * (2 / 8) ** 0.5, rel=1e-3
    )


def test_hints_whose_effect_nobody_asks_for_teach_the_same(base: Base, config: TrainConfig) -> None:
    adapters = []
    for smallest in (0.0, 1e-9):  # at 0 the pass that measures the effect is spared
        plain = dataclasses.replace(
            config, hint_boost=0.0, kl_full_share=0.0, hint_effect_min=smallest
        )
        model = attach(base, plain, None)
        job(base, model, samples(base), plain)
        adapters.append(weights(model))
        detach(base, model)
    assert all(torch.equal(a, b) for a, b in zip(*adapters, strict=True))


@pytest.mark.parametrize("calls", [0, 1, 2, 5])
def test_a_cancel_ends_the_run_wherever_it_comes(
    base: Base, model: PeftModel, config: TrainConfig, calls: int
) -> None:
    with pytest.raises(Cancelled):
        job(base, model, samples(base), config, check=cancel_after(calls))


def test_a_cancel_between_sampled_tokens_leaves_the_base_as_it_was(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    ids = torch.arange(20, device=DEVICE)[None]
    before = base.model.get_output_embeddings().weight.data_ptr()
    with model.disable_adapter(), torch.no_grad():
        expected = model(input_ids=ids).logits
    with pytest.raises(Cancelled):  # 1 effect check, 1 step, then tokens
        job(base, model, samples(base), config, check=cancel_after(6))
    with model.disable_adapter(), torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, expected)
    assert base.model.get_output_embeddings().weight.data_ptr() == before


def test_a_gradient_that_is_not_finite_ends_the_run(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    with torch.no_grad():
        next(iter(adapter_tensors(model).values())).fill_(float("nan"))
    with pytest.raises(Diverged):
        job(base, model, samples(base, 1), config)


def test_the_same_job_twice_gives_the_same_adapter(base: Base, config: TrainConfig) -> None:
    found = []
    for _ in range(2):
        model = attach(base, config, None)
        job(base, model, samples(base, 4), config)
        found.append(weights(model))
        detach(base, model)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_prompts_take_turns_when_there_are_more_than_a_batch(base: Base) -> None:
    items = items_of(base, samples(base, 5), TrainConfig())
    turns = [
        [i.sample_id for i in chosen_for_reanswer(items, (), turn=t, batch_size=2)]
        for t in range(3)
    ]
    assert turns == [[1, 2], [3, 4], [5, 1]]


def test_the_baseline_counts_each_vote_once(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = [make_sample(base, 1, reward=1.0), make_sample(base, 2, reward=None)]
    result, _ = job(base, model, given, config, baseline=Baseline(count=3))
    assert result.baseline.count == 4
    assert result.baseline.mean == pytest.approx(0.1)


def test_who_mostly_likes_pushes_less_with_another_like(base: Base, config: TrainConfig) -> None:
    settings = dataclasses.replace(config, method="binary")
    pushes = []
    for baseline in (Baseline(), Baseline(mean=0.9)):
        model = attach(base, settings, None)
        liked = make_sample(base, reward=1.0, hint=None)
        _, (step,) = job(base, model, [liked], settings, baseline=baseline)
        pushes.append(step.grad_norm)
        detach(base, model)
    assert pushes[1] == pytest.approx(0.1 * pushes[0], rel=1e-3)  # A = (1 - 0.9) / 1, not 1
    assert pushes[0] > 0
