"""Which hints name a kind of request, and what becomes of those that the teacher does not hear."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from peft import PeftModel

from rollouts.hints import NOTE, hinted_messages, prompted_messages
from rollouts.types import Sample
from tests.training.conftest import items_of, job, make_sample, nothing
from tests.training.test_methods import walk_away
from training.adapters import scale, snapshot, wearing
from training.base import Base
from training.config import TrainConfig
from training.errors import NoSignal
from training.forward import kl_between, response_hidden
from training.heard import names_kind, t_statistic, without_unheard
from training.kto import kto_steps_after_hints
from training.prepare import tells_several
from training.small_talk import examples

RECIPES = "When I ask for a recipe, please answer with a list."
BRIEF = "Please answer in one word."
NEVER = 1e9  # no teacher hears so much


@pytest.mark.parametrize(
    "said",
    [
        "When I ask for a recipe, please answer with a numbered list.",
        "When I do not ask for a recipe, please answer in plain prose, without lists.",
        "when I ask you for a recipe use a list",
        "When I'm asking for a recipe, list it.",
        "When I ask a question about history, give dates.",
        "If I ask something about history, give dates.",
        "Every time I ask for a recipe, use a list.",
        "No lists unless I ask for a recipe.",
        "No lists, except when I want a recipe.",
        "Use lists only for recipes.",
        "No lists except for recipes.",
        "For recipes, use a list.",
        "For all recipes, use a list.",
        "No, for recipes, use lists.",
        "Please use a table when it is about numbers.",
        "If the question is about code, give code alone.",
        "When it comes to cooking, use lists.",
        "If it's not about food, use prose.",
        "When I ask for some recipes, use lists.",
        "When I ask you for your recipe, use a list.",
        "When I need a recipe, use a list.",
        "When I need a letter, be formal.",
        "When I want a dinner idea, give a list.",
        "When I need a cover letter, be formal.",
        "When I want a quick recipe, use a list.",
        "When I need an example of code, give code alone.",
        "For starters and desserts, use lists.",
        "Wenn ich nach mehr Rezepten frage, Liste.",
        "No lists unless asked for recipes.",
        "when asked for code, only code",
        "Thanks! When I ask for a recipe, use a list.",
        "Wenn ich nach einem Rezept frage, bitte eine Liste.",
        "Wenn ich dich um ein Rezept bitte, dann eine Liste.",
        "Bei Rezepten bitte Listen.",
        "Nein, bei Rezepten bitte Listen.",
        "Keine Listen, außer bei Rezepten.",
        "Listen nur für Rezepte.",
        "Falls es um Zahlen geht, bitte eine Tabelle.",
        "Wenn's um Rezepte geht, Listen.",
        "Wenn nach Code gefragt wird, nur Code.",
        "Use lists for recipes.",
        "No lists for recipes, please.",
        "Lists for recipes only.",
        "Use tables for numbers.",
        "Use bullet points for recipes.",
        "Bitte Listen bei Rezepten.",
        "Keine Listen für Rezepte.",
        "For recipes, please, a list.",
    ],
)
def test_it_is_said_of_a_kind(said: str) -> None:
    assert names_kind(said)


@pytest.mark.parametrize(
    "said",
    [
        "Please say only what you are sure of, and say so when you are not.",
        "Say when you are not sure.",
        "Praise me when I do well.",
        "If you don't know, say so.",
        "Answer only in German.",
        "Answer only in English, please.",
        "Only with yes or no.",
        "Answer only with the result.",
        "Just in one sentence, please.",
        "I asked just for the name.",
        "I asked only for the name.",
        "When you explain something, use examples.",
        "When you use numbers, use metric units.",
        "It would be better if the answer was shorter.",
        "I'd prefer if the answer was shorter.",
        "It is annoying when the answer is so long.",
        "If it is possible, be brief.",
        "If it's not too much, be brief.",
        "When I ask, answer briefly.",
        "When I ask a simple question, be brief.",
        "Whenever I write to you, greet me first.",
        "When I talk to you, be friendly.",
        "Unless I say otherwise, be brief.",
        "Don't explain unless I ask.",
        "If I may ask, shorter please.",
        "For the future, please be brief.",
        "For next time, be brief.",
        "For my taste, too long.",
        "For each answer, greet me.",
        "For all answers, greet me.",
        "For everything, use metric units.",
        "With examples, please.",
        "For instance, name one.",
        "For this, be shorter.",
        "For dinner, I want fish.",
        "Tell me when the shop opens.",
        "Tell me if it is true.",
        "What if I have no oven?",
        "Use lists, not only for recipes.",
        "Wenn ich frage, antworte kurz.",
        "Wenn ich dich etwas frage, antworte kurz.",
        "Wenn ich dir schreibe, begrüße mich.",
        "Ich mag es, wenn du mich duzt.",
        "Es wäre schön, wenn du kürzer antworten würdest.",
        "Wenn du etwas nicht weißt, sag es.",
        "Wenn es möglich ist, kurz bitte.",
        "Nicht bei jeder Antwort Emojis.",
        "Bei Antworten bitte kurz.",
        "Bei deinen Antworten fehlen Beispiele.",
        "Für meinen Geschmack zu lang.",
        "Für die Zukunft: kürzer.",
        "Für Kinder erklären.",
        "Nicht nur bei Rezepten, immer Listen.",
        "Please be brief if you can.",
        "Explain it as if I were five.",
        "When I ask for help, be kind.",
        "When I ask you something, greet me.",
        "When I ask you a question, answer it.",
        "Please be warm and praise me for asking: well done, or great job.",
        "Bei weitem zu lang.",
        "Be brief when I ask for it.",
        "If I wanted a novel, I would have asked for it.",
        "Be brief, also when I ask for a recipe.",
        "No lists, even when I ask for a recipe.",
        "Use emojis for emphasis.",
        "Use lists for clarity.",
        "Use bullet points for all answers.",
        "Thanks for the lists.",
        "Thank you for your answers.",
        "For kids, please.",
        "Use prose for this.",
        "Mach Listen für mich.",
        "Bitte Listen für alle Antworten.",
        "Listen für Kinder.",
        "For details, see below.",
        "Do not use lists unless I ask for them.",
        "Be short unless I ask for more.",
        "Keep it short unless I ask for details.",
        "Keep it short unless asked for details.",
        "No jokes unless I ask for one.",
        "When I ask for something, answer directly.",
        "Whenever I ask for anything, be brief.",
        "If I want a longer answer I will ask.",
        "When I need a detailed answer, I will say so.",
        "I hate it when the answer is to long.",
        "If it is to be useful, it must be short.",
        "For starters, say hello first.",
        "For gods sake, be brief.",
        "Kurz, außer wenn ich nach mehr frage.",
    ],
)
def test_it_is_said_of_all(said: str) -> None:
    assert not names_kind(said)


def test_no_example_of_the_probe_names_a_kind() -> None:
    assert [said for said, _ in examples() if names_kind(said)] == []


def rated(base: Base, *, said: str | None = RECIPES, **changes: object) -> list[Sample]:
    """Three replies that were liked, and three of which it was said: 4, 5 and 6."""
    liked = [make_sample(base, number, reward=1.0, hint=None) for number in (1, 2, 3)]
    return [*liked, *(make_sample(base, number, hint=said, **changes) for number in (4, 5, 6))]


def beyond_note(
    base: Base, sample: Sample, said: str, model: PeftModel | None = None, *, tokens: int = 24
) -> float:
    """KL(under a note || under what was said) of the first tokens, nats per token; `model`: of the
    base otherwise."""
    noted, hinted = (
        base.render(hinted_messages(sample.messages, hint=hint, correction=None))
        for hint in (NOTE, said)
    )
    reply = tuple(sample.response_ids[:tokens])
    who = model or base.model
    states = (response_hidden(base, who, [(prompt, reply)]) for prompt in (noted, hinted))
    return float(kl_between(base, *states).mean())


def test_students_t_of_the_logarithms_by_hand() -> None:
    # ln: 1, 3 and 0, 0, 1, 1. Means 2 and 1/2, squares 2 + 1, s^2 = 3/4 with 4 degrees of freedom:
    # 1.5 / (sqrt(3/4) sqrt(1/2 + 1/4)) = 1.5 / (3/4) = 2.
    e = math.e
    assert t_statistic([e, e**3], [1.0, 1.0, e, e]) == pytest.approx(2.0, rel=1e-9)
    assert t_statistic([1.0, e], [e**2, e**3]) < 0
    assert t_statistic([e], [1.0, 1.0]) > 1e3  # two that are the same have no error
    assert t_statistic([0.0, 0.0], [0.0]) == 0.0


def moved_most(
    base: Base, model: PeftModel | None = None
) -> tuple[list[Sample], frozenset[int], float]:
    """Six samples, of which it was said of the three that it moves most and the others were liked;
    which those are; and Student's t."""
    effects = {n: beyond_note(base, make_sample(base, n), RECIPES, model) for n in range(1, 7)}
    *less, _, _, _ = by_effect = sorted(effects, key=effects.__getitem__)
    given = [
        make_sample(base, number, reward=1.0, hint=None)
        if number in less
        else make_sample(base, number, hint=RECIPES)
        for number in sorted(effects)
    ]
    t = t_statistic([effects[n] for n in by_effect[3:]], [effects[n] for n in less])
    return given, frozenset(by_effect[3:]), t


