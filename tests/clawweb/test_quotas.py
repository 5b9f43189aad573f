"""Quotas: counted from rows, refused with the time of the next, and shown to whom they bind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone, translation

from clawweb.models import AdapterState, ChatSession, TrainingJob, Turn, User
from clawweb.selectors import quotas
from clawweb.selectors.agent import agent_status
from clawweb.selectors.effective import HIDDEN, effective
from clawweb.services import accounts, chat, erasure, housekeeping, jobs, requests, serving
from clawweb.services.errors import QueueFull, QuotaReached
from clawweb.services.forgetting import erase_learning
from rollouts.types import Message, Rollout, SamplingParams
from tests.factories import make_adapter, make_turn, rated

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")
WEDNESDAY = datetime(2026, 11, 18, 21, 30, tzinfo=UTC)


@pytest.fixture
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timezone, "now", lambda: WEDNESDAY)


def used(user: User, prompt: int | None, reply: int | None, at: datetime | None = None) -> Turn:
    turn = make_turn(user, prompt_tokens=prompt, reply_tokens=reply)
    if at is not None:
        Turn.objects.filter(pk=turn.pk).update(created_at=at)
    return turn


def test_a_reply_that_ends_is_counted_kept_or_not(alice: User) -> None:
    rollout = Rollout(
        text="x",
        prompt_ids=(1, 2, 3),
        response_ids=(4, 5),
        logprobs=None,
        finish_reason="stop",
        policy=serving.BASE,
        params=SamplingParams(),
    )
    for recorded in (True, False):
        turn = make_turn(alice)
        Turn.objects.filter(pk=turn.pk).update(
            state="streaming", lease_token="t", recorded=recorded
        )
        turn = Turn.objects.select_related("session").get(pk=turn.pk)
        assert chat.finish_turn(turn, state="complete", rollout=rollout, text="x")  # type: ignore[arg-type]
        turn.refresh_from_db()
        assert (turn.prompt_tokens, turn.reply_tokens) == (3, 2)


def test_the_day_begins_at_midnight_and_is_each_users_own(
    alice: User, bob: User, at_noon: None
) -> None:
    used(alice, 10, 5)
    used(alice, 100, 100, at=WEDNESDAY.replace(hour=0, minute=0) - timedelta(seconds=1))
    used(bob, 1000, 1000)
    today = quotas.tokens_today(alice)
    assert today.used == 15
    assert today.resets_at == datetime(2026, 11, 19, tzinfo=UTC)


def test_what_was_not_measured_is_no_number(alice: User) -> None:
    used(alice, None, None)
    used(alice, 10, None)
    today = quotas.tokens_today(alice)
    assert (today.used, today.unknown) == (10, 2)


def test_who_has_had_enough_is_told_when_there_is_more(
    alice: User, bob: User, setting: Any, at_noon: None
) -> None:
    setting(tokens_per_day=15)
    used(alice, 10, 4)
    make_turn(alice)  # one token is left
    used(alice, 1, 0)
    with pytest.raises(QuotaReached, match=r"15 of 15 tokens today.*in 2 h 30 min") as refused:
        make_turn(alice)
    assert refused.value.retry_after == 9000
    make_turn(bob)
    alice.tokens_per_day = 0  # her own: no limit
    alice.save()
    make_turn(alice)


@pytest.mark.parametrize(
    ("limit", "refusal"), [({"tokens_per_day": 15}, QuotaReached), ({"queue_turns": 1}, QueueFull)]
)
def test_a_request_that_is_refused_opens_no_session_under_its_name(
    alice: User, setting: Any, limit: dict[str, int], refusal: type[Exception]
) -> None:
    used(alice, 10, 5)
    Turn.objects.update(state="pending", finished_at=None)
    setting(**limit)
    key, _ = accounts.make_key(user=alice, name="t", scopes=accounts.CLI_SCOPES)
    with pytest.raises(refusal):
        requests.open_request(
            requests.Request(
                key=key,
                messages=[Message(role="user", content="hello")],
                params=[SamplingParams()],
                session="work",
            )
        )
    assert not ChatSession.objects.filter(external_id="work").exists()


def test_nobody_is_summed_up_without_a_limit(
    alice: User, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "tokens_today", None)
    make_turn(alice)


def test_no_job_starts_beyond_the_weeks_minutes(alice: User, setting: Any, at_noon: None) -> None:
    setting(training_minutes_per_week=10, batch=1)
    monday = WEDNESDAY - timedelta(days=2)
    for start in (monday, monday - timedelta(days=3)):  # the second one was last week
        TrainingJob.objects.create(
            user=alice,
            state="deployed",
            started_at=start,
            finished_at=start + timedelta(minutes=10),
        )
    rated(alice, 1)
    with pytest.raises(QuotaReached, match=r"10 of 10 minutes this week.*Monday at 00:00 UTC"):
        jobs.queue_job(user=alice)
    assert jobs.queue_batch(alice) is None
    assert "10 of 10 minutes" in agent_status(alice)["held_up"]
    alice.training_minutes_per_week = 11
    alice.save()
    assert jobs.queue_batch(alice) is not None


def test_waiting_is_no_training(alice: User, at_noon: None) -> None:
    monday = WEDNESDAY - timedelta(days=2)
    timings = {"load": 30, "train": 60.0, "deploy": 30, "probe": {"v1": 0.1}, "bad_replies": 4}
    row = {"user": alice, "started_at": monday, "finished_at": monday + timedelta(hours=3)}
    TrainingJob.objects.create(state="deployed", timings=timings, **row)
    assert quotas.training_this_week(alice).used == 2
    # put back before anything was measured
    TrainingJob.objects.create(state="queued", user=alice, started_at=monday)
    assert quotas.training_this_week(alice).used == 2


def test_a_clock_that_is_set_back_gives_nobody_minutes(
    client: Client, alice: User, at_noon: None
) -> None:
    ahead = WEDNESDAY + timedelta(days=90)
    job = TrainingJob.objects.create(
        user=alice, state="failed", started_at=ahead, finished_at=WEDNESDAY
    )
    assert quotas.training_this_week(alice).used == 0
    client.force_login(alice)
    assert "Took" not in client.get(f"/jobs/{job.public_id}/").content.decode()


def test_who_deletes_chats_has_had_their_tokens_all_the_same(
    alice: User, bob: User, at_noon: None
) -> None:
    yesterday = timezone.now() - timedelta(days=1)
    for count in (1, 2):
        turn = used(alice, 10, 5)
        make_turn(alice, session=turn.session, parent=turn)  # not measured
        used(alice, 100, 100, at=yesterday)
        used(bob, 1000, 1000)
        ChatSession.objects.update(deleted_at=yesterday)
        housekeeping.erase_deleted()
        assert quotas.tokens_today(alice).used == 15 * count
    buried = used(alice, 3, 1).session
    erasure.bury("session", buried.public_id)
    erasure.finish()
    assert quotas.tokens_today(alice).used == 34
    User.objects.update(erased_tokens_since=yesterday.date())
    assert quotas.tokens_today(alice).used == 0
    erase_learning(alice)
    used(alice, 2, 1)
    erase_learning(alice)
    assert quotas.tokens_today(alice).used == 3  # yesterday's are gone


def test_who_erases_all_learning_has_had_its_minutes_all_the_same(
    alice: User, at_noon: None
) -> None:
    row = {"user": alice, "state": "deployed"}
    for start in (WEDNESDAY - timedelta(hours=1), WEDNESDAY - timedelta(days=7)):
        end = start + timedelta(minutes=10)
        TrainingJob.objects.create(started_at=start, finished_at=end, **row)
    for _ in range(2):
        erase_learning(alice)
        assert quotas.training_this_week(alice).used == 10
    User.objects.update(erased_seconds_since=WEDNESDAY - timedelta(days=9))
    assert quotas.training_this_week(alice).used == 0


def test_no_job_starts_when_the_disk_is_full(alice: User, setting: Any) -> None:
    setting(disk_mib=1)
    rated(alice, 1)
    make_adapter(alice, 1, AdapterState.ERASED, size_bytes=1 << 30)
    assert quotas.full_for_training(alice) == ""
    make_adapter(alice, 2, size_bytes=1 << 20)
    with pytest.raises(QuotaReached, match="take 1 of 1 MB"):
        jobs.queue_job(user=alice)


def test_as_many_versions_are_kept_as_the_setting_says(alice: User, setting: Any) -> None:
    setting(versions_kept=2)
    for version in (1, 2, 3, 4):
        make_adapter(alice, version, AdapterState.LIVE if version == 1 else AdapterState.STANDBY)
    serving.prune()
    kept = alice.adapters.exclude(state=AdapterState.ERASED).values_list("version", flat=True)
    assert set(kept) == {1, 3, 4}
    assert quotas.versions_kept(alice).used == 3


def test_everybody_sees_their_own(client: Client, alice: User, setting: Any, at_noon: None) -> None:
    setting(tokens_per_day=100, training_minutes_per_week=30, versions_kept=4, disk_mib=50)
    used(alice, 60, 10)
    used(alice, None, None)
    make_adapter(alice, 1, size_bytes=3 << 20)
    now = timezone.now()
    TrainingJob.objects.create(
        user=alice, state="failed", started_at=now - timedelta(seconds=120), finished_at=now
    )
    client.force_login(alice)
    page = " ".join(client.get("/settings/").content.decode().split())
    for words in ("70 of 100", "2 of 30", "1 of 4", "3 MB of 50 MB"):
        assert words in page
    assert 'max="100" value="70"' in page
    assert "· 1 reply was not counted" in page


def test_large_numbers_are_as_the_readers_language_has_them(
    client: Client, alice: User, setting: Any, at_noon: None
) -> None:
    """ "12,345" is about twelve to a German."""
    setting(tokens_per_day=12_345)
    used(alice, 12_000, 400)
    client.force_login(alice)
    for language, words in (("en", "12,400 of 12,345"), ("de", "12.400 von 12.345")):
        page = client.get("/settings/", headers={"Accept-Language": language})
        assert words in page.content.decode()
    with translation.override("de"), pytest.raises(QuotaReached, match=r"12\.400 von 12\.345"):
        make_turn(alice)


def test_the_api_says_when_to_come_back(
    client: Client, alice: User, setting: Any, at_noon: None
) -> None:
    setting(training_minutes_per_week=1)
    now = timezone.now()
    TrainingJob.objects.create(
        user=alice, state="failed", started_at=now - timedelta(seconds=61), finished_at=now
    )
    rated(alice, 1)
    client.force_login(alice)
    response = client.post("/api/jobs", {}, content_type="application/json")
    assert (response.status_code, response.json()["title"]) == (429, "quota_reached")


# Effective settings


def test_admins_see_every_setting_and_where_it_comes_from(
    client: Client, admin: User, setting: Any
) -> None:
    setting(batch=5, judge_key="s3cret", database_url="postgres://me:a@s3cret@db/x?password=s3cret")
    found = {row.name: row for row in effective()}
    from clawweb.config import Config

    assert len(found) == len(Config.model_fields)
    assert [row.name for row in found.values() if not row.meaning] == []
    batch = found["CLAWWEB_BATCH"]
    assert (batch.value, batch.default, batch.source) == ("5", "8", "environment")
    assert batch.meaning == "counted samples that start a job by themselves"
    assert found["CLAWWEB_SECRET_KEY"].source == "file"
    assert found["CLAWWEB_TRAIN_SECONDS"].source == "default"
    assert found["CLAWWEB_JUDGE_KEY"].value == HIDDEN
    client.force_login(admin)
    page = client.get("/settings/effective/").content.decode()
    assert "s3cret" not in page
    assert all(name in page for name in found)


@pytest.mark.django_db
def test_no_secret_has_a_name_that_is_shown(setting: Any) -> None:
    from clawweb.config import Config

    names = [n for n, field in Config.model_fields.items() if field.annotation is str]
    secret = [name for name in names if name.endswith(("key", "token", "password"))]
    assert len(secret) >= 4
    setting(**dict.fromkeys(secret, "s3cret"))
    assert "s3cret" not in str(effective())


def test_people_make_themselves_so_many_valid_keys(
    alice: User, bob: User, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits are per key. Revoked and ended ones take no place, others' and an operator's do not
    matter."""
    monkeypatch.setattr(accounts, "MOST_KEYS", 2)
    client.force_login(alice)
    asked = {"name": "laptop", "scopes": ["chat"]}
    accounts.make_key(user=bob, name="his")
    ended, _ = accounts.make_key(user=alice, name="ended", days=1)
    type(ended).objects.filter(pk=ended.pk).update(expires_at=timezone.now())
    assert [client.post("/settings/keys/", asked).status_code for _ in range(3)] == [200, 200, 422]
    refused = client.post("/settings/keys/", asked).content.decode()
    assert "You have 2 valid keys already." in refused
    assert 'id="new-key"' not in refused
    accounts.make_key(user=alice, name="by the operator")
    for key in alice.api_keys.exclude(pk=ended.pk)[:2]:
        accounts.revoke_key(user=alice, key_id=key.pk)
    assert client.post("/settings/keys/", asked).status_code == 200
