"""Forgetting a chat: what learned from it is marked and can be left behind."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clawweb import deployment
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    ChatSession,
    Event,
    JobSample,
    JobState,
    SampleState,
    Tombstone,
    TrainingJob,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.forgetting import learned_chats, versions_that_learned_from
from clawweb.selectors.learning import live_adapter, ready_samples
from clawweb.services import finishing, housekeeping, jobs, versions
from clawweb.services.errors import AlreadyTraining, QuotaReached, ServiceError
from clawweb.services.forgetting import train_without
from tests.factories import (
    claimed_job,
    down,
    hand_over,
    make_adapter,
    make_turn,
    rated,
    registered,
)

pytestmark = pytest.mark.usefixtures("valkey_server", "engine", "transfer_files")


def learn(turns: list[Turn], adapter: AdapterVersion) -> None:
    rows = TrainingSample.objects.filter(turn__in=turns)
    rows.update(state=SampleState.TRAINED, adapter=adapter)


@pytest.fixture
def line(alice: User) -> tuple[list[Turn], list[AdapterVersion]]:
    """Three chats, each learned by a version that grew from the one before; the last one is
    live."""
    turns = rated(alice, 3)
    first = make_adapter(alice, 1)
    second = make_adapter(alice, 2, parent=first, live_before=[first.pk])
    way = [first.pk, second.pk]
    third = make_adapter(alice, 3, AdapterState.LIVE, parent=second, live_before=way)
    for turn, adapter in zip(turns, (first, second, third), strict=True):
        learn([turn], adapter)
    return turns, [first, second, third]


def marked(user: User) -> list[int]:
    rows = user.adapters.filter(forgot_at__isnull=False).order_by("version")
    return list(rows.values_list("version", flat=True))


# Which versions


def test_many_chats_are_looked_up_with_as_many_queries_as_one(
    alice: User, django_assert_num_queries: Any
) -> None:
    adapter = make_adapter(alice, 1, AdapterState.LIVE)
    learn(rated(alice, 12), adapter)
    with django_assert_num_queries(4):
        chats, more = learned_chats(alice)
    assert ([chat.versions for chat in chats], more) == ([[adapter]] * 12, False)


def test_a_chat_is_in_what_learned_from_it_and_in_all_that_grew_from_that(line: Any) -> None:
    turns, (_, second, third) = line
    assert versions_that_learned_from(turns[1].session) == [second, third]


def test_being_reminded_of_a_chat_is_learning_from_it(line: Any, alice: User) -> None:
    turns, _ = line
    aside = make_adapter(alice, 4)
    job = TrainingJob.objects.create(user=alice, state=JobState.DEPLOYED, child=aside)
    sample = TrainingSample.objects.get(turn=turns[2])
    JobSample.objects.create(job=job, sample=sample, role="replay")
    assert [row.version for row in versions_that_learned_from(turns[2].session)] == [3, 4]


def test_what_the_trainer_dropped_taught_nothing(alice: User) -> None:
    turn = make_turn(alice)
    down(turn)
    job = claimed_job(alice)
    finishing.drop_samples(job, {TrainingSample.objects.get().pk: "too_long"})
    TrainingJob.objects.filter(pk=job.pk).update(child=make_adapter(alice, 1))
    assert versions_that_learned_from(turn.session) == []


@pytest.mark.parametrize("end", [JobState.REFUSED, JobState.FAILED, JobState.CANCELLED])
def test_a_version_that_never_answered_has_learned_all_the_same(alice: User, end: JobState) -> None:
    turn = make_turn(alice)
    down(turn)
    job, child = registered(alice)
    jobs.end_job(job, state=end, reason="because")
    assert versions_that_learned_from(turn.session) == [child]


# Marks


def test_a_deletion_marks_and_its_undoing_unmarks(line: Any, alice: User) -> None:
    turns, _ = line
    housekeeping.delete_session(turns[1].session)
    assert marked(alice) == [2, 3]
    housekeeping.restore_session(turns[1].session)
    assert marked(alice) == []


@pytest.mark.parametrize("back", [0, 1])
def test_what_another_deleted_chat_taught_stays_marked(line: Any, alice: User, back: int) -> None:
    turns, _ = line
    for turn in (turns[1], turns[2]):
        housekeeping.delete_session(turn.session)
    housekeeping.restore_session((turns[1], turns[2])[back].session)
    assert marked(alice) == ([3], [2, 3])[back]


def test_a_chat_that_is_gone_for_good_leaves_its_marks_and_a_tombstone(
    line: Any, alice: User
) -> None:
    turns, _ = line
    session = turns[1].session
    housekeeping.delete_session(session)
    ChatSession.objects.filter(pk=session.pk).update(
        deleted_at=timezone.now() - timedelta(minutes=11)
    )
    assert housekeeping.erase_deleted() == 1
    assert marked(alice) == [2, 3]
    assert Tombstone.objects.get().object_id == session.public_id
    assert Event.objects.get(kind="chat_erased").text == "ratings in it were learned in v2, v3"


@pytest.mark.parametrize("dropped", [False, True])
def test_a_version_made_from_a_deleted_chat_is_marked(alice: User, dropped: bool) -> None:
    turn = make_turn(alice)
    down(turn)
    job = claimed_job(alice)
    if dropped:  # the trainer could not use it
        finishing.drop_samples(job, {TrainingSample.objects.get().pk: "too_long"})
    housekeeping.delete_session(turn.session)
    made = versions.register(
        job,
        version=1,
        path=Path("adapters/x/v1.1"),
        sha256="0" * 64,
        size_bytes=1,
        rank=8,
        base_hash="b",
        measures=[],
        accepted=True,
        note="",
    )
    deleted_at = ChatSession.objects.get(pk=turn.session_id).deleted_at
    assert made.forgot_at == (None if dropped else deleted_at)


def test_nobody_marks_anothers_versions(line: Any, alice: User, bob: User) -> None:
    theirs = rated(bob, 1)[0]
    learn([theirs], make_adapter(bob, 1))
    housekeeping.delete_session(theirs.session)
    assert (marked(alice), marked(bob)) == ([], [1])
    assert len(learned_chats(alice)[0]) == 3


def test_a_mark_stays_once_its_chat_is_gone_for_good(line: Any, alice: User) -> None:
    turns, (_, second, _) = line
    housekeeping.delete_session(turns[1].session)
    at = ChatSession.objects.get(pk=turns[1].session_id).deleted_at
    ChatSession.objects.filter(pk=turns[1].session_id).delete()
    housekeeping.delete_session(turns[0].session)
    second.refresh_from_db()
    assert second.forgot_at == at  # the older one
    housekeeping.restore_session(turns[0].session)
    assert marked(alice) == [2, 3]


def test_what_grows_from_a_marked_version_is_marked(line: Any, alice: User) -> None:
    turns, (*_, third) = line
    housekeeping.delete_session(turns[2].session)
    rated(alice, 1)
    third.refresh_from_db()
    assert registered(alice)[1].forgot_at == third.forgot_at is not None


# Left behind


def test_what_is_left_is_trained_again_from_before(line: Any, alice: User) -> None:
    turns, (first, second, third) = line
    more = rated(alice, 1)
    learn(more, third)
    housekeeping.delete_session(turns[1].session)
    back, job, why = train_without(alice)
    assert (back, live_adapter(alice)) == (first, first)
    assert job is not None
    assert why == ""
    # Of the versions left behind: not the deleted chat's, and not what the first one knows
    assert {sample.turn for sample in ready_samples(alice)} == {turns[2], *more}
    for left in (second, third):
        left.refresh_from_db()
        assert (left.state, left.rolled_back_at is not None) == (AdapterState.STANDBY, True)
    claimed = jobs.claim_job(job.public_id)
    assert claimed.parent == first
    assert {sample.turn for sample in jobs.samples_of(claimed)} == {turns[2], *more}
    # The first one's are what it is reminded of
    assert [sample.turn for sample in jobs.samples_of(claimed, "replay")] == [turns[0]]
    forgotten = turns[1].samples.get()
    assert (forgotten.state, forgotten.adapter) == (SampleState.TRAINED, second)
    assert turns[2].samples.get().adapter is None


def test_what_was_left_behind_has_learned_what_counts_again_all_the_same(alice: User) -> None:
    turns = [make_turn(alice) for _ in range(2)]
    for turn in turns:
        down(turn)
    job, version = registered(alice)
    hand_over(job)
    deployment.deploy(job.public_id)
    housekeeping.delete_session(turns[0].session)
    train_without(alice)
    assert versions_that_learned_from(turns[1].session) == [version]
    housekeeping.restore_session(turns[0].session)
    assert marked(alice) == []
    housekeeping.delete_session(turns[1].session)
    assert marked(alice) == [1]


def test_a_rollback_goes_by_no_mark_and_lets_nothing_count_again(line: Any, alice: User) -> None:
    turns, (_, second, _) = line
    housekeeping.delete_session(turns[0].session)  # all learned from it
    assert versions.rollback(alice) == second
    assert not ready_samples(alice).exists()


def test_who_trains_no_more_leaves_versions_behind_and_counts_nothing_again(
    line: Any, alice: User
) -> None:
    turns, (first, _, third) = line
    housekeeping.delete_session(turns[1].session)
    User.objects.filter(pk=alice.pk).update(consent="keep")
    alice.refresh_from_db()
    assert versions.leave_behind(alice) == first
    kept = turns[2].samples.get()
    assert (kept.state, kept.adapter) == (SampleState.TRAINED, third)


def test_when_all_versions_learned_from_it_base_answers(line: Any, alice: User) -> None:
    turns, _ = line
    housekeeping.delete_session(turns[0].session)
    back, job, _ = train_without(alice)
    assert (back, live_adapter(alice)) == (None, None)
    assert {sample.turn for sample in ready_samples(alice)} == {turns[1], turns[2]}
    assert job is not None


def test_what_a_removed_version_before_it_knew_counts_again(line: Any, alice: User) -> None:
    """Nothing is left that answers with it: newer versions replaced it."""
    turns, (first, *_) = line
    AdapterVersion.objects.filter(pk=first.pk).update(state=AdapterState.ERASED)
    housekeeping.delete_session(turns[1].session)
    back, *_ = train_without(alice)
    assert (back, live_adapter(alice)) == (None, None)
    assert {sample.turn for sample in ready_samples(alice)} == {turns[0], turns[2]}


def test_without_other_ratings_there_is_no_job(alice: User) -> None:
    turn = rated(alice, 1)[0]
    learn([turn], make_adapter(alice, 1, AdapterState.LIVE))
    housekeeping.delete_session(turn.session)
    back, job, why = train_without(alice)
    assert (back, job) == (None, None)
    assert "no counted rating" in why


def test_where_a_quota_stops_the_training_the_versions_are_left_all_the_same(
    line: Any, alice: User, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, _ = line

    def used_up(**_: Any) -> None:
        raise QuotaReached("No minutes are left this week.", retry_after=60)

    monkeypatch.setattr(jobs, "queue_job", used_up)
    housekeeping.delete_session(turns[1].session)
    client.force_login(alice)
    answer = client.post("/api/agent/train-without", content_type="application/json")
    assert answer.status_code == 202
    assert answer.json() == {"version": 1, "job": None, "why": "No minutes are left this week."}
    assert live_adapter(alice).version == 1


def test_what_learned_from_no_deleted_chat_is_not_left(line: Any, alice: User) -> None:
    with pytest.raises(ServiceError):
        train_without(alice)
    assert live_adapter(alice).version == 3


def test_a_running_job_comes_first(line: Any, alice: User) -> None:
    turns, _ = line
    rated(alice, 1)
    jobs.queue_job(user=alice)
    housekeeping.delete_session(turns[1].session)
    with pytest.raises(AlreadyTraining):
        train_without(alice)
    assert live_adapter(alice).version == 3


# Pages


def test_a_chat_that_retention_ended_is_not_said_to_be_deleted_by_its_user(
    client: Client, line: Any, alice: User
) -> None:
    turns, _ = line
    ChatSession.objects.filter(pk=turns[0].session_id).update(
        deleted_at=timezone.now() - timedelta(hours=1)
    )  # as retention does it
    housekeeping.erase_deleted()
    client.force_login(alice)
    said = [client.get(path).content.decode() for path in ("/agent/", "/adapters/")]
    assert [
        f"learned from {words}" in text
        for words, text in zip(("a chat that is deleted", "a deleted chat"), said, strict=True)
    ] == [True, True]
    assert not any("you deleted" in text for text in said)


def test_the_api_says_who_learned_and_leaves_them_behind(
    client: Client, line: Any, alice: User, bob: User
) -> None:
    turns, _ = line
    name = turns[1].session.public_id
    client.force_login(bob)
    assert client.get(f"/api/agent/chats/{name}").status_code == 404
    assert client.post("/api/agent/train-without").status_code == 409
    client.force_login(alice)
    assert client.get(f"/api/agent/chats/{name}").json() == {"versions": [2, 3]}
    client.delete(f"/api/sessions/{name}")
    assert "Train again without it" in client.get("/agent/").content.decode()
    assert "learned from a deleted chat" in client.get("/adapters/").content.decode()
    left = client.post("/api/agent/train-without")
    assert (left.status_code, left.json()["version"]) == (202, 1)
    assert "Train again without it" not in client.get("/agent/").content.decode()


def test_the_page_lists_chats_and_undoes_their_deletion(
    client: Client, line: Any, alice: User
) -> None:
    turns, _ = line
    client.force_login(alice)
    name = turns[1].session.public_id

    def shown() -> str:
        return client.get("/parts/forget/").content.decode()

    assert "v2, v3" in shown()
    assert f'id="forget-{name}"' in shown()
    client.delete(f"/api/sessions/{name}")
    assert f"/api/sessions/{name}/restore" in shown()


def test_erasing_asks_for_ones_own_name(client: Client, line: Any, alice: User) -> None:
    client.force_login(alice)
    assert "3 chats" in client.get("/agent/erase/").content.decode()
    assert client.post("/agent/erase/", {"name": "bob"}).status_code == 422
    assert ChatSession.objects.filter(user=alice).count() == 3
    assert client.post("/agent/erase/", {"name": "alice"})["Location"] == "/agent/"
    assert not ChatSession.objects.filter(user=alice).exists()
    assert "it learns from your ratings" in client.get("/agent/").content.decode()