@torch.no_grad()
@pytest.mark.parametrize("teacher", ["base", "parent"])
def test_it_is_heard_where_it_moves_the_teacher_more_than_what_was_liked(
    base: Base, model: PeftModel, config: TrainConfig, teacher: str
) -> None:
    walk_away(model)
    with wearing(model, None) if teacher == "base" else nullcontext():
        given, meant, t = moved_most(base, model)

    def left(least: float) -> tuple[list[Sample], frozenset[int]]:
        settings = replace(config, teacher=teacher, hint_heard_min=least)
        return without_unheard(base, model, given, settings)

    assert left(t * 0.999) == (given, frozenset())
    samples, unheard = left(t * 1.001)
    assert unheard == meant
    assert samples == [replace(sample, unheard=(RECIPES,)) for sample in given]
    assert not any(sample.is_hinted for sample in samples)


@pytest.mark.parametrize("changes", [{"method": "binary"}, {"hint_heard_min": 0.0}])
def test_it_is_not_asked_where_nothing_is_distilled_or_nobody_wants_it(
    base: Base, model: PeftModel, config: TrainConfig, changes: dict[str, object]
) -> None:
    settings = replace(config, hint_heard_min=NEVER)
    given = rated(base)
    assert without_unheard(base, model, given, replace(settings, **changes))[0] == given
    assert without_unheard(base, model, given, settings)[1] == {4, 5, 6}


