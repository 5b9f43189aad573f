"""Whether what was said asks for anything: the probe by hand, and that the limit acts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from rollouts.types import Message
from tests.training.conftest import Cancelled, cancel_after, items_of, job, make_sample
from tests.training.test_methods import walk_away
from training import small_talk
from training.adapters import wearing
from training.base import Base
from training.config import TrainConfig
from training.forward import layer_states, response_logprobs
from training.small_talk import (
    BEFORE,
    DEPTHS,
    RIDGE,
    examples,
    features,
    fitted,
    is_of_talk,
    is_small_talk,
    said_ids,
    sentences,
    talk_nats,
    wish_nats,
)
from training.teacher import Teacher

ENDED = ("Please answer in one word.", "My cat is called Tom.")
SAID = (*ENDED, "hello", "shorter")


def told() -> Any:
    return json.loads(Path(small_talk.__file__).with_suffix(".json").read_text(encoding="utf-8"))


def test_the_probe_is_where_its_loss_has_no_slope() -> None:
    # Two examples, x = 0 and 2, standardized to -+1/sqrt(2): b = 0, as they mirror each other, and
    # with u = w / sqrt(2) the slope is -sigmoid(-u) / sqrt(2) + 2 * 3e-5 * w, 0 at w = 10.0001.
    probe = fitted(torch.tensor([[0.0], [2.0]]), torch.tensor([-1.0, 1.0]))
    w = 10.0001
    assert RIDGE == 3e-5
    assert 2 * RIDGE * w == pytest.approx(1 / (1 + math.exp(w / 2**0.5)) / 2**0.5, rel=1e-3)
    found = probe(torch.tensor([[0.0], [1.0], [2.0]]))
    assert found.tolist() == pytest.approx([-w / 2**0.5, 0.0, w / 2**0.5], rel=1e-3, abs=1e-3)


def test_either_kind_weighs_half_however_many_examples_it_has() -> None:
    given = torch.tensor([[0.0], [0.5], [1.5], [1.0]])
    nats = fitted(given, torch.tensor([-1.0, -1.0, -1.0, 1.0]))(given)
    # By b the loss has no slope where the mean error is the same on both kinds.
    assert float(torch.sigmoid(-nats[3])) == pytest.approx(
        float(torch.sigmoid(nats[:3]).mean()), abs=1e-3
    )


def test_the_more_states_the_less_each_weighs() -> None:
    # x twice is x / sqrt(2) twice with w / sqrt(2) each: the same sum, and the same |w|^2.
    given, kinds = torch.tensor([[0.0], [2.0]]), torch.tensor([-1.0, 1.0])
    once, twice = fitted(given, kinds), fitted(given.repeat(1, 2), kinds)
    assert twice(given.repeat(1, 2)).tolist() == pytest.approx(once(given).tolist(), rel=1e-3)


def test_it_is_fitted_where_no_gradients_are_asked_for_as_well() -> None:
    given, kinds = torch.tensor([[0.0], [2.0]]), torch.tensor([-1.0, 1.0])
    with torch.no_grad():
        found = fitted(given, kinds)(given)
    assert found.tolist() == fitted(given, kinds)(given).tolist()


def test_a_state_that_is_the_same_in_all_examples_says_nothing() -> None:
    kinds = torch.tensor([-1.0, 1.0])
    once = fitted(torch.tensor([[0.0], [2.0]]), kinds)
    beside = fitted(torch.tensor([[0.0, 7.0], [2.0, 7.0]]), kinds)
    found = beside(torch.tensor([[2.0, 7.0]]))
    assert 0 < float(found) < float(once(torch.tensor([[2.0]])))  # the other weighs less beside it


def test_states_are_those_after_the_layers_that_are_asked_for(base: Base, model: PeftModel) -> None:
    prompt, reply = base.encode("one two"), base.encode(" three")
    found_NF = layer_states(base, model, [(prompt, reply)], (0.0, 0.5, 1.0))
    with torch.no_grad():
        tokens = torch.tensor([[*prompt, *reply]], device=base.device)
        layers = model(input_ids=tokens, output_hidden_states=True).hidden_states
    assert len(layers) == 3  # before the first of two, after it, and at the end
    wanted_NF = torch.cat([states[0, len(prompt) - 1 : -1] for states in layers], dim=-1)
    torch.testing.assert_close(found_NF, wanted_NF, rtol=1e-3, atol=1e-4)
    nearest_NF = layer_states(base, model, [(prompt, reply)], (0.2, 0.3, 0.8))  # 0.4, 0.6, 1.6
    assert torch.equal(nearest_NF, found_NF)


def test_deeper_layers_are_not_run(base: Base, model: PeftModel) -> None:
    pairs = [(base.encode("one two"), base.encode(" three"))]
    decoder = model.get_base_model().get_decoder()
    first, last = decoder.layers
    ran = []
    hooks = [
        layer.register_forward_hook(lambda *_, name=name: ran.append(name))
        for name, layer in (("first", first), ("last", last))
    ]
    try:
        layer_states(base, model, pairs, (0.0,))
        assert ran == ["first"]  # what it ends with would be normalized
        ran.clear()
        layer_states(base, model, pairs, (0.5,))
        assert ran == ["first", "last"]
    finally:
        for hook in hooks:
            hook.remove()
    assert list(decoder.layers) == [first, last]


def test_a_job_that_is_cancelled_reads_no_more_examples(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    with pytest.raises(Cancelled):
        is_small_talk(base, model, said_ids(base, SAID[0]), 1.0, cancel_after(0))
    settings = replace(config, small_talk_nats=1.0)
    with pytest.raises(Cancelled):
        Teacher(base, model, settings).effects(
            items_of(base, [make_sample(base)], settings), cancel_after(0)
        )
    assert "wish probe" not in base.cache


def test_wishes_and_small_talk_are_told_apart_by_their_sign() -> None:
    kinds = dict(examples())
    assert set(kinds.values()) == {1.0, -1.0}
    assert (kinds["Please use bullet points."], kinds["My dog is called Rex."]) == (1.0, -1.0)


def test_a_sentence_is_read_as_it_stands_after_a_word(base: Base) -> None:
    assert said_ids(base, "Hi. Be brief!") == (base.encode(" Hi."), base.encode(" Be brief!"))


def test_what_has_no_words_is_no_sentence(base: Base) -> None:
    assert said_ids(base, " \n ") == ()


def test_a_sentence_is_the_states_that_begin_its_answer(base: Base, model: PeftModel) -> None:
    def state(ids: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            tokens = torch.tensor([ids], device=base.device)
            layers = model(input_ids=tokens, output_hidden_states=True).hidden_states
        own = [layers[round(depth * (len(layers) - 1))][0, -1] for depth in DEPTHS]
        return torch.cat(own).float().cpu()

    question, answer = told()["talks"][0]
    talk = [("user", question), ("assistant", answer), ("user", "Well.")]
    asked = base.render([Message(role=role, content=words) for role, words in talk])
    well = base.encode("Well.")
    begins = max(n for n in range(len(asked)) if asked[n : n + len(well)] == well)
    before, after = asked[:begins], asked[begins + len(well) :]
    said = [said_ids(base, hint)[0] for hint in SAID]
    for ids, row_F in zip(said, features(base, model, said), strict=True):
        wanted_F = state((*before, *ids, *after))
        torch.testing.assert_close(row_F, wanted_F, rtol=1e-3, atol=1e-4)


def test_where_nothing_is_said_after_a_reply_the_words_alone_are_read(
    refusing: Callable[[str], Base],
) -> None:
    base = refusing("messages | length > 1")
    said = [said_ids(base, hint)[0] for hint in SAID]
    pairs = [((*base.encode(BEFORE), *ids), (base.pad_id,)) for ids in said]
    wanted_NF = layer_states(base, base.model, pairs, DEPTHS).float()
    torch.testing.assert_close(features(base, base.model, said), wanted_NF, rtol=2e-2, atol=2e-2)


def test_what_reads_the_examples_leaves_the_probe_for_other_processes(
    base: Base, model: PeftModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_process(folder: Path) -> Base:
        return replace(base, cache={}, kept=folder)

    def nats(given: Base) -> list[float]:
        return [wish_nats(given, model, *said_ids(base, hint)) for hint in SAID]

    folder = tmp_path / "small-talk"
    found = nats(next_process(folder))
    (file,) = folder.iterdir()
    unread = "an example was read"
    with monkeypatch.context() as patch:
        patch.setattr(small_talk, "example_features", lambda *_: pytest.fail(unread))
        assert nats(next_process(folder)) == found
        for other in (  # what would be another probe
            replace(next_process(folder), weights_hash="0"),
            replace(next_process(folder), template_hash="0"),
            next_process(tmp_path),
        ):
            with pytest.raises(pytest.fail.Exception, match=unread):
                nats(other)
    file.write_bytes(b"half of it")
    assert nats(next_process(folder)) == pytest.approx(found, abs=1e-3)
    assert file.stat().st_size > 100
    nowhere = file / "folder"  # what cannot be written is no error
    assert nats(next_process(nowhere)) == pytest.approx(found, abs=1e-3)


def test_what_is_said_is_asked_of_the_base_once(base: Base, model: PeftModel) -> None:
    found = {hint: wish_nats(base, model, *said_ids(base, hint)) for hint in SAID}
    assert len({round(nats, 3) for nats in found.values()}) == len(SAID)
    walk_away(model)
    again = {hint: wish_nats(base, model, *said_ids(base, f" {hint}\n")) for hint in SAID}
    assert again == found  # it was kept, of the base as it was


def test_what_is_small_talk_by_the_limit_teaches_nothing(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    nats = {hint: wish_nats(base, model, *said_ids(base, hint)) for hint in SAID}
    hint = min(nats, key=lambda said: nats[said])
    assert nats[hint] < 0
    given = [make_sample(base, 1, hint=hint), make_sample(base, 2, hint=hint, correction="No.")]
    walk_away(model)  # the base is asked, whatever the adapter says by now
    for limit, is_none in ((-nats[hint] - 1e-3, True), (-nats[hint] + 1e-3, False), (0.0, False)):
        base.cache.clear()
        settings = replace(config, small_talk_nats=limit, hint_effect_min=1e-9)
        alone, corrected = Teacher(base, model, settings).effects(items_of(base, given, settings))
        assert (alone.own == 0) == is_none
        assert corrected.own is None  # what the user wrote instead teaches, whatever they say
    with wearing(model, None):
        assert wish_nats(base, model, *said_ids(base, hint)) == pytest.approx(nats[hint], abs=1e-4)


def test_one_wish_among_the_sentences_is_enough(base: Base, model: PeftModel) -> None:
    assert sentences("Hi there!  So?\nWell. 短く。はい") == [
        "Hi there!",
        "So?",
        "Well.",
        "短く。",
        "はい",
    ]
    nats = {hint: wish_nats(base, model, *said_ids(base, hint)) for hint in ENDED}
    lowest, highest = sorted(ENDED, key=lambda said: nats[said])
    limit = -(nats[lowest] + nats[highest]) / 2
    for text, is_none in ((lowest, True), (f"{lowest} {highest}", False), (highest, False)):
        assert is_small_talk(base, model, said_ids(base, text), limit) == is_none


def test_a_reply_makes_likelier_what_speaks_of_it(base: Base, model: PeftModel) -> None:
    prompt, reply = base.render([Message(role="user", content="Hi.")]), base.encode("Yes.")
    said = base.encode(" No.")
    between = base.encode("<|im_end|>\n<|im_start|>user\n")

    def found(*before: int) -> float:
        return float(response_logprobs(base, model, (before, said)).sum())

    others = [
        found(
            *base.render([Message(role="user", content=question)]), *base.encode(answer), *between
        )
        for question, answer in told()["talks"]
    ]
    assert len(others) == 6
    mean = math.log(sum(map(math.exp, others)) / 6)
    own = found(*prompt, *reply, *between)
    assert talk_nats(base, model, (prompt, reply), said) == pytest.approx(own - mean, abs=1e-3)
    # The end is the template's to write, once; and the other talks are not asked again.
    ended = (prompt, (*reply, *base.eos_ids))
    assert talk_nats(base, model, ended, said) == pytest.approx(own - mean, abs=1e-3)
    for limit, speaks in ((own - mean - 0.01, True), (own - mean + 0.01, False)):
        assert is_of_talk(base, model, ended, [said], limit) == speaks
    assert not is_of_talk(base, model, ended, [], -100)


def test_nothing_speaks_of_a_reply_that_takes_no_answer(
    base: Base, model: PeftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, said = (base.encode("Hi."), base.encode("Yes.")), base.encode(" No.")
    for template in ("{{ messages[0].content }}", "{{ raise_exception('one question') }}"):
        monkeypatch.setattr(base.tokenizer, "chat_template", template)
        assert base.next_turn_ids == ()
        assert talk_nats(base, model, talk, said) == 0


def test_what_speaks_of_its_reply_teaches_whatever_its_words_are(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    given = [
        make_sample(base, 40 * place + number, hint=hint)
        for place, hint in enumerate(SAID)
        for number in range(40)
    ]
    settings = replace(config, small_talk_nats=1e-6, hint_effect_min=1e-9)
    limit, item = max(
        (
            (talk_nats(base, model, item.plain, *item.said_ids), item)
            for item in items_of(base, given, settings)
            if wish_nats(base, model, *item.said_ids) < 0
        ),
        key=lambda found: found[0],
    )
    assert limit > 0.01
    walk_away(model)  # the base is asked
    for of_talk, is_none in ((limit + 1e-3, True), (limit - 1e-3, False)):
        teacher = Teacher(base, model, replace(settings, of_talk_nats=of_talk))
        assert (teacher.effects([item])[0].own == 0) == is_none


def test_a_job_drops_small_talk_with_its_thumb(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    nats = {hint: wish_nats(base, model, *said_ids(base, hint)) for hint in SAID}
    lowest, *_, highest = sorted(SAID, key=lambda said: nats[said])
    limit = -(nats[lowest] + nats[highest]) / 2
    settings = replace(config, small_talk_nats=limit, hint_effect_min=1e-9)
    given = [make_sample(base, 1, hint=lowest), make_sample(base, 2, hint=highest)]
    result, _ = job(base, model, given, settings)
    assert result.dropped == {1: "hint_no_effect"}
    assert result.trained == (2,)
