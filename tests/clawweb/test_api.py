"""`/api`: keys, scopes, other users' objects, errors that say what to do."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clawweb import limits
from clawweb.models import ApiKey, ChatSession, Heartbeat, TrainingJob
from clawweb.services import accounts, health, versions
from clawweb.services.errors import ServiceError
from clawweb.training_run import _train_config
from tests.factories import claimed_job, down, make_adapter, make_turn, rated
from training.config import TrainConfig

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_queue(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No broker here: what would be queued is written down."""
    sent: list[Any] = []
    monkeypatch.setattr("clawweb.tasks._send", lambda task, ids: sent.append((task.name, ids)))
    monkeypatch.setattr("clawweb.events._send", lambda *_: None)
    return sent


def client_of(user: Any, scopes: Any = accounts.CLI_SCOPES) -> Client:
    _, plain = accounts.make_key(user=user, name="test", scopes=scopes)
    return Client(headers={"Authorization": f"Bearer {plain}"})


def post(client: Client, path: str, body: Any = None) -> Any:
    return client.post(path, json.dumps(body or {}), content_type="application/json")


def test_wrong_keys_are_counted_by_address_here_too(alice, valkey_server, monkeypatch):
    monkeypatch.setattr(limits, "WRONG_KEYS", 3)
    right, wrong = client_of(alice), Client(headers={"Authorization": "Bearer claw-wrong"})
    given = {"REMOTE_ADDR": "10.9.8.5"}
    codes = [wrong.get("/api/status", **given).status_code for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    answer = wrong.get("/api/sessions", **given)
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["title"] == "rate_limit_exceeded"
    assert int(answer["Retry-After"]) >= 1
    assert right.get("/api/reasons", **given).status_code == 200


def test_rating_answers_with_the_receipt(alice):
    turn = make_turn(alice)
    answer = post(
        client_of(alice),
        f"/api/turns/{turn.public_id}/feedback",
        {"value": -1, "reasons": ["too_long"]},
    )
    assert answer.status_code == 200
    assert answer.json()["state"] == "counted"
    assert answer.json()["count"] == {"have": 1, "need": 8}


def test_the_eighth_rating_queues_a_job(alice, no_queue, django_capture_on_commit_callbacks):
    rated(alice, 7)
    turn = make_turn(alice)
    with django_capture_on_commit_callbacks(execute=True):
        post(
            client_of(alice),
            f"/api/turns/{turn.public_id}/feedback",
            {"comment": "no", "value": -1},
        )
    job = TrainingJob.objects.get()
    assert ("clawweb.tasks.run_training_job", (job.public_id,)) in no_queue


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"value": 2}, "body.value: "),
        ({"value": -1, "reasons": ["nope"]}, "too_long"),
        ({"stars": 5}, "stars"),
        ({"comment": "x" * 4001}, "body.comment: "),
    ],
)
def test_bad_feedback_is_a_422_that_says_what_is_wrong(alice, body, word):
    turn = make_turn(alice)
    answer = post(client_of(alice), f"/api/turns/{turn.public_id}/feedback", body)
    assert answer.status_code == 422
    assert answer["Content-Type"].startswith("application/problem+json")
    assert word in answer.json()["detail"]
    assert "body.body" not in answer.json()["detail"]
    assert answer.json()["request_id"] == answer["X-Request-Id"]


def test_the_turn_carries_feedback_and_receipt(alice):
    turn = make_turn(alice, "q", reply="**bold**")
    down(turn)
    body = client_of(alice).get(f"/api/turns/{turn.public_id}").json()
    assert body["feedback"]["reasons"] == ["too_long"]
    assert body["receipt"]["state"] == "counted"
    assert "<strong>bold</strong>" in body["html"]


def test_what_no_database_can_hold_is_replaced(alice):
    turn = make_turn(alice)
    said = {"value": -1, "comment": "a\0b", "correction": "half \ud83d of it"}
    assert post(client_of(alice), f"/api/turns/{turn.public_id}/feedback", said).status_code == 200
    row = turn.feedback.get()
    assert (row.comment, row.correction) == ("a\ufffdb", "half \ufffd of it")