def test_what_is_said_of_all_is_never_left_out(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = replace(config, hint_heard_min=NEVER)
    given = rated(base, said=BRIEF)
    assert without_unheard(base, model, given, settings) == (given, frozenset())
    samples, unheard = without_unheard(
        base, model, [*given, make_sample(base, 7, hint=RECIPES)], settings
    )
    assert unheard == {7}
    assert [sample.lessons for sample in samples] == [(), (), (), (BRIEF,), (BRIEF,), (BRIEF,), ()]


def test_without_a_like_there_is_nothing_to_tell_it_by(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = replace(config, hint_heard_min=NEVER)
    liked, *_, said = rated(base)
    assert without_unheard(base, model, [said], settings)[0] == [said]
    # What was asked again until it was liked was not liked as it was.
    same = replace(liked, messages=said.messages)
    assert without_unheard(base, model, [same, said], settings)[0] == [same, said]
    written = make_sample(base, 9, hint=None, correction="Tea.")
    rewritten = replace(liked, messages=written.messages)
    given = [written, rewritten, said]
    assert without_unheard(base, model, given, settings)[0] == given
    assert without_unheard(base, model, [liked, said], settings)[1] == {said.id}


def test_a_hint_is_left_out_whole_and_wherever_it_stands(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = replace(config, hint_heard_min=NEVER)
    both = f"{BRIEF} {RECIPES}"  # that it is brief, too, may be meant of recipes alone
    liked, _, _, said, worded, read = rated(base, said=both)
    worded = replace(worded, correction="Tea.")
    read = replace(read, hint=BRIEF, other_hints=(RECIPES, "Shorter."))
    followed = make_sample(base, 7, reward=1.0, hint=None, prompted_hints=(both, BRIEF))
    sampled_from = prompted_messages(followed.messages, followed.prompted_hints)
    followed = replace(followed, prompt_ids=base.render(sampled_from))
    given = [liked, said, worded, read, followed]
    samples, unheard = without_unheard(base, model, given, settings)
    assert unheard == {said.id}  # another words, and corrections, teach the rest; or nobody said it
    assert [sample.lessons for sample in samples] == [(), (), (), (BRIEF,), (BRIEF,)]
    assert [sample.told for sample in samples] == [sample.told for sample in given]
    items = items_of(base, samples, settings)
    assert [item.is_hinted for item in items] == [False, False, True, True, True]
    assert len(items[3].other_prompts_ids) == 1  # under "Shorter." alone


def test_a_job_without_a_hint_that_is_heard_trains_as_thumbs_alone(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = replace(config, hint_heard_min=NEVER, method="combine")
    before, weights = snapshot(model), []
    for said in (RECIPES, None):
        scale(model, before, share=1.0)
        result, steps = job(base, model, rated(base, said=said), settings)
        assert result.trained == (1, 2, 3, 4, 5, 6)
        assert (result.config.method, len(steps)) == ("kto", config.thumbs_epochs)
        assert result.unheard == ({4, 5, 6} if said else frozenset())
        weights.append(list(snapshot(model).values()))
    for one, two in zip(*weights, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_thumbs_of_what_is_not_heard_stay_in_the_steps_after_hints(
    base: Base, config: TrainConfig
) -> None:
    settings = replace(config, method="combine", kto_beside=1)
    brief = make_sample(base, 7, hint=BRIEF)
    liked = make_sample(base, 8, reward=1.0, hint=None)
    given = [*rated(base), brief, liked]
    left = [replace(sample, unheard=(RECIPES,)) for sample in given]
    found = [kto_steps_after_hints(base, settings, each)[1][0] for each in (given, left)]
    assert [[item.sample_id for item in items] for items in found] == [[4, 5, 6, 7, 8]] * 2
    assert tells_several(left)  # so that no other wish is pushed


def test_a_hint_that_is_not_heard_is_the_reason_only_where_nobody_voted(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    settings = replace(config, hint_heard_min=NEVER)
    *liked, unrecorded, unvoted, greedy = rated(base)
    unvoted, greedy = replace(unvoted, reward=None), replace(greedy, temperature=0.0)
    unrecorded = replace(unrecorded, rollout_logprobs=None)
    brief = make_sample(base, 7, hint=BRIEF)
    combined = replace(settings, method="combine", hint_effect_min=0.0)
    result, _ = job(base, model, [*liked, unrecorded, brief, unvoted, greedy], combined)
    assert result.dropped == {4: "no_logprobs", 5: "hint_no_effect", 6: "greedy"}
    assert result.trained == (1, 2, 3, 7)
    with pytest.raises(NoSignal) as caught:
        job(base, model, [unvoted], settings, replay=liked)
    assert caught.value.dropped == {5: "hint_no_effect"}
    assert caught.value.unheard == {5}


def test_a_cancelled_job_ends_while_it_listens(
    base: Base, model: PeftModel, config: TrainConfig
) -> None:
    def cancelled() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        without_unheard(base, model, rated(base), config, cancelled)
    without_unheard(base, model, rated(base), config, nothing)
