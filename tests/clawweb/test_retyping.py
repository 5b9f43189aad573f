"""What a user makes of a turn: main or side, and what its rating is worth then."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from clawweb.models import Consent, JobState, Judgement, SampleState, Turn, User
from clawweb.selectors.learning import ready_samples
from clawweb.services import feedback, housekeeping, jobs, judgements, sessions, versions
from rollouts.judge import Verdict
from tests.factories import claimed_job, down, make_adapter, make_turn, up
from tests.judging import follow, has_judgement, judged

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


@pytest.fixture
def as_alice(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def retype(client: Client, turn: Turn, turn_type: Any) -> Any:
    return client.post(
        f"/api/turns/{turn.public_id}", {"turn_type": turn_type}, content_type="application/json"
    )


def state_of(turn: Turn) -> tuple[str, str]:
    sample = turn.samples.order_by("-id").first()
    return sample.state, sample.drop_reason


def read(user: User) -> tuple[Turn, Turn]:
    """A reply, and the turn in which a judge has read that its user disliked it."""
    reply = make_turn(user)
    following = follow(reply)
    judged(reply)
    return reply, following


def test_a_rated_side_turn_counts_once_its_user_calls_it_main(as_alice, alice) -> None:
    turn = make_turn(alice, turn_type="side")
    down(turn)
    assert state_of(turn) == ("dropped", "side_turn")
    body = retype(as_alice, turn, "main").json()
    assert (body["turn_type"], body["turn_type_from"]) == ("main", "owner")
    assert body["receipt"]["state"] == "counted"
    assert ready_samples(alice).count() == 1


def test_a_counted_rating_of_a_side_turn_is_dropped(as_alice, alice) -> None:
    turn = make_turn(alice)
    down(turn)
    body = retype(as_alice, turn, "side").json()
    assert (body["receipt"]["state"], body["receipt"]["drop_reason"]) == ("not_used", "side_turn")
    assert ready_samples(alice).count() == 0
    retype(as_alice, turn, "main")
    assert ready_samples(alice).count() == 1


def test_what_would_not_train_anyway_says_why(as_alice, alice) -> None:
    turn = make_turn(alice, turn_type="side")
    up(turn)
    User.objects.filter(pk=alice.pk).update(consent=Consent.KEEP)
    retype(as_alice, turn, "main")
    assert state_of(turn) == ("dropped", "consent")


def test_another_reason_to_drop_it_stays(as_alice, alice) -> None:
    turn = make_turn(alice, asked="base")
    down(turn)
    retype(as_alice, turn, "side")
    retype(as_alice, turn, "main")
    assert state_of(turn) == ("dropped", "base_requested")


def test_a_claimed_rating_stays_with_its_job(as_alice, alice) -> None:
    turn = make_turn(alice)
    down(turn)
    claimed_job(alice)
    retype(as_alice, turn, "side")
    assert state_of(turn) == (SampleState.CLAIMED, "")


def test_what_a_job_gives_back_of_a_side_turn_is_dropped(as_alice, alice) -> None:
    turn = make_turn(alice)
    down(turn)
    job = claimed_job(alice)
    retype(as_alice, turn, "side")
    jobs.end_job(job, state=JobState.FAILED, reason="because")
    assert state_of(turn) == ("dropped", "side_turn")
    retype(as_alice, turn, "main")
    assert state_of(turn) == ("ready", "")


def test_what_was_learned_of_a_side_turn_does_not_count_again(as_alice, alice) -> None:
    learned, deleted = make_turn(alice), make_turn(alice)
    for turn in (learned, deleted):
        down(turn)
    jobs.end_job(
        claimed_job(alice), state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live")
    )
    retype(as_alice, learned, "side")
    housekeeping.delete_session(deleted.session)
    versions.leave_behind(alice)
    assert state_of(learned) == ("dropped", "side_turn")


def test_a_bare_thumb_down_that_waits_is_dropped_too(as_alice, alice) -> None:
    turn = make_turn(alice)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": -1})
    retype(as_alice, turn, "side")
    assert state_of(turn) == ("dropped", "side_turn")


def test_the_batch_that_gets_full_by_it_is_trained(as_alice, alice, monkeypatch) -> None:
    turns = [make_turn(alice, turn_type="side") for _ in range(8)]
    for turn in turns:
        down(turn)
        retype(as_alice, turn, "main")
    assert alice.jobs.count() == 1


def test_what_becomes_conversation_can_be_judged(as_alice, alice, judge) -> None:
    first = make_turn(alice, reply="a drink")
    errand = make_turn(alice, session=first.session, parent=first, turn_type="side")
    make_turn(alice, session=first.session, parent=errand)
    assert not Judgement.objects.exists()
    retype(as_alice, errand, "main")
    assert list(Judgement.objects.values_list("turn", flat=True)) == [first.pk, errand.pk]


def test_what_becomes_an_errand_is_not_judged_any_more(as_alice, alice, judge) -> None:
    turn = make_turn(alice)
    make_turn(alice, session=turn.session, parent=turn)
    waiting = Judgement.objects.get()
    retype(as_alice, turn, "side")
    assert judgements.claim(waiting.pk) is None
    assert not turn.samples.exists()


def test_what_stands_around_a_turn_that_becomes_an_errand_stays_in_its_chat(
    as_alice, alice
) -> None:
    """Also of two such turns in a row, and of another branch."""
    turns = [make_turn(alice, "question 0")]
    for number in range(1, 5):
        before = turns[-1]
        turns.append(make_turn(alice, f"question {number}", session=before.session, parent=before))
    other = make_turn(alice, "said otherwise", session=turns[0].session, parent=turns[3])
    for turn in turns[1:3]:
        retype(as_alice, turn, "side")
    chat = reverse("chat_session", args=[other.session.public_id])
    page, branch = as_alice.get(chat), as_alice.get(f"{chat}?turn={turns[3].public_id}")
    shown = [turn["text"] for turn in page.context["turns"]]
    assert shown == ["question 0", "question 3", "said otherwise"]
    assert [turn["text"] for turn in branch.context["turns"]] == shown
    part = as_alice.get(reverse("part_earlier", args=[turns[4].public_id]))
    assert [turn["text"] for turn in part.context["turns"]] == ["question 0", "question 3"]


def test_what_a_judge_read_in_an_errand_counts_no_more(as_alice, alice, judge) -> None:
    reply, errand = read(alice)
    assert state_of(reply) == ("ready", "")
    retype(as_alice, errand, "side")
    assert state_of(reply) == ("dropped", "no_signal")
    retype(as_alice, errand, "main")
    assert state_of(reply) == ("ready", "")


def test_what_a_judge_read_is_not_taken_up_again_beside_a_rating(as_alice, alice, judge) -> None:
    reply, errand = read(alice)
    retype(as_alice, errand, "side")
    up(reply)
    retype(as_alice, errand, "main")
    assert [sample.state for sample in reply.samples.order_by("id")] == ["dropped", "ready"]


def test_what_a_job_gives_back_of_what_was_read_in_an_errand_is_dropped(
    as_alice, alice, judge
) -> None:
    reply, errand = read(alice)
    job = claimed_job(alice)
    retype(as_alice, errand, "side")
    assert state_of(reply) == ("claimed", "")
    jobs.end_job(job, state=JobState.FAILED, reason="because")
    assert state_of(reply) == ("dropped", "no_signal")


def test_an_errand_is_not_read_and_what_is_none_after_all_is(as_alice, alice, judge) -> None:
    reply = make_turn(alice)
    errand = follow(reply)
    asked = judgements.claim(Judgement.objects.get().pk)
    retype(as_alice, errand, "side")
    assert not Judgement.objects.exists()
    assert judgements.record(asked, Verdict(score=-1, hints=("Less.",)), []) is None
    assert not reply.samples.exists()
    retype(as_alice, errand, "main")
    assert has_judgement(reply)


@pytest.mark.parametrize("turn_type", ["middle", None, 1])
def test_there_are_two_types(as_alice, alice, turn_type) -> None:
    assert retype(as_alice, make_turn(alice), turn_type).status_code == 422


def test_others_turns_are_not_there(client: Client, alice, bob) -> None:
    turn = make_turn(alice)
    client.force_login(bob)
    assert retype(client, turn, "side").status_code == 404
    assert client.get(reverse("part_turn", args=[turn.public_id])).status_code == 404
    turn.refresh_from_db()
    assert turn.turn_type == "main"


def test_the_inspector_says_why_and_offers_the_other_type(as_alice, alice) -> None:
    session = sessions.open_session(user=alice, external_id="s")
    turn = make_turn(alice, session=session, turn_type="side", turn_type_from="heartbeat")
    page = as_alice.get(reverse("session", args=[session.public_id])).content.decode()
    part = as_alice.get(reverse("part_turn", args=[turn.public_id])).content.decode()
    for html in (page, part):
        assert "The rule heartbeat fits" in html
        assert "Count as conversation" in html
        assert "Turn 1" in html
    retype(as_alice, turn, "main")
    part = as_alice.get(reverse("part_turn", args=[turn.public_id])).content.decode()
    assert "Mark as background" in part
    assert "You said so." in part


def test_the_inspector_shows_tools_and_thoughts_and_what_was_sent_anew(as_alice, alice) -> None:
    call = {"id": "c1", "function": {"name": "weather", "arguments": '{"city": "<Rome>"}'}}
    turn = make_turn(
        alice,
        source="api",
        reply="",
        tool_calls=[call],
        tools=[{"type": "function", "function": {"name": "weather"}}],
        reasoning="I wonder.",
    )
    Turn.objects.filter(pk=turn.pk).update(context_start=turn)
    html = as_alice.get(reverse("part_turn", args=[turn.public_id])).content.decode()
    for words in (
        "weather({&quot;city&quot;: &quot;&lt;Rome&gt;&quot;})",
        "I wonder.",
        "as its client",
    ):
        assert words in html
    make_adapter(alice, 1, "live")
    page = as_alice.get(reverse("session", args=[turn.session.public_id])).content.decode()
    assert '<div class="rate">' in page  # that it called the tool can be rated, and not compared
    assert "Answer again with" not in page
    assert feedback.rate_turn(turn=turn, author=alice, changes={"value": -1})


def test_what_holds_background_calls_alone_is_listed_as_a_session_and_not_as_a_chat(
    as_alice, alice
) -> None:
    session = make_turn(alice, turn_type="side").session
    address = f"/{{}}/{session.public_id}/"
    assert address.format("chat") not in as_alice.get("/chat/").content.decode()
    assert address.format("sessions") in as_alice.get("/sessions/").content.decode()
    make_turn(alice, session=session)
    assert address.format("chat") in as_alice.get("/chat/").content.decode()