def test_lists_have_items_and_a_cursor(alice):
    for _ in range(101):
        make_turn(alice)
    client = client_of(alice)
    first = client.get("/api/sessions").json()
    assert len(first["items"]) == 100
    second = client.get("/api/sessions", {"cursor": first["next"]}).json()
    assert (len(second["items"]), second["next"]) == (1, None)
    for cursor in ("tomorrow", "²", "9" * 30):
        assert client.get("/api/sessions", {"cursor": cursor}).status_code == 400


def test_a_session_shows_its_turns_and_counts(alice):
    first = make_turn(alice)
    make_turn(alice, session=first.session, turn_type="side")
    body = client_of(alice).get(f"/api/sessions/{first.session.public_id}").json()
    assert (body["turns_main"], body["turns_side"], len(body["turns"])) == (1, 1, 2)


def test_a_session_is_found_by_the_name_that_its_caller_gave_it_slashes_and_all(alice):
    session = make_turn(alice).session
    ChatSession.objects.filter(pk=session.pk).update(external_id="ada/notes/1")
    client = client_of(alice)
    path = "/api/sessions/ada%2Fnotes%2F1"
    assert client.get(path).json()["id"] == session.public_id
    assert client.get("/api/agent/chats/ada/notes/1").json() == {"versions": []}
    body = {"data": '{"title": "t"}', "content_type": "application/json"}
    assert client.patch(path, **body).json()["title"] == "t"
    assert client.delete(path).status_code == 204
    restored = post(client, f"/api/sessions/{session.public_id}/restore")
    assert restored.json()["external_id"] == "ada/notes/1"


def test_training_now_needs_something_to_train_on(alice):
    answer = post(client_of(alice), "/api/jobs")
    assert answer.status_code == 409
    assert "Rate a reply" in answer.json()["detail"]
    down(make_turn(alice))
    answer = post(client_of(alice), "/api/jobs", {"method": "combine"})
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert post(client_of(alice), "/api/jobs", {"method": "magic"}).status_code == 422


def test_a_job_trains_with_the_settings_that_were_asked_for(alice):
    down(make_turn(alice))
    client = client_of(alice)
    for wrong, words in (
        ({"lr": 1.0}, "estimator"),  # not to be chosen; what is, is said
        ({"estimator": "magic"}, "full, token, topk"),
        ({"topk": "four"}, "topk must be int"),
        ({"reward_weight": -1}, "reward_weight must not be below 0"),
        ({"topk": True}, "topk must be int"),
    ):
        answer = post(client, "/api/jobs", {"settings": wrong})
        assert (answer.status_code, answer.json()["title"]) == (422, "unknown_setting")
        assert words in answer.json()["detail"]
    chosen = {"estimator": "token", "reward_weight": 0.5}
    body = post(client, "/api/jobs", {"method": "combine", "settings": chosen}).json()
    assert body["config"] == chosen
    settings = _train_config(TrainingJob.objects.get(public_id=body["id"]))
    assert (settings.method, settings.estimator) == ("combine", "token")
    assert settings.reward_weight == 0.5
    assert settings.distill_weight == TrainConfig().distill_weight


def test_a_job_can_be_cancelled_once(alice):
    down(make_turn(alice))
    client = client_of(alice)
    job = post(client, "/api/jobs").json()
    assert post(client, f"/api/jobs/{job['id']}/cancel").status_code == 202
    assert post(client, f"/api/jobs/{job['id']}/cancel").status_code == 409


def test_rolling_back_from_base_is_a_409(alice):
    assert post(client_of(alice), "/api/adapters/rollback").status_code == 409


def test_rollback_and_promotion(alice, engine):
    adapter = make_adapter(alice, 1)
    versions.go_live(adapter, over=None, why="")
    client = client_of(alice)
    assert post(client, "/api/adapters/rollback").json()["version"] == 0
    answer = post(client, f"/api/adapters/{adapter.name}/promote")
    assert (answer.status_code, answer.json()["state"]) == (200, "live")


