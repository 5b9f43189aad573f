"""A version that has just gone live reads its user's newest chat before anybody asks it."""

from __future__ import annotations

import pytest

from clawweb import deployment
from clawweb.selectors.learning import live_adapter, policy_of
from tests.clawweb.test_deploying import no_answer
from tests.factories import handed_over, make_turn

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked(engine, monkeypatch):
    """What the server was asked to write."""
    calls = []
    generate = engine.generate

    async def listen(messages, **values):
        calls.append((messages, values["policy"], values["params"].max_tokens))
        return await generate(messages, **values)

    monkeypatch.setattr(engine, "generate", listen)
    return calls


def test_a_new_version_reads_its_users_newest_kept_chat_and_writes_next_to_nothing(
    alice, bob, asked
):
    job, adapter = handed_over(alice)
    make_turn(alice, "the newest", reply="its reply")
    make_turn(alice, "kept nowhere", recorded=False)
    make_turn(bob, "somebody else's")
    deployment.deploy(job.public_id)
    ((messages, policy, most),) = asked
    assert [message["content"] for message in messages] == ["the newest", "its reply", " "]
    assert (policy, most) == (policy_of(adapter), 1)


def test_a_version_that_cannot_be_warmed_up_is_live_all_the_same(alice, engine, monkeypatch):
    monkeypatch.setattr(engine, "generate", no_answer)
    job, adapter = handed_over(alice)
    deployment.deploy(job.public_id)
    assert live_adapter(alice) == adapter


def test_what_did_not_go_live_is_not_warmed_up(alice, asked):
    job, _ = handed_over(alice, differs=False)
    deployment.deploy(job.public_id)
    assert asked == []
