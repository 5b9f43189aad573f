"""What the first replies of a version say of it: in chats of its own, and in older ones."""

from __future__ import annotations

import pytest
from django.test import Client

from clawweb.models import AdapterState, User
from clawweb.selectors.agent import agent_status
from tests.factories import down, make_adapter, make_turn, rated, up

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


@pytest.mark.parametrize(
    ("votes", "disliked"),
    [
        ("dd", 0),  # two are not enough
        ("dud", 0),
        ("dudd", 3),
        ("ddddd", 5),
        ("uuudddd", 0),  # two of the first five
    ],
)
def test_a_version_whose_first_replies_are_disliked_offers_the_way_back(
    alice: User, votes: str, disliked: int
) -> None:
    make_adapter(alice, 1, AdapterState.LIVE)
    for vote in votes:
        turn = make_turn(alice, version=1)
        down(turn) if vote == "d" else up(turn)
    status = agent_status(alice)
    assert (status["struggles"], status["in_older"]) == (disliked, 0)


def test_what_is_disliked_in_an_older_chat_is_no_reason_to_go_back(
    client: Client, alice: User
) -> None:
    """Its earlier replies stand in the prompt and pull there, for a while, what was learned."""
    older = make_turn(alice)
    make_adapter(alice, 1, AdapterState.LIVE)
    turn = older
    for _ in range(3):
        turn = make_turn(alice, version=1, session=older.session, parent=turn)
        down(turn)
    status = agent_status(alice)
    assert (status["struggles"], status["in_older"]) == (0, 3)
    client.force_login(alice)
    page = client.get("/chat/").content.decode()
    assert "3 of the first replies of v1 were disliked in chats begun before it" in page
    own = make_turn(alice, version=1, turn_type="side", adapter=None)  # stands in no prompt
    for _ in range(3):
        down(make_turn(alice, version=1, session=own.session))
    assert agent_status(alice)["struggles"] == 3
    page = client.get("/chat/").content.decode()
    assert "3 of the first replies of v1 were disliked</span>" in page
    assert "begun before" not in page


def test_the_base_model_offers_no_way_back(alice: User) -> None:
    rated(alice, 5)
    assert agent_status(alice)["struggles"] == 0