def test_another_users_objects_are_not_there(alice, bob):
    turn = make_turn(alice)
    down(turn)
    job = claimed_job(alice)
    adapter = make_adapter(alice, 1)
    client = client_of(bob)
    for path in (
        f"/api/turns/{turn.public_id}",
        f"/api/sessions/{turn.session.public_id}",
        f"/api/jobs/{job.public_id}",
        f"/api/jobs/{job.public_id}/metrics",
    ):
        assert client.get(path).status_code == 404, path
    for path in (
        f"/api/turns/{turn.public_id}/feedback",
        f"/api/jobs/{job.public_id}/cancel",
        f"/api/adapters/{adapter.name}/promote",
    ):
        assert post(client, path).status_code == 404, path
    for path in ("/api/sessions", "/api/jobs", "/api/adapters"):
        assert client.get(path).json()["items"] == []


def test_the_api_shows_an_admin_their_own_things_only(alice, admin):
    turn = make_turn(alice)
    down(turn)
    job = claimed_job(alice)
    client = client_of(admin)
    assert client.get(f"/api/jobs/{job.public_id}").status_code == 404
    assert post(client, f"/api/jobs/{job.public_id}/cancel").status_code == 404
    assert client.get(f"/api/turns/{turn.public_id}").status_code == 404
    assert client.get("/api/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("get", "/api/sessions", "read"),
        ("post", "/api/jobs", "train"),
        ("get", "/api/reasons", "feedback"),
        ("post", "/api/adapters/rollback", "train"),
    ],
)
def test_a_key_without_the_scope_is_refused(alice, method, path, scope):
    client = client_of(alice, scopes=[s for s in accounts.SCOPES if s != scope])
    answer = post(client, path) if method == "post" else client.get(path)
    assert answer.status_code == 403
    assert f"lacks the scope '{scope}'" in answer.json()["detail"]
    has = ", ".join(s for s in accounts.SCOPES if s != scope)
    assert f"it has {has}. Make one that has it under Settings" in answer.json()["detail"]


def test_strangers_and_dead_keys_are_turned_away(alice):
    assert Client().get("/api/sessions").status_code == 401
    client = client_of(alice)
    ApiKey.objects.update(revoked_at=timezone.now())
    assert client.get("/api/sessions").status_code == 401
    ApiKey.objects.update(revoked_at=None, expires_at=timezone.now())
    assert client.get("/api/sessions").status_code == 401


def test_a_browser_needs_the_csrf_token(alice):
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    turn = make_turn(alice)
    path = f"/api/turns/{turn.public_id}/feedback"
    assert post(client, path, {"value": 1}).status_code == 403
    client.cookies["csrftoken"] = "a" * 32
    answer = client.post(
        path, '{"value": 1}', content_type="application/json", headers={"X-CSRFToken": "a" * 32}
    )
    assert answer.status_code == 200


def test_only_the_hash_of_a_key_is_kept(alice):
    key, plain = accounts.make_key(user=alice, name="k")
    stored = json.dumps(list(ApiKey.objects.values()), default=str)
    assert plain not in stored
    assert accounts.key_for(plain) == key
    with pytest.raises(ServiceError, match="scopes"):
        accounts.make_key(user=alice, name="k", scopes=["everything"])


def test_a_sign_in_link_works_once(alice):
    path = accounts.make_link(alice)
    token = path.split("/")[2]
    assert accounts.link_is_good(token)
    assert accounts.redeem_link(token) == alice
    assert accounts.redeem_link(token) is None


def test_the_first_admin_is_made_once_and_gets_links_until_somebody_signed_in(db):
    from clawweb.models import User

    User.objects.create_user("Admin")  # by `createkey Admin --create`, say: none is made of it
    assert accounts.first_admin_link()
    assert accounts.first_admin_link()
    admin = User.objects.get(is_superuser=True, username="admin-2")
    admin.last_login = timezone.now()
    admin.save()
    assert accounts.first_admin_link() is None


def test_openapi_lists_the_whole_interface(client):
    paths = set(client.get("/api/openapi.json").json()["paths"])
    assert {
        "/api/turns/{turn_id}/feedback", "/api/turns/{turn_id}", "/api/sessions",
        "/api/sessions/{name}", "/api/jobs", "/api/jobs/{job_id}", "/api/jobs/{job_id}/metrics",
        "/api/jobs/{job_id}/cancel", "/api/adapters", "/api/adapters/{name}/promote",
        "/api/adapters/rollback", "/api/reasons",
    } <= paths  # fmt: skip
    assert client.get("/api/docs").status_code == 200


