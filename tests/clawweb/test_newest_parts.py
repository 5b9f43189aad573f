"""Ratings in a chat that is longer than training takes count: its newest part trains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clawweb import training_run
from clawweb.config import config
from clawweb.models import SampleState, TrainingSample, Turn, User
from clawweb.selectors.chat import messages_for
from clawweb.selectors.learning import receipt
from clawweb.services import jobs
from tests.factories import down, make_turn

# The lease is renewed from a thread of its own: the rows must be there for it.
pytestmark = pytest.mark.django_db(transaction=True, serialized_rollback=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, setting: Any) -> None:
    """A limit that two of these replies reach, few tokens, and a tiny model."""
    setting(train_tokens=480)
    plain = training_run._train_config
    few = {"rated_tokens": 24, "reanswer_tokens": 8, "gate_tokens": 8, "small_talk_nats": 0.0}
    monkeypatch.setattr(
        training_run, "_train_config", lambda job: replace(plain(job), lr=5e-3, **few)
    )
    monkeypatch.setattr(training_run, "neutral_prompts", lambda: ("hello",))
    monkeypatch.setattr("clawweb.events._send", lambda *_: None)


def long_chat(user: User, replies: int, source: str = "ui") -> list[Turn]:
    """Questions of one chat, each with the tiny model's own ids for all that was said before."""
    base = training_run.loaded_base()
    said = "and so on, " * 12
    ids = list(base.encode(said))
    turns: list[Turn] = []
    for number in range(replies):
        before = turns[-1] if turns else None
        turn = make_turn(
            user,
            f"question {number}",
            session=before and before.session,
            parent=before,
            reply=said,
            response_ids=ids,
            logprobs=[-1.0] * len(ids),
            source=source,
        )
        turn.prompt_ids = list(base.render(messages_for(turn)))
        turn.save(update_fields=["prompt_ids"])
        turns.append(turn)
    return turns


@pytest.mark.parametrize("source", ["ui", "api"])
def test_each_reply_of_a_long_chat_trains(alice: User, source: str) -> None:
    turns = long_chat(alice, 4, source)
    sizes = [len(turn.prompt_ids) + len(turn.response_ids) for turn in turns]
    assert sizes[0] < config().train_tokens < sizes[-2]
    for turn in turns:
        down(turn)
    assert [receipt(turn)["state"] for turn in turns] == ["counted"] * 4

    job = jobs.queue_job(user=alice)
    training_run.run(job.public_id)
    samples = TrainingSample.objects.order_by("id")
    assert [bool(sample.token_effects) for sample in samples] == [True] * 4
    assert [sample.state for sample in samples] == [SampleState.CLAIMED] * 4


def test_a_message_that_is_too_long_by_itself_is_told_at_once(alice: User) -> None:
    limit = config().train_tokens
    (alone,) = long_chat(alice, 1)
    Turn.objects.filter(pk=alone.pk).update(prompt_ids=[1] * limit)
    alone.refresh_from_db()
    down(alone)
    assert receipt(alone)["drop_reason"] == "too_long"


def test_so_is_one_before_which_the_chat_is_forgotten(alice: User) -> None:
    """What memory has dropped already cannot be left out once more."""
    _, last = long_chat(alice, 2)
    whole = [1] * config().train_tokens
    Turn.objects.filter(pk=last.pk).update(prompt_ids=whole, context_start=last)
    last.refresh_from_db()
    down(last)
    assert receipt(last)["drop_reason"] == "too_long"
