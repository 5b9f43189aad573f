"""What was liked, answered anew where several wishes were told: the loss by hand, and a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from rollouts.types import Sample
from tests.training.conftest import ATOL, DEVICE, Cancelled, cancel_after, job, make_sample, nothing
from tests.training.test_methods import walk_away
from training import forward
from training.adapters import scale, snapshot, wearing
from training.base import Base
from training.config import TrainConfig
from training.liked import Liked
from training.sampling import Reply

TWO = ("Please answer in one word.", "Please use lists.")
REPLIES = ((5, 6, 7), (8, 9))
CONFIG = TrainConfig(
    lr=5e-3, batch_size=2, max_steps=4, rated_tokens=24, reanswer_tokens=12, kto_beside=0,
    small_talk_nats=0.0,
)  # fmt: skip


@pytest.fixture
def config(config: TrainConfig) -> TrainConfig:
    return replace(config, liked_weight=0.5, batch_size=2)


def liked(base: Base, number: int, **more: object) -> Sample:
    return make_sample(base, number, reward=1.0, hint=None, **more)


def told(base: Base, *hints: str) -> list[Sample]:
    """Before the others: an id says when a reply was rated."""
    said = enumerate(hints)
    return [replace(make_sample(base, 900 + n, hint=hint), id=n - 9) for n, hint in said]


def loss(held: Liked, turn: int = 0) -> float:
    """With `REPLIES` as what the policy said to the first prompts of the turn."""
    asked = held.asked(turn)
    replies = [Reply(ids=ids, is_finished=True) for ids in REPLIES[: len(asked)]]
    held.answered(asked, replies)
    return held.backward()


@torch.no_grad()
def logprobs_TV(model: PeftModel, sample: Sample, reply: tuple[int, ...]) -> Tensor:
    """log pi(. | x, y_<t) of the reply's positions, by one plain pass."""
    ids = torch.tensor([[*sample.prompt_ids, *reply]], device=DEVICE)
    start = len(sample.prompt_ids) - 1
    logits_TV = model(input_ids=ids).logits[0, start : start + len(reply)]
    return torch.log_softmax(logits_TV.float(), dim=-1)