def test_openapi_says_that_calls_take_a_key(client):
    said = client.get("/api/openapi.json").json()
    (name,) = said["components"]["securitySchemes"]
    assert said["components"]["securitySchemes"][name]["scheme"] == "bearer"
    calls = [call for path in said["paths"].values() for call in path.values()]
    assert all(call["security"] == [{name: []}] for call in calls)


def test_who_is_signed_in_can_try_calls_on_the_page_that_lists_them(alice):
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    page = client.get("/api/docs").content.decode()
    body = re.search(r"<body[^>]*>", page)[0]
    assert 'data-api-csrf="true"' in body  # then its script sends the token along
    token = re.search(r'data-csrf-token="(\w+)"', body)[1]
    path = f"/api/turns/{make_turn(alice).public_id}/feedback"
    sent = {"content_type": "application/json", "headers": {"X-CSRFToken": token}}
    assert client.post(path, '{"value": 1}', **sent).status_code == 200


def test_an_unknown_path_is_a_problem_too(client):
    answer = client.get("/api/thumbs")
    assert answer.status_code == 404
    assert answer["Content-Type"] == "application/problem+json"
    assert "/api/docs" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/api/exports", "", 405, "Use POST here."),
        ("PUT", "/api/sessions", "{}", 405, "Use GET here."),
        ("POST", "/api/jobs", "method=kto", 400, "not JSON"),
        ("POST", "/api/jobs", "{'method': 'kto'}", 400, "not JSON"),
        ("POST", "/api/jobs", b'{"method": "\xff"}', 400, "not JSON"),
    ],
)
def test_what_is_sent_wrongly_is_a_problem_that_says_what_to_send(
    alice, method, path, body, status, words
):
    client = client_of(alice, scopes=accounts.SCOPES)
    answer = client.generic(method, path, body, content_type="application/json")
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
    assert words in answer.json()["detail"]
    assert answer.json()["request_id"] == answer["X-Request-Id"]
    assert ("Allow" in answer) == (status == 405)


def test_health_says_which_part_is_missing(client, engine):
    assert client.get("/livez").content == b"ok"
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"]["database"] == "ok"
    assert answer.json()["parts"]["generator"] != "ok"


def test_without_a_trainer_people_can_chat_but_a_lost_one_is_missed(client, engine, monkeypatch):
    monkeypatch.setattr("clawweb.api.health._queue", lambda: "ok")
    monkeypatch.setattr("clawweb.api.health.system_status", lambda: {"engine": {"ok": True}})
    for kind in ("generator", "worker-light", "beat"):
        health.beat(f"{kind}@here", kind)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (200, True)
    assert answer.json()["parts"]["worker-gpu"] == "none; nothing trains"
    assert client.get("/readyz?part=worker-gpu").status_code == 503
    health.beat("worker-gpu@here", "worker-gpu")
    assert client.get("/readyz").status_code == 200
    Heartbeat.objects.filter(kind="worker-gpu").update(at=timezone.now() - timedelta(minutes=2))
    assert client.get("/readyz").status_code == 503


def test_metrics_are_for_loopback_or_the_token(alice, client, engine, setting):
    make_turn(alice)
    answer = client.get("/metrics")
    assert b'clawweb_turns{state="complete"} 1.0' in answer.content
    assert client.get("/metrics", REMOTE_ADDR="192.0.2.1").status_code == 403
    assert client.get("/metrics", headers={"X-Forwarded-For": "1.2.3.4"}).status_code == 403
    for name in ("X-Forwarded-Proto", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via"):
        assert client.get("/metrics", headers={name: "https"}).status_code == 403, name
    setting(metrics_token="secret")
    for given, status in (("secret", 200), ("secre", 403), ("\xe9", 403)):
        key = {"HTTP_AUTHORIZATION": f"Bearer {given}", "REMOTE_ADDR": "192.0.2.1"}
        assert client.get("/metrics", **key).status_code == status
