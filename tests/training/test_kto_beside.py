"""KTO after hints: they say what to change, and thumbs which replies kept to it, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from peft import PeftModel

from rollouts.hints import prompted_messages
from rollouts.types import Sample
from tests.training.conftest import job, make_sample, nothing
from tests.training.test_kto import thumbs
from training.adapters import adapter_tensors, scale, snapshot
from training.base import Base
from training.config import TrainConfig
from training.kto import kto_backward, kto_steps_after_hints, weights_of


def told(base: Base, *hints: str, likes: int = 4, first: int = 1) -> list[Sample]:
    """A disliked reply for each hint, then replies liked without a word."""
    said = [make_sample(base, first + n, hint=hint) for n, hint in enumerate(hints)]
    liked = range(first + len(hints), first + len(hints) + likes)
    return said + [make_sample(base, n, reward=1.0, hint=None) for n in liked]


TWO = ("Use lists.", "No lists.") * 2


def test_what_hints_ask_for_thumbs_say_which_replies_kept_to(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    before, ended = snapshot(model), {}
    for least in (0, 1):
        scale(model, before, share=1.0)
        settings = replace(config, kto_beside=least)
        result, steps = job(base, model, told(base, *TWO), settings)
        ended[least] = snapshot(model), steps, result
    (off, hints_alone, _), (on, steps, result) = ended[0], ended[1]
    kto = steps[len(hints_alone) :]
    assert [(step.replies, step.phase, step.kl) for step in kto] == [(8, "thumbs", None)] * 4
    assert [step.steps for step in steps] == [len(steps)] * len(steps)
    assert (result.steps, result.trained) == (len(steps), tuple(range(1, 9)))
    scale(model, off, share=1.0)
    thumbs_config, (items, *_) = kto_steps_after_hints(base, config, told(base, *TWO))
    kto_backward(base, model, items, thumbs_config, nothing, weights=weights_of(items), known={})
    for name, tensor in adapter_tensors(model).items():  # Adam begins against the gradient's sign
        assert tensor.grad is not None
        large = tensor.grad.abs() >= tensor.grad.abs().mean()
        moved = (on[name] - off[name])[large]
        assert (moved * tensor.grad[large] < 0).float().mean() > 0.9


def test_ktos_steps_after_hints_rest_on_nothing_that_was_dropped(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = [*told(base, *TWO), make_sample(base, 99, version_age=99)]
    result, steps = job(base, model, given, config)
    assert [step.replies for step in steps[-4:]] == [8] * 4
    assert result.dropped == {99: "stale"}


def test_a_job_of_likes_alone_is_left_alone_whatever_was_told_before(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    result, steps = job(
        base, model, thumbs(base, 1.0, 1.0), config, replay=told(base, *TWO, first=9)
    )
    assert ([step.replies for step in steps], result.reanswers) == ([2], {})


def test_ktos_steps_after_hints_leave_adams_moments(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    before, moments = snapshot(model), []
    for least in (0, 1):
        scale(model, before, share=1.0)
        result, _ = job(base, model, told(base, *TWO), replace(config, kto_beside=least))
        moments.append(result.optimizer.state_dict()["state"])
    for one, two in zip(*(each.values() for each in moments), strict=True):
        torch.testing.assert_close(one["exp_avg"], two["exp_avg"], rtol=0, atol=0)


def test_kto_after_hints_needs_both_thumbs(base: Base, config: TrainConfig) -> None:
    def rested(given: list[Sample], earlier: Sequence[Sample] = (), **changes: object) -> list[int]:
        settings = replace(config, **{"kto_beside": 4, **changes})  # type: ignore[arg-type]
        _, steps = kto_steps_after_hints(base, settings, [*earlier, *given])
        assert len(steps) in (0, settings.kto_beside_steps)
        return [item.sample_id for item in steps[0]] if steps else []

    assert rested(told(base, *TWO)) == [*range(1, 9)]
    assert rested(told(base, *TWO, first=9), told(base, *TWO)) == [*range(1, 17)]
    assert rested(told(base, *TWO, first=9), told(base, *TWO), thumbs_batch=10) == [*range(7, 17)]
    few = told(base, *TWO, likes=3)
    assert rested(few) == []
    assert rested([*few, make_sample(base, 8, reward=1.0, hint=None)]) == [*range(1, 9)]
    assert rested(few, thumbs(base, 1.0)) == []  # liked before either wish was told
    one = told(base, TWO[0], likes=1)
    assert rested(one, kto_beside=1) == [1, 2]
    for given, changes in (
        (one[:1] * 4, {"kto_beside": 1}),  # no like
        (one[1:] * 4, {"kto_beside": 1}),  # no dislike
        (told(base, *TWO[:3]), {}),  # three dislikes
        (told(base, *TWO), {"method": "opd"}),
        (told(base, *TWO), {"kto_beside": 0}),
        (told(base, *TWO), {"thumbs": "binary"}),
        ([], {}),
    ):
        assert rested(given, **changes) == []


def test_what_was_thought_before_the_newest_wish_was_told_says_nothing_of_it(
    base: Base, config: TrainConfig
) -> None:
    def rested(*samples: Sample) -> list[int]:
        _, steps = kto_steps_after_hints(base, config, samples)
        return [item.sample_id for item in steps[0]] if steps else []

    def liked(number: int) -> Sample:
        return make_sample(base, number, reward=1.0, hint=None)

    long_ones, brief = [liked(n) for n in range(1, 4)], make_sample(base, 4, hint="Be brief.")
    bare = make_sample(base, 6, reward=-1.0, hint=None)
    assert rested(*long_ones, brief) == []
    assert rested(*long_ones, brief, liked(5), bare) == [4, 5, 6]
    again = make_sample(base, 7, hint="Be brief.")
    assert rested(*long_ones, brief, liked(5), bare, again) == [4, 5, 6, 7]
    other = make_sample(base, 8, hint="No lists.")
    assert rested(*long_ones, brief, liked(5), bare, other) == []
    assert rested(*long_ones, brief, liked(5), other, liked(9)) == [4, 8, 9]

    def prompted(number: int, **changes: object) -> Sample:
        messages = make_sample(base, number).messages
        prompt_ids = base.render(prompted_messages(messages, ("Be long.",)))
        more = {"prompt_ids": prompt_ids, "prompted_hints": ("Be long.",), **changes}
        return replace(liked(number), **more)  # type: ignore[arg-type]

    obeyed = [prompted(n) for n in (2, 9)]
    assert rested(obeyed[0], liked(3), brief) == []  # no word of the user's
    assert rested(brief, liked(5), obeyed[1]) == []  # it is the newest wish, told with a reply
    undone = prompted(9, taken_back=("Be long.",))
    assert rested(brief, liked(5), undone) == [4, 5]
    assert rested(brief, liked(5), replace(undone, hint="Be brief.")) == [4, 5, 9]  # a word
    both = make_sample(base, 9, hint="Be brief. No lists.")
    assert rested(brief, other, liked(8), both) == [4, 8, 8, 9]  # nothing new
    shouted = make_sample(base, 9, hint="no lists!\nBE BRIEF")
    assert rested(brief, other, liked(8), shouted) == [4, 8, 8, 9]
    apart = [make_sample(base, n, hint=hint) for n, hint in ((4, "简短。"), (5, "不要列表！"))]
    joint = make_sample(base, 9, hint="简短。不要列表。")
    assert rested(*apart, liked(8), joint) == [4, 5, 8, 9]
    wordless = make_sample(base, 9, hint="?!")
    assert rested(brief, other, liked(8), wordless) == [4, 8, 8, 9]
    also = make_sample(base, 9, hint="Be brief.", correction="Tea.")
    assert rested(brief, liked(5), also) == [4, 5, 9]  # what was written says no more
    reverse = make_sample(base, 9, hint="lists.")
    assert rested(brief, other, liked(8), reverse) == []  # its words stand in an older wish
    assert rested(both, liked(10), brief) == [9, 10, 4]
    written, once_more = (make_sample(base, n, hint=None, correction="Tea.") for n in (10, 12))
    assert rested(*long_ones, written) == []
    assert rested(*long_ones, written, liked(11), once_more) == [10, 11, 12]


def test_a_rating_that_the_gate_gives_back_is_as_old_as_it_is(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    (early,) = told(base, "Be brief.", likes=0)
    liked = [make_sample(base, n, reward=1.0, hint=None) for n in (2, 3, 4)]
    _, steps = job(base, model, [early], config, replay=liked)
    assert [step.replies for step in steps[-4:]] == [4] * 4
    late = replace(early, id=5)
    _, steps = job(base, model, [late], config, replay=liked)  # they were liked before
    assert {step.replies for step in steps} == {1}


def test_kto_after_hints_begins_late_and_goes_on_only_in_time(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    def steps_of(seconds: int, least: int) -> tuple[int, str]:
        now = iter(range(0, 1_000_000, seconds))
        settings = replace(config, kto_beside=least, train_seconds=120.0)
        given = told(base, *TWO)
        result, steps = job(base, model, given, settings, clock=lambda: float(next(now)))
        return len(steps), result.stopped

    (without, why), (with_time, why_with) = steps_of(1, 0), steps_of(1, 1)
    assert (with_time - without, why, why_with) == (4, "steps", "steps")
    (without, why), (late, why_late) = steps_of(50, 0), steps_of(50, 1)
    assert (late - without, why, why_late) == (1, "time", "time")
