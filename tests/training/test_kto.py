"""KTO on whole replies: its gradient, however a step is cut, and what each kind of thumb weighs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from rollouts.types import Sample
from tests.training.conftest import (
    ATOL,
    DEVICE,
    Cancelled,
    cancel_after,
    job,
    make_sample,
    nothing,
    samples,
)
from tests.training.test_methods import (
    grad_logprobs,
    same,
    sizes_of_passes,
    taken_gradients,
    walk_away,
    with_method,
)
from tests.training.test_trainer import items_of
from training import forward, kto
from training.adapters import scale, snapshot
from training.advantages import kto_weights
from training.base import Base
from training.batching import GPU_BATCH, Item, Pair
from training.config import TrainConfig
from training.forward import response_logprobs
from training.kto import (
    REFERENCES,
    config_for_thumbs,
    kto_backward,
    mismatched,
    weights_of,
)
from training.losses import kto_loss
from training.optimizer import save_optimizer


# Which way it went: there mismatched replies became likelier than they were, or less likely.
@pytest.mark.parametrize(
    ("method", "far"), [("kto", -0.01), ("kto", 0.01), ("apo_zero_unpaired", -0.01)]
)
def test_the_steps_gradient_is_that_of_ktos_loss(
    base: Base, model: PeftModel, config: TrainConfig, method: str, far: float
) -> None:
    walk_away(model, far)
    settings = with_method(config, method, kto_beta=0.4)
    given = [make_sample(base, n, reward=1.0 if n < 3 else -1.0, hint=None) for n in range(1, 5)]
    items = items_of(base, given[:3], settings)

    def ratios(of: Sequence[Item], *, graph: bool) -> Tensor:
        with model.disable_adapter(), torch.no_grad():
            reference = [
                response_logprobs(base, model, (i.prompt_ids, i.response_ids)).sum() for i in of
            ]
        own = [grad_logprobs(base, model, item).sum() for item in of]
        found = torch.stack(own) - torch.stack(reference)
        return found if graph else found.detach()

    z = float(ratios(mismatched(items), graph=False).mean())
    assert z > 0.1 if far < 0 else z < -0.1  # or the two methods would be one, or nothing is cut
    reference = max(0.0, z) if method == "kto" else 0.0
    wanted_loss = kto_loss(
        ratios(items, graph=True),
        torch.tensor([True, True, False], device=DEVICE),
        reference=reference,
        beta=0.4,
        liked_weight=0.5,
        disliked_weight=1.0,
    )
    wanted_loss.backward()  # type: ignore[no-untyped-call]
    wanted = taken_gradients(model)
    loss = kto_backward(base, model, items, settings, nothing, weights=weights_of(items), known={})
    assert loss == pytest.approx(float(wanted_loss.detach()), rel=1e-5)
    same(taken_gradients(model), wanted, atol=10 * ATOL)  # they are up to 0.1


@pytest.mark.parametrize("far", [-0.01, 0.01])
def test_a_reply_alone_is_held_against_no_other(
    base: Base, model: PeftModel, config: TrainConfig, far: float
) -> None:
    walk_away(model, far)
    (item,) = items_of(base, samples(base, 1, hint=None), with_method(config, "kto"))
    own = float(response_logprobs(base, model, item.plain).sum())
    with model.disable_adapter():
        ratio = own - float(response_logprobs(base, model, item.plain).sum())
    assert (ratio > 0.1) == (far < 0)
    loss = kto_backward(
        base, model, [item], with_method(config, "kto"), nothing, weights=(1.0, 1.0), known={}
    )
    assert loss == pytest.approx(1 / (1 + math.exp(-0.1 * ratio)), rel=1e-4)  # 1 - sigmoid(-b r)


@pytest.mark.parametrize("method", ["kto", "apo_zero_unpaired"])
def test_ktos_gradient_does_not_depend_on_how_the_step_is_cut(
    base: Base,
    model: PeftModel,
    config: TrainConfig,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walk_away(model)
    monkeypatch.setattr(kto, "CHUNK", 7)
    monkeypatch.setattr(forward, "CHUNK", 7)
    settings = with_method(config, method, micro_batch_tokens=150)
    items = items_of(base, samples(base, 6), settings)
    with sizes_of_passes(base) as sizes:
        kto_backward(base, model, items, settings, nothing, weights=weights_of(items), known={})
    assert max(rows for rows, _ in sizes) > 1
    assert max(rows * width for rows, width in sizes) <= 150 * (1 if DEVICE == "cpu" else GPU_BATCH)
    found = taken_gradients(model)
    monkeypatch.undo()  # and the positions of a reply at once
    kto_backward(
        base,
        model,
        items,
        with_method(settings, method, micro_batch_tokens=1),
        nothing,
        weights=weights_of(items),
        known={},
    )
    same(found, taken_gradients(model))


def test_a_fresh_adapter_is_not_asked_how_it_differs_from_the_base(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = with_method(config, "kto", micro_batch_tokens=1)
    items = items_of(base, samples(base, 4), settings)
    with sizes_of_passes(base) as sizes:
        assert (
            kto_backward(base, model, items, settings, nothing, weights=weights_of(items), known={})
            == 0.5
        )
    assert len(sizes) == 1 + 4  # what all begin with, then one each, for the gradient
    found = taken_gradients(model)
    walk_away(model, far=1e-9)  # asked, it says the same
    assert kto_backward(
        base, model, items, settings, nothing, weights=weights_of(items), known={}
    ) == pytest.approx(0.5)
    same(found, taken_gradients(model))


def test_the_base_is_asked_once_in_a_job(base: Base, model: PeftModel, config: TrainConfig) -> None:
    settings = with_method(config, "kto", micro_batch_tokens=1)
    items = items_of(base, samples(base, 3), settings)
    weights, known = weights_of(items), {}

    def step(known: dict[Pair, Tensor]) -> int:
        with sizes_of_passes(base) as sizes:
            kto_backward(base, model, items, settings, nothing, weights=weights, known=known)
        return len(sizes)

    assert step(known) == 3  # a fresh adapter's passes are the base's
    walk_away(model, far=0.01)
    taken_gradients(model)
    assert step(known) == 9  # the replies, and both sides of the reference's pairs
    asked_again = taken_gradients(model)
    assert step(known) == 6
    same(taken_gradients(model), asked_again)
    assert step({}) == 12
    same(taken_gradients(model), asked_again)


def test_a_cancelled_job_ends_before_each_micro_batch_of_ktos_and_of_its_reference(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    walk_away(model)
    settings = with_method(config, "kto", micro_batch_tokens=1)
    items = items_of(base, samples(base, 3), settings)

    def step(check: Callable[[], None]) -> None:
        kto_backward(base, model, items, settings, check, weights=weights_of(items), known={})

    step(cancel_after(3 + 3))
    with pytest.raises(Cancelled):
        step(cancel_after(3 + 2))


def test_kto_weighs_both_kinds_of_thumbs_the_same() -> None:
    assert kto_weights(2, 6) == (1.0, 1 / 3)
    assert kto_weights(6, 3) == (0.5, 1.0)
    assert kto_weights(5, 0) == (1.0, 1.0)
    assert kto_weights(0, 5) == (1.0, 1.0)


@pytest.mark.parametrize("method", ["kto", "apo_zero_unpaired"])
def test_kto_weighs_them_the_same_over_the_job_and_not_in_each_step(
    base: Base, model: PeftModel, config: TrainConfig, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    monkeypatch.setattr(
        "training.trainer.kto_backward", lambda *_, weights, **__: told.append(weights) or 0.0
    )
    given = [make_sample(base, n, reward=1.0 if n == 1 else -1.0, hint=None) for n in range(1, 9)]
    job(base, model, given, with_method(config, method, thumbs_batch=4, thumbs_epochs=1))
    assert told == [(1.0, 1 / 7)] * 2  # also in the step that holds dislikes alone


def thumbs(base: Base, *votes: float | None, **changes: str) -> list[Sample]:
    given = {"hint": None, **changes}
    return [make_sample(base, n, reward=vote, **given) for n, vote in enumerate(votes, 1)]


def test_a_job_of_thumbs_alone_trains_as_kto_does(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    before = snapshot(model)

    def trained(settings: TrainConfig) -> list[Tensor]:
        scale(model, before, share=1.0)
        _, steps = job(base, model, thumbs(base, 1.0, -1.0, 1.0, -1.0), settings)
        assert len(steps) == 2  # passes
        return list(snapshot(model).values())

    by_default = trained(config)
    asked_for = trained(replace(config, method="kto"))
    by_reward = trained(replace(config, thumbs="binary", reward_epochs=2, reward_step=1.5))
    for one, two in zip(by_default, asked_for, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert any(not torch.allclose(one, two) for one, two in zip(by_default, by_reward, strict=True))


def test_the_reference_is_estimated_on_the_newest_few(base: Base, config: TrainConfig) -> None:
    items = items_of(base, samples(base, REFERENCES + 2), with_method(config, "kto"))
    pairs = mismatched(items)
    assert [pair.prompt_ids for pair in pairs] == [item.prompt_ids for item in items[2:]]
    assert pairs[0].response_ids == items[3].response_ids
    assert pairs[-1].response_ids == items[2].response_ids


@pytest.mark.parametrize("method", ["combine", "opd", "kto", "apo_zero_unpaired"])
def test_a_step_on_thumbs_rests_on_those_of_earlier_jobs_too(
    base: Base, model: PeftModel, config: TrainConfig, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[list[int]] = []

    def seen(
        base: Base, model: PeftModel, items: Sequence[Item], *_: object, **__: object
    ) -> float:
        steps.append([item.sample_id for item in items])
        return 0.0

    monkeypatch.setattr("training.trainer.kto_backward", seen)
    up, down, other, silent = thumbs(base, 1.0, -1.0, -1.0, None)
    earlier = [replace(down, version_age=9), silent]  # old, and without a vote
    result, _ = job(base, model, [up, other], with_method(config, method), replay=earlier)
    assert steps == [[2, 1, 3]] * 2
    assert result.trained == (1, 3)  # what others learned is not learned again


def test_no_further_pass_is_begun_that_would_end_too_late(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = thumbs(base, 1.0, -1.0)

    def ended(seconds: int) -> tuple[str, int, tuple[int, ...]]:
        now = iter(range(0, 10_000, seconds))  # each look at the clock takes as long
        result, _ = job(base, model, given, config, clock=lambda: float(next(now)))
        return result.stopped, result.steps, result.trained

    assert ended(1) == ("steps", 2, (1, 2))
    assert ended(50) == ("time", 1, (1, 2))


def test_one_kind_of_thumbs_is_held_against_the_other_of_earlier_jobs(
    base: Base, config: TrainConfig
) -> None:
    up, down = thumbs(base, 1.0, -1.0)
    assert config_for_thumbs(base, config, [up], ()) == config
    assert config_for_thumbs(base, config, [up], [down]).method == "kto"


def test_thumbs_that_cannot_train_are_none(base: Base, config: TrainConfig) -> None:
    up, down = thumbs(base, 1.0, -1.0)
    gone = replace(down, template_hash="another")
    assert config_for_thumbs(base, config, [up], [gone]) == config
    assert config_for_thumbs(base, config, [up, gone], ()) == config


def test_hints_that_cannot_train_are_none(base: Base, config: TrainConfig) -> None:
    both, (said,) = thumbs(base, 1.0, -1.0), thumbs(base, -1.0, hint="Be brief.")
    gone = replace(said, id=3, template_hash="another")
    long = replace(said, id=3, prompt_ids=[1] * config.max_tokens)
    old = replace(said, id=3, version_age=config.max_version_age + 1)
    for hinted in (gone, long, old):
        assert config_for_thumbs(base, config, [*both, hinted], ()).is_kto
    for hinted in (gone, long):
        assert config_for_thumbs(base, config, both, [hinted]).is_kto
    assert config_for_thumbs(base, config, both, [old]) == config  # is answered anew, however old


def test_thumbs_whose_only_hint_moves_nothing_train_as_thumbs_alone(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    before = snapshot(model)
    both = thumbs(base, 1.0, -1.0)
    idle = make_sample(base, 3, reward=-1.0, hint="Thank you.")
    weights = []
    for given in ([*both, idle], both):
        scale(model, before, share=1.0)
        # More than any hint does: each is dropped.
        result, steps = job(base, model, given, replace(config, hint_effect_min=1.0))
        assert result.trained == (1, 2)
        assert len(steps) == config.thumbs_epochs
        weights.append(list(snapshot(model).values()))
        assert result.dropped == ({3: "hint_no_effect"} if idle in given else {})
    for one, two in zip(*weights, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_a_job_of_thumbs_alone_begins_without_adams_moments(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path
) -> None:
    before = snapshot(model)
    given = thumbs(base, 1.0, -1.0)
    earlier, _ = job(base, model, given, config)
    save_optimizer(earlier.optimizer, path := tmp_path / "a.optimizer.safetensors")

    def after(parent_optimizer: Path | None) -> list[Tensor]:
        scale(model, before, share=1.0)
        job(base, model, given, config, parent_optimizer=parent_optimizer)
        return list(snapshot(model).values())

    for one, two in zip(after(path), after(None), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_a_job_of_thumbs_alone_keeps_the_moments_for_later_hints(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path
) -> None:
    said, _ = job(base, model, thumbs(base, -1.0, hint="Be brief."), config)
    save_optimizer(said.optimizer, path := tmp_path / "a.optimizer.safetensors")
    result, _ = job(base, model, thumbs(base, 1.0, -1.0), config, parent_optimizer=path)
    assert result.config.is_kto
    assert result.steps > 0
    for moments, kept in zip(
        said.optimizer.state.values(), result.optimizer.state.values(), strict=True
    ):
        assert float(kept["step"]) == said.steps
        torch.testing.assert_close(kept["exp_avg"], moments["exp_avg"], rtol=0, atol=0)
    fresh, _ = job(base, model, thumbs(base, 1.0, -1.0), config)
    assert not fresh.optimizer.state  # none of the hints' loss yet


def test_ktos_settings_are_for_thumbs_alone_of_both_kinds(base: Base, config: TrainConfig) -> None:
    both, hinted = thumbs(base, 1.0, -1.0), thumbs(base, -1.0, hint="Be brief.")
    assert config_for_thumbs(base, config, both, ()).method == "kto"
    assert config_for_thumbs(base, with_method(config, "opd"), both, ()).method == "kto"
    assert config_for_thumbs(base, replace(config, thumbs="apo_zero_unpaired"), both, ()).is_kto
    asked_for = replace(config, thumbs_batch=9, thumbs_epochs=3, thumbs_step=0.7)
    for method in ("combine", "opd", "kto", "apo_zero_unpaired"):
        found = config_for_thumbs(base, with_method(asked_for, method), both, ())
        assert (found.batch_size, found.reward_epochs, found.reward_step) == (9, 3, 0.7)
    for settings, job_has, reminded_of in (
        (config, thumbs(base, -1.0, -1.0, None), ()),  # of one kind, and no vote
        (config, [*both, *hinted], ()),
        (config, thumbs(base, 1.0, -1.0, correction="Yes."), ()),
        (config, both, hinted),
        (replace(config, thumbs="binary"), both, ()),
        (with_method(config, "binary"), both, ()),
    ):
        assert config_for_thumbs(base, settings, job_has, reminded_of) == settings