def test_the_loss_is_the_mean_kl_to_before_the_job_on_what_is_answered_anew(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    known = [liked(base, number) for number in (1, 22, 333)]
    walk_away(model)
    before = snapshot(model)
    held = Liked(base, model, [*told(base, *TWO), *known], config, nothing)
    walk_away(model)
    for turn, pair in ((0, (2, 1)), (1, (0, 2))):  # two at a time, the newest first, going round
        kls = []
        for number, reply in zip(pair, REPLIES, strict=True):
            now_TV = logprobs_TV(model, known[number], reply)
            with wearing(model, before):
                before_TV = logprobs_TV(model, known[number], reply)
            kls.append((now_TV.exp() * (now_TV - before_TV)).sum(dim=-1))
        assert loss(held, turn) == pytest.approx(0.5 * float(torch.cat(kls).mean()), rel=1e-5)


def test_its_gradient_does_not_depend_on_how_a_step_is_cut(
    base: Base, model: PeftModel, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradient(**changes: float) -> Tensor:
        model.zero_grad()
        scale(model, start, share=1.0)
        held = Liked(base, model, samples, replace(config, **changes), nothing)  # type: ignore[arg-type]
        walk_away(model)
        loss(held)
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    samples, start = [*told(base, *TWO), liked(base, 1), liked(base, 22)], snapshot(model)
    whole = gradient()
    assert float(whole.norm()) > 0
    torch.testing.assert_close(gradient(micro_batch_tokens=1), whole, rtol=1e-4, atol=ATOL)
    torch.testing.assert_close(gradient(liked_weight=1.0), 2 * whole, rtol=1e-4, atol=ATOL)
    monkeypatch.setattr(forward, "CHUNK", 2)  # of five positions
    torch.testing.assert_close(gradient(), whole, rtol=1e-4, atol=ATOL)


@pytest.mark.parametrize(
    ("sample", "hints", "settings", "is_asked"),
    [
        ({}, TWO, {}, True),
        ({"rollout_logprobs": None}, TWO, {}, True),  # whoever sampled it
        ({"version_age": 99}, TWO, {}, True),
        ({"reward": -1.0}, TWO, {}, False),
        ({"reward": None}, TWO, {}, False),
        ({"hint": "Be brief."}, TWO, {}, False),
        ({}, TWO[:1] * 2, {}, False),  # one wish, twice
        ({}, TWO, {"liked_weight": 0.0}, False),
        ({}, TWO, {"method": "opd"}, False),
    ],
)
def test_what_was_liked_as_it_was_is_asked_again_where_several_wishes_were_told(
    base: Base,
    model: PeftModel,
    config: TrainConfig,
    sample: dict[str, object],
    hints: tuple[str, ...],
    settings: dict[str, object],
    is_asked: bool,
) -> None:
    own = replace(config, **settings)  # type: ignore[arg-type]
    samples = [*told(base, *hints), replace(liked(base, 1), **sample)]  # type: ignore[arg-type]
    held = Liked(base, model, samples, own, nothing)
    walk_away(model)
    assert [item.sample_id for item in held.asked(0)] == [1] * is_asked
    assert (loss(held) > 0) is is_asked


def test_likes_from_before_the_newest_wish_was_told_say_nothing_of_it(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    first, second = told(base, *TWO)
    again = replace(first, id=7)  # is no newer wish
    known = [liked(base, 1), first, liked(base, 2), second, liked(base, 3), again, liked(base, 4)]
    held = Liked(base, model, known, replace(config, batch_size=9), nothing)
    assert [item.sample_id for item in held.asked(0)] == [4, 3]


def test_what_was_asked_again_until_it_was_liked_is_taught_and_not_held(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    samples = told(base, *TWO)
    same = replace(liked(base, 1), messages=samples[0].messages)
    written = make_sample(base, 3, hint=None, correction="Tea.")
    unheard = make_sample(base, 5, hint="For recipes, use lists.")
    unheard = replace(unheard, unheard=(str(unheard.hint),))
    samples[:0] = [written, unheard]
    again = [
        liked(base, number, messages=asked.messages, prompt_ids=asked.prompt_ids)
        for number, asked in ((4, written), (6, unheard))
    ]
    held = Liked(base, model, [*samples, same, *again, liked(base, 2)], config, nothing)
    assert [item.sample_id for item in held.asked(0)] == [2]


def test_a_single_like_holds_little(base: Base, model: PeftModel, config: TrainConfig) -> None:
    held = Liked(base, model, [*told(base, *TWO), liked(base, 1)], config, nothing)
    full = Liked(
        base, model, [*told(base, *TWO), liked(base, 1)], replace(config, batch_size=1), nothing
    )
    walk_away(model)
    assert loss(held) == pytest.approx(0.5 * loss(full), rel=1e-6)


def test_likes_of_earlier_jobs_hold_this_one(base: Base, model: PeftModel) -> None:
    """Both wishes and the likes are replay; the job's own hint is one of the two."""
    known = [*told(base, *TWO), liked(base, 1), liked(base, 2)]
    new = [make_sample(base, 30 + n, hint=TWO[1]) for n in range(4)]
    start, ends = snapshot(model), {}
    for weight in (0.0, 4.0):
        scale(model, start, share=1.0)
        own = replace(CONFIG, liked_weight=weight)
        job(base, model, new, own, replay=known)
        ends[weight] = torch.cat([tensor.flatten() for tensor in snapshot(model).values()])
    assert not torch.equal(ends[0.0], ends[4.0])


def test_each_step_of_a_set_is_held(base: Base, model: PeftModel) -> None:
    known = [*told(base, *TWO), liked(base, 1), liked(base, 2)]
    losses: dict[float, list[float]] = {}
    start = snapshot(model)
    for weight in (0.0, 4.0):
        scale(model, start, share=1.0)
        own = replace(CONFIG, liked_weight=weight, reanswer_steps=2, max_steps=2)
        _, steps = job(base, model, known, own)
        assert [step.phase for step in steps] == ["rated"] * 2 + ["reanswer"] * 2
        losses[weight] = [step.loss for step in steps]
    rated, *_, first, second = (b - a for a, b in zip(losses[0.0], losses[4.0], strict=True))
    assert rated == 0  # nothing has been answered anew
    assert first > 0  # two steps away from where the job began
    assert second > 0


def test_a_cancelled_job_ends_while_it_is_held(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    held = Liked(base, model, [*told(base, *TWO), liked(base, 1)], config, cancel_after(0))
    with pytest.raises(Cancelled):
        loss(held)


def test_hints_take_what_was_liked_along_less_far(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    known = [liked(base, number) for number in (1, 2)]
    samples = [*told(base, *TWO), *known]
    start, moved = snapshot(model), {}
    for weight in (0.0, 4.0):
        scale(model, start, share=1.0)
        held = Liked(base, model, samples, config, nothing)
        own = replace(config, liked_weight=weight, kto_beside=0, max_steps=17, reward_step=1e-6)
        result, _ = job(base, model, samples, own)
        lessons = {sample.id for sample in told(base, *TWO)}
        assert set(result.reanswers) == lessons  # what was liked is nobody's
        moved[weight] = loss(held)
    assert moved[0.0] > 0
    assert moved[4.0] < 0.7 * moved[0.0]
