"""The gate: each measure by hand, the table of decisions, and nothing of it left on the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from peft import PeftModel

from rollouts.hints import prompted_messages
from rollouts.types import Demonstration, Message
from tests.training.conftest import DEVICE, Cancelled, cancel_after, make_sample, nothing
from training.adapters import adapter_tensors, attach, detach, round_to_saved, save_version
from training.base import Base
from training.config import TrainConfig
from training.drift import Wishes, drift_limit
from training.forward import response_logprobs
from training.gate import (
    GateDecision,
    Measure,
    ReplyFigures,
    _at_most,
    decide,
    figures_of,
    judged,
    measure,
    neutral_prompts,
    of_their_question,
    repeated_share,
    warm,
)
from training.sampling import Reply, sample_replies

PROMPTS = ("one?", "two?", "three?")


@torch.no_grad()
def shake(model: PeftModel, size: float = 0.3) -> None:
    generator = torch.Generator().manual_seed(1)
    for tensor in adapter_tensors(model).values():
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * size)


def by_name(measures: list[Measure]) -> dict[str, Measure]:
    return {m.measure: m for m in measures}


def gate(
    base: Base, model: PeftModel, config: TrainConfig, parent: Path | None = None, **more: object
) -> dict[str, Measure]:
    held_back = more.get("held_back", ())
    wishes = more.get("wishes", Wishes())
    return by_name(
        measure(base, model, parent, held_back, PROMPTS, wishes, config, nothing)  # type: ignore[arg-type]
    )


def test_a_fresh_adapter_differs_from_nothing_and_passes(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    found = gate(base, model, config)
    assert found["drift"].value == pytest.approx(0.0, abs=1e-6)
    assert found["drift"].limit == pytest.approx(0.05)
    assert found["drift"].ok is True
    assert decide(list(found.values())).accepted


def test_a_version_that_drifts_is_refused_in_plain_words(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model)
    found = gate(base, model, config)
    assert found["drift"].value is not None
    assert found["drift"].value > 0.05
    decision = decide(list(found.values()))
    assert not decision.accepted
    assert any("differs from the base model" in reason for reason in decision.reasons)


def test_the_drift_that_a_hint_explains_is_allowed(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    without = gate(base, model, config)["drift"].limit
    pirate = "Answer like a pirate."
    hinted = gate(base, model, config, wishes=Wishes(hints=(pirate,)))["drift"].limit
    again = gate(base, model, config, wishes=Wishes(hints=(pirate, " ")))["drift"].limit
    assert without is not None
    assert hinted is not None
    assert hinted > without + 0.01
    assert again == hinted


def test_examples_of_what_was_wanted_explain_drift_as_hints_do(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    long = Demonstration(question="Tea?", answer="tea " * config.max_tokens)
    pirate, brief, other = (
        Demonstration(question="Tea?", answer=answer) for answer in ("Aye!", "No.", "Coffee then.")
    )

    def limit(*examples: Demonstration, hints: tuple[str, ...] = ()) -> float:
        wishes = Wishes(hints=hints, examples=examples)
        return gate(base, model, config, wishes=wishes)["drift"].limit or 0.0

    margin = limit()
    assert margin == config.gate_drift_margin == limit(long)  # there is no room for it
    each = [limit(pirate) - margin, limit(brief) - margin]
    assert min(each) > 0.01
    assert limit(pirate, long, brief) == limit(pirate, brief, other)  # the newest two that fit
    assert limit(pirate, brief) == pytest.approx(margin + sum(each) / 2)
    hinted = limit(hints=("Be brief.",))
    assert limit(pirate, hints=("Be brief.",)) == max(hinted, limit(pirate))


def test_an_example_that_the_template_refuses_explains_nothing(
    refusing: Callable[[str], Base], config: TrainConfig
) -> None:
    base = refusing("messages | length > 1")
    model = attach(base, config, None)
    wishes = Wishes(examples=(Demonstration(question="Tea?", answer="Aye!"),))
    limit = drift_limit(base, model, PROMPTS, wishes, config, nothing)
    assert limit == config.gate_drift_margin


def test_preference_needs_two_of_each(base: Base, model: PeftModel, config: TrainConfig) -> None:
    held_back = [make_sample(base, n, reward=r) for n, r in enumerate((1.0, 1.0, -1.0), 1)]
    found = gate(base, model, config, held_back=held_back)["preference"]
    assert (found.value, found.ok) == (None, None)
    assert "not measured" in found.text
    empty = {"response_ids": (), "rollout_logprobs": ()}
    rest = [make_sample(base, n, reward=r) for n, r in enumerate((1.0, -1.0), 4)]
    for reward in (1.0, -1.0):  # two of it, but one has nothing to measure
        given = [*rest, make_sample(base, 6, reward=-reward), make_sample(base, 7, reward=reward)]
        whole = gate(base, model, config, held_back=given)["preference"]
        given[-1] = replace(given[-1], **empty)
        silent = gate(base, model, config, held_back=given)["preference"]
        assert (whole.ok, silent.ok) == (True, None)


def test_preference_is_the_gain_of_liked_over_disliked_per_token(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path
) -> None:
    held_back = [make_sample(base, n, reward=r) for n, r in enumerate((1.0, -1.0, 1.0, -1.0), 1)]

    def means() -> list[float]:
        """Mean log-prob per token of each reply, the plain way."""
        found = []
        for sample in held_back:
            ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]], device=DEVICE)
            with torch.no_grad():
                rows = torch.log_softmax(model(input_ids=ids).logits[0], -1)
            start = len(sample.prompt_ids) - 1
            picked = [float(rows[start + i, t]) for i, t in enumerate(sample.response_ids)]
            found.append(sum(picked) / len(picked))
        return found

    shake(model, 0.05)
    save_version(model, tmp_path / "parent")
    before = means()
    shake(model, 0.2)
    round_to_saved(model)
    after = means()
    gains = [now - then for now, then in zip(after, before, strict=True)]
    found = gate(base, model, config, tmp_path / "parent", held_back=held_back)["preference"]
    wanted = (gains[0] + gains[2] - gains[1] - gains[3]) / 2
    assert found.value == pytest.approx(wanted, abs=1e-4)


def test_preference_is_measured_on_the_plain_prompt(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 0.2)
    plain = [make_sample(base, n, reward=r) for n, r in enumerate((1.0, -1.0, 1.0, -1.0), 1)]
    notes = ("Be short.",)
    prompted = [
        replace(
            sample,
            prompted_hints=notes,
            prompt_ids=base.render(prompted_messages(sample.messages, notes)),
        )
        for sample in plain
    ]
    found = gate(base, model, config, held_back=prompted)["preference"]
    assert found.value == gate(base, model, config, held_back=plain)["preference"].value


def test_a_version_that_prefers_disliked_replies_is_refused(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    shake(model, 0.2)
    rewards = (1.0, 1.0, -1.0, -1.0)
    ways = []
    for sign in (1, -1):
        held_back = [make_sample(base, n, reward=r * sign) for n, r in enumerate(rewards, 1)]
        ways.append(gate(base, model, config, held_back=held_back)["preference"])
    values = [w.value for w in ways]
    assert None not in values
    assert values[0] == pytest.approx(-(values[1] or 0.0))
    assert [(w.limit, w.ok) for w in ways] == [(-0.05, (w.value or 0.0) >= -0.05) for w in ways]
    for way in ways:
        assert ("became more likely" in way.text) == ((way.value or 0.0) > 0)


@pytest.mark.parametrize(
    ("ids", "share"),
    [
        ((1, 2, 3, 4, 5, 6), 0.0),  # three 4-grams, all different
        ((1, 1, 1, 1, 1, 1), 2 / 3),  # three 4-grams, one of them new
        ((1, 2, 1, 2, 1, 2, 1, 2), 1 - 2 / 5),  # five 4-grams, two of them new
        ((1, 1, 1, 1), None),  # one 4-gram repeats nothing and proves nothing
        ((), None),
    ],
)
def test_repeated_share_by_hand(ids: tuple[int, ...], share: float | None) -> None:
    assert repeated_share(ids) == (None if share is None else pytest.approx(share))


def test_figures_by_hand() -> None:
    replies = [
        Reply(ids=(1, 1, 1, 1, 1, 1), is_finished=False),
        Reply(ids=(9,), is_finished=True),
        Reply(ids=(1, 2, 3), is_finished=True),
        Reply(ids=(1, 2, 3, 4, 5), is_finished=True),
    ]
    figures = figures_of(replies, ["aaaaaa", " ", "abc", "abcde"])
    # lengths 1, 3, 5, 6: median 4; repeats 2/3, 0, 0, 0: mean 1/6
    assert (figures.empty, figures.cut, figures.length) == (0.25, 0.25, 4.0)
    assert figures.repeats == pytest.approx(1 / 6)


FINE = ReplyFigures(empty=0.0, cut=0.2, length=20.0, repeats=0.05, count=10, question=40.0)


@pytest.mark.parametrize(
    ("own", "failing"),
    [
        (FINE, set()),
        (replace(FINE, empty=0.02, cut=0.3, length=3.0, repeats=0.2), set()),  # at the limits
        (replace(FINE, empty=0.03), {"empty"}),
        (replace(FINE, cut=0.31), {"cut_off"}),
        (replace(FINE, length=2.5), {"length"}),
        (replace(FINE, repeats=0.21), {"repetition"}),
        (replace(FINE, question=10.0), set()),  # a quarter of the base's
        (replace(FINE, question=9.9), {"question"}),
        (replace(FINE, empty=1.0, cut=0.0, length=1.0, repeats=0.0), {"empty", "length"}),
    ],
)
def test_replies_are_judged_against_the_parents(own: ReplyFigures, failing: set[str]) -> None:
    measures = judged(own, FINE, FINE, TrainConfig(gate_chance=0.0))
    assert {m.measure for m in measures if m.ok is False} == failing


def test_a_base_whose_replies_do_not_tell_what_was_asked_measures_nothing() -> None:
    vague = replace(FINE, question=4.9)
    for own, base in ((FINE, vague), (replace(FINE, question=None), FINE)):
        found = by_name(judged(own, FINE, base, TrainConfig()))["question"]
        assert (found.value, found.ok) == (None, None)
        assert "not measured" in found.text


def test_what_was_asked_is_what_its_own_prompt_adds_to_a_reply(
    base: Base, model: PeftModel
) -> None:
    shake(model)  # the base judges, whoever wears what
    prompts = [base.render([Message(role="user", content=text)]) for text in PROMPTS]
    replies = [base.encode(text) for text in ("a long one", "two", "six words")]
    found = of_their_question(base, model, prompts, replies, nothing)
    gains = []
    with model.disable_adapter():
        for own, other, reply in zip(prompts, [*prompts[1:], prompts[0]], replies, strict=True):
            after_own, after_other = (
                float(response_logprobs(base, base.model, (prompt, reply)).sum())
                for prompt in (own, other)
            )
            gains.append(after_own - after_other)
    assert found == pytest.approx(sorted(gains)[1], rel=1e-3, abs=1e-4)
    assert of_their_question(base, model, prompts[:1], replies[:1], nothing) is None


def test_the_cut_off_limit_allows_for_chance_in_few_replies() -> None:
    own = ReplyFigures(empty=0.0, cut=0.4, length=20.0, repeats=0.0, count=10)
    # pooled (0.4 + 0.2) / 2 = 0.3; 2 sqrt(0.3 * 0.7 * (1/10 + 1/10)) = 0.409878
    found = by_name(judged(own, FINE, FINE, TrainConfig(gate_chance=2.0)))["cut_off"]
    assert found.limit == pytest.approx(0.2 + 0.1 + 0.409878, rel=1e-5)
    assert found.ok is True
    # (30 * 0.4 + 10 * 0.2) / 40 = 0.35; 2 sqrt(0.35 * 0.65 * (1/30 + 1/10)) = 0.348329
    more = replace(own, count=30)
    found = by_name(judged(more, FINE, FINE, TrainConfig(gate_chance=2.0)))["cut_off"]
    assert found.limit == pytest.approx(0.2 + 0.1 + 0.348329, rel=1e-5)


def test_where_the_parents_replies_hardly_end_it_is_not_judged_whether_they_do() -> None:
    endless, config = replace(FINE, cut=1.0), TrainConfig(gate_chance=0.0)
    for cut, ok in ((0.8, False), (0.9, None), (1.0, None)):  # 0.8 + 0.1 can be exceeded
        found = by_name(judged(endless, replace(FINE, cut=cut), FINE, config))["cut_off"]
        assert (found.value, found.ok) == (1.0, ok)
        assert ("not judged" in found.text) == (ok is None)


def test_warming_up_does_the_bases_share_and_leaves_no_adapter(
    base: Base, config: TrainConfig
) -> None:
    warm(base, PROMPTS, config)
    known = set(base.cache)
    model = attach(base, config, None)
    shake(model)
    gate(base, model, config)
    detach(base, model)
    added = sorted(key[0] for key in set(base.cache) - known if isinstance(key, tuple))
    assert added == ["drift", "figures"]  # the candidate's own


def test_a_decision_lists_each_failure_and_ignores_what_was_not_measured() -> None:
    good = _at_most("empty", 0.0, 0.02, "of its test replies are empty")
    bad = _at_most("empty", 0.5, 0.02, "of its test replies are empty")
    unknown = Measure(measure="preference", value=None, limit=None, ok=None, text="not measured")
    assert decide([good, unknown]) == GateDecision(accepted=True, reasons=())
    assert decide([good, bad, unknown]) == GateDecision(
        accepted=False, reasons=("50% of its test replies are empty (at most 2%)",)
    )


def test_the_gate_leaves_the_candidate_as_it_was_and_gives_the_same_twice(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path
) -> None:
    shake(model, 0.1)
    save_version(model, tmp_path / "parent")
    shake(model, 0.2)
    brief = Wishes(hints=("Be brief.",))
    first = gate(base, model, config, tmp_path / "parent", wishes=brief)
    weights = [t.detach().bfloat16().float() for t in adapter_tensors(model).values()]  # as saved
    base.cache.clear()
    assert gate(base, model, config, tmp_path / "parent", wishes=brief) == first
    for before, after in zip(weights, adapter_tensors(model).values(), strict=True):
        assert torch.equal(before, after)


def test_a_candidate_that_becomes_the_parent_is_not_sampled_again(
    base: Base, model: PeftModel, config: TrainConfig, tmp_path: Path
) -> None:
    shake(model, 0.1)
    save_version(model, tmp_path / "v1")
    gate(base, model, config)
    shake(model, 0.2)
    sampled = Mock(side_effect=sample_replies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.gate.sample_replies", sampled)
        gate(base, model, config, tmp_path / "v1")
    assert sampled.call_count == 1  # the new candidate's alone


def test_the_gate_can_be_stopped(base: Base, model: PeftModel, config: TrainConfig) -> None:
    class Stop(Exception):
        pass

    def check() -> None:
        raise Stop

    with pytest.raises(Stop):
        measure(base, model, None, (), PROMPTS, Wishes(), config, check)


def test_the_gate_can_be_stopped_between_replies_that_were_held_back(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    gate(base, model, config)  # the rest is known
    held_back = [make_sample(base, n, reward=r) for n, r in enumerate((1.0, 1.0, -1.0, -1.0), 1)]
    with pytest.raises(Cancelled):
        measure(base, model, None, held_back, PROMPTS, Wishes(), config, cancel_after(5))


def test_the_shipped_prompts_are_there() -> None:
    prompts = neutral_prompts()
    assert len(prompts) == len(set(prompts)) == 12
