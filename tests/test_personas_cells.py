"""A cell of the personas bench without a model server: when it learns, what its row says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import pytest

from bench.personas.cell import ASIDE, ASIDE_EVERY, Cell
from bench.personas.changed import Changed
from bench.personas.edits import GREETINGS
from bench.personas.lab import Lab
from bench.personas.people import PEOPLE
from bench.personas.questions import NEUTRAL, all_questions, questions_for
from bench.personas.recipes import RECIPES, SERVED
from bench.personas.rival import schedule
from bench.personas.rows import DEFAULT
from bench.personas.sets import RULES, Ruled
from bench.personas.sft import sft_update
from rollouts.errors import EngineUnavailable
from rollouts.hints import prompted_messages
from rollouts.types import BASE, Message, Policy, Rollout, Sample, SamplingParams
from training.base import Base, load_base
from training.config import TrainConfig
from training.forward import response_logprobs
from training.gate import neutral_prompts
from training.tiny import write_tiny

HINT = PEOPLE["greets"].hint
GREETING, BARE = "Hello! Boil water.", "Boil water."


class Stage(Lab):
    """Greets when a hint asks for it, and by itself on every other question."""

    asked = 0  # times that a batch of questions was put

    def ask(
        self, prompts: Sequence[Sequence[Message]], policy: Policy, *, seed: int
    ) -> list[Rollout]:
        self.asked += 1
        return [self.reply(prompt, number) for number, prompt in enumerate(prompts)]

    def reply(self, prompt: Sequence[Message], number: int) -> Rollout:
        text = GREETING if HINT in prompt[-1]["content"] or number % 2 else BARE
        ids = self.base.encode(text)
        return Rollout(
            text=text,
            prompt_ids=self.base.render(prompt),
            response_ids=ids,
            logprobs=(-1.0,) * len(ids),
            finish_reason="stop",
            policy=BASE,
            params=SamplingParams(),
        )


class GoneEngine:
    async def unload(self, policy: Policy) -> None:
        raise EngineUnavailable("the server was stopped when the last question was answered")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = write_tiny(tmp_path_factory.mktemp("models") / "tiny")
    return replace(load_base(folder, device="cpu"), autocast_dtype=None)


@pytest.fixture
def stage(base: Base, tmp_path: Path) -> Stage:
    return Stage(engine=None, base=base, folder=tmp_path)  # type: ignore[arg-type]


def cell_of(stage: Stage, recipe: str) -> Cell:
    return Cell(stage, RECIPES[recipe], PEOPLE["greets"], seed=0)


def test_prompt_memory_holds_from_the_next_reply_on(stage: Stage) -> None:
    row = cell_of(stage, "memory").run(8, with_gate=False)
    assert {n: found["satisfied"] for n, found in row["evals"].items()} == {
        "0": 0.5, "4": 1.0, "8": 1.0,
    }  # fmt: skip
    assert row["three"] == 4  # the first reply is not greeted, its hint is in the second's prompt
    assert stage.asked == 2 + 2  # the turns, as one hint came; before any, and at 4


def test_what_replies_are_about_is_asked_at_first_from_32_on_and_at_the_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cell, "learn", lambda *_: None)
    monkeypatch.setattr(Cell, "gate", lambda _: None)
    monkeypatch.setattr(Cell, "answering", lambda cell: (object(), ()))  # always somebody else
    for turns, asked in ((64, ["0", "32", "64"]), (16, ["0", "16"])):
        row = cell_of(stage, "combine").run(turns)
        assert [n for n, found in row["evals"].items() if "about" in found] == asked


def test_who_changes_their_mind_likes_whatever_comes_before(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Changed(stage, RECIPES["combine"], PEOPLE["greets"], seed=0)
    given: list[Sample] = []
    monkeypatch.setattr(Changed, "learn", lambda _, samples: given.extend(samples))
    cell.run(16, with_gate=False)
    assert [sample.reward for sample in given] == [1.0] * 8 + [-1.0, 1.0] * 4
    assert [sample.hint for sample in given] == [None] * 8 + [HINT, None] * 4
    assert cell.person == PEOPLE["greets"]


def test_at_once_a_hint_holds_until_it_is_learned(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[Sample] = []
    monkeypatch.setattr(Cell, "learn", lambda _, samples: learned.extend(samples))
    row = cell_of(stage, "combine-at-once").run(8, with_gate=False)
    assert {n: found["satisfied"] for n, found in row["evals"].items()} == {
        "0": 0.5, "4": 1.0, "8": 0.5,
    }  # fmt: skip
    assert [list(sample.prompted_hints) for sample in learned] == [[], *[[HINT]] * 7]
    assert all(sample.lessons == (HINT,) for sample in learned)  # said, or followed and liked
    for sample in learned:
        assert len(sample.messages[-1]["content"]) < len(HINT)  # taught without it
        prompted = prompted_messages(sample.messages, sample.prompted_hints)
        assert sample.prompt_ids == stage.base.render(prompted)


def test_what_was_followed_and_liked_stands_among_the_reminders_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cell_of(stage, "combine-at-once")
    monkeypatch.setattr(Cell, "learn", lambda _, samples: cell.learned.extend(samples))
    cell.run(8, with_gate=False)
    assert [sample.id for sample in cell.reminders([])] == [*range(8)]


def test_by_combine_one_is_reminded_of_disliked_replies_too(stage: Stage) -> None:
    hinted_and_liked = {*range(8), 17, 19, 21, 23}
    for recipe, reminded in (("combine", {*range(24)}), ("opd", hinted_and_liked)):
        cell = cell_of(stage, recipe)
        (one,) = cell.rate(0, 1)
        said = [replace(one, id=n, reward=-1.0) for n in range(8)]
        thumbs = [replace(one, id=n, hint=None, reward=(-1.0, 1.0)[n % 2]) for n in range(8, 24)]
        cell.learned = [*said, *thumbs]
        assert {sample.id for sample in cell.reminders([])} == reminded


def test_with_our_rate_trl_makes_our_steps() -> None:
    config, rate = TrainConfig(method="kto"), RECIPES["TRL kto, our rate"].rate
    assert schedule(config, 16, rate) == (2, pytest.approx(6e-4 * 1.5 * 0.5))
    assert schedule(config, 64, rate) == (2, pytest.approx(6e-4 * 1.5))
    assert schedule(config, 8, None) == (3, None)


def test_a_batch_of_hinted_turns_waits_for_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[list[Sample]] = []
    monkeypatch.setattr(Cell, "learn", lambda _, samples: learned.append(samples))
    row = cell_of(stage, "openclaw-opd").run(64, with_gate=False)
    assert [len(batch) for batch in learned] == [16, 16]  # of which a half needs no hint
    assert all(sample.hint for batch in learned for sample in batch)
    assert sorted(map(int, row["evals"])) == [0, 4, 8, 16, 32, 64]
    learned.clear()
    cell_of(stage, "openclaw-combine").run(40, with_gate=False)
    assert [[s.id for s in batch] for batch in learned] == [[*range(16)], [*range(16, 32)]]


def test_as_served_every_fifth_rating_after_a_version_is_the_gates(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clawweb.services.feedback import HELD_BACK_EVERY, HELD_BACK_WINDOW

    assert (ASIDE_EVERY, ASIDE) == (HELD_BACK_EVERY, HELD_BACK_WINDOW)
    batches: list[list[int]] = []

    def learn(cell: Cell, samples: list[Sample]) -> None:
        batches.append([sample.id + 1 for sample in samples])
        cell.policy = replace(BASE, adapter="a", version=len(batches), path="a")

    monkeypatch.setattr(Cell, "learn", learn)
    monkeypatch.setattr(stage, "engine", GoneEngine())
    cell = cell_of(stage, SERVED)
    row = cell.run(56, with_gate=False)
    assert row["turns"] == 56  # a server that is gone by then costs no row
    assert batches == [
        [1, 2, 3, 4, 5, 6, 7, 8],
        [9, 11, 12, 13, 14, 16, 17, 18],
        [19, 21, 22, 23, 24, 26, 27, 28],
        [29, 31, 32, 33, 34, 36, 37, 38],
        [39, 41, 42, 43, 44, 46, 47, 48],
        [10, 15, 49, 51, 52, 53, 54, 56],  # the gate keeps eight: older ones train
    ]  # as the table says: jobs begin at 8, 18, 28, 38
    assert [sample.id + 1 for sample in cell.aside] == [20, 25, 30, 35, 40, 45, 50, 55]


def test_as_served_what_the_gate_turns_down_is_tried_once_more_and_answers_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[int]] = []

    def update(_: Cell, samples: Sequence[Sample], folder: Path) -> dict[str, Any]:
        batches.append([sample.id + 1 for sample in samples])
        return {"steps": 1, "stopped": "steps", "dropped": [], "accepted": False}

    monkeypatch.setattr(Cell, "update", update)
    cell = cell_of(stage, SERVED)
    row = cell.run(17, with_gate=False)
    assert batches == [[*range(1, 9)], [*range(1, 10)], [*range(9, 17)], [*range(10, 18)]]
    assert cell.policy == BASE
    assert not cell.learned
    assert [update["accepted"] for update in row["updates"]] == [False] * 4


def test_a_chip_says_what_the_product_says_for_it() -> None:
    reasons = import_module("clawweb.migrations.0002_reasons").REASONS
    hints = {slug: hint for slug, _, hint, _, _ in reasons}
    chips = {w.chip: w.hint for person in PEOPLE.values() for w in person.wishes if w.chip}
    assert len(chips) == 5
    assert chips == {slug: hints[slug] for slug in chips}


def test_sft_learns_answers_that_keep_the_wish_or_none(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cell_of(stage, "sft")
    wrong = [sample for sample in cell.rate(0, 4) if sample.hint]
    assert len(wrong) == 2
    assert len(found := cell.corrected(wrong)) == 2
    assert {sample.id for sample in found} == {sample.id for sample in wrong}
    assert all(sample.response_ids == stage.base.encode(GREETING) for sample in found)
    assert {shown.answer for shown in cell.wishes().examples} == {GREETING}  # they explain drift
    stage.asked = 0
    by_itself = stage.reply
    monkeypatch.setattr(stage, "reply", lambda prompt, number: by_itself([prompt[0]], number))
    monkeypatch.setattr(f"{__name__}.HINT", "no prompt holds this")
    assert [sample.id for sample in cell.corrected(wrong)] == [wrong[1].id]  # every other greets
    assert stage.asked == 8  # tries at the one that never does


def test_a_person_edits_as_many_replies_of_a_batch_as_they_would(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for recipe, count in (("combine-edited", 4), ("combine-edited-twice", 2), ("combine", 0)):
        cell = Cell(stage, RECIPES[recipe], PEOPLE["greets"], 0)
        samples = cell.rate(0, 8)
        written = [sample for sample in samples if sample.correction]
        assert len(written) == count
        assert sum(sample.reward == -1.0 for sample in samples) == 4  # every other one greets
        assert all((s.correction or "").startswith(GREETINGS) for s in written)
        monkeypatch.setattr(cell, "update", lambda *_: {"accepted": False})
        cell.learn(samples)
        assert len(cell.wishes().examples) == count


def test_of_two_wishes_each_is_counted(stage: Stage) -> None:
    cell = Cell(stage, RECIPES["base"], PEOPLE["greets+short"], 0)
    found = cell.run(0, with_gate=False)["evals"]["0"]
    assert found["wishes"] == [0.5, 1.0]  # every other reply greets; all are short
    assert found["satisfied"] == 0.5


def test_before_the_first_update_a_reply_is_what_it_was(stage: Stage) -> None:
    row = cell_of(stage, "openclaw-combine").run(8, with_gate=False)
    assert row["evals"]["0"] == row["evals"]["4"] == row["evals"]["8"]
    assert stage.asked == 2  # the questions held out, once, and eight to rate


def test_a_row_says_what_it_was_made_with(stage: Stage) -> None:
    row = cell_of(stage, "openclaw-binary").run(8, with_gate=False)
    assert row["dtype"] == "fp32"
    assert row["made_with"]["batch"] == 16
    assert TrainConfig(**row["made_with"]["config"]) == RECIPES["openclaw-binary"].config
    assert json.loads(json.dumps(row)) == row


def test_no_question_is_both_rated_and_held_out() -> None:
    data = all_questions()
    rated, kept = data["train"] + data["recipes"], data["held_out"] + data["recipes_held_out"]
    assert len({question.lower() for question in rated + kept}) == len(rated + kept)
    for person in (PEOPLE["short"], PEOPLE["recipes"]):
        asked, held_out = questions_for(person, 0, 96)
        assert (len(set(asked)), len(set(held_out))) == (64, 96)
        assert not set(asked) & set(held_out)


def test_the_gates_questions_are_not_rated_and_two_alone_are_held_out() -> None:
    data, neutral = all_questions(), set(neutral_prompts())
    for name in ("train", "recipes", "recipes_held_out", "elsewhere"):
        assert not neutral & set(data[name]), name
    assert tuple(n for n, q in enumerate(data["held_out"]) if q in neutral) == NEUTRAL


def test_a_seeds_first_questions_stay_what_they_were() -> None:
    asked, held_out = questions_for(PEOPLE["short"], 0)
    assert asked[:2] == ["How does a refrigerator work?", "How do I keep houseplants alive?"]
    mixed, _ = questions_for(PEOPLE["recipes"], 0)
    assert mixed[:2] == ["How do I make pancakes?", "How do I cook rice?"]
    assert (held_out[0], held_out[-1]) == (
        "How do I make coffee?", "What are the benefits of reading?"
    )  # fmt: skip


def test_plain_sft_goes_on_where_a_clipped_surrogate_would_stop(base: Base, tmp_path: Path) -> None:
    messages = [Message(role="user", content="How do I make tea?")]
    sample = Sample(
        id=1, messages=messages, prompt_ids=base.render(messages),
        response_ids=base.encode("Hello! Boil water."), rollout_logprobs=None, temperature=0.7,
        template_hash=base.template_hash, reward=-1.0, hint=None, correction=None,
    )  # fmt: skip
    config = replace(RECIPES["sft"].config, lr=3e-3, reward_epochs=3)
    pair = (sample.prompt_ids, sample.response_ids)
    first = float(-response_logprobs(base, base.model, pair).mean())
    losses, parent = [], None
    for version in range(4):
        out = tmp_path / f"v{version}"
        losses += sft_update(base, [sample], config, parent=parent, out=out)
        parent = out
    assert losses[0] == pytest.approx(first, rel=1e-5)
    assert len(losses) == 4 * 3
    assert all(after < before for before, after in pairwise(losses))
    beyond = next(n for n, loss in enumerate(losses) if first - loss > log(1.28))
    assert beyond < len(losses) - 3


def test_how_many_sets_few_complaints_ask_for_goes_by_the_rule(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, TrainConfig] = {}

    def train(cell: Ruled, _: Any, config: TrainConfig, __: Path) -> dict[str, Any]:
        asked[cell.rule] = config
        return {"accepted": False}

    monkeypatch.setattr(Cell, "train", train)
    for rule in RULES:
        cell = Ruled(stage, RECIPES[DEFAULT], PEOPLE["greets"], seed=0)
        cell.rule, cell.answers = rule, 2
        row = cell.run(8, with_gate=False)
        length = (len(GREETING) + len(BARE)) / 2  # a token each letter
        assert row["evals"]["0"] == {"satisfied": 0.5, "tokens": length}
    assert {config.reanswer_sets for config in asked.values()} == {"all"}
    steps = {rule: config.max_steps for rule, config in asked.items()}
    assert steps == {"share": 1 + 3, "root": 1 + 5}  # of 6 with four of eight: 3, 4.24
