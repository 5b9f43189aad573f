"""The pages as the server sends them: who sees what, what it says, and under which policy."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from clawweb.api.rest import JobIn
from clawweb.models import (
    AdapterState,
    ApiKey,
    Event,
    Feedback,
    GateResult,
    JobState,
    StepMetric,
    TrainingJob,
    Turn,
    User,
)
from clawweb.services import accounts, jobs
from clawweb.views.chat import branch
from clawweb.views.inspector import logprob_summary
from tests.factories import comment, down, make_adapter, make_turn, rated, up
from training.config import CHOICES, CHOOSABLE, METHODS, TrainConfig, check_chosen

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")

PAGES = [
    *("/chat/", "/agent/", "/sessions/", "/jobs/", "/adapters/", "/settings/", "/password/"),
    "/data/",
]
PARTS = [
    "/parts/agent/",
    "/parts/learned/",
    "/parts/ratings/",
    "/parts/sessions/",
    "/parts/transfers/",
    "/parts/jobs/",
    "/parts/adapters/",
    "/parts/system/",
]


@pytest.fixture
def as_alice(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def text_of(client: Client, path: str, status: int = 200) -> str:
    response = client.get(path)
    assert response.status_code == status, f"{path}: {response.status_code}"
    return response.content.decode()


def chat_of(turn: Turn) -> str:
    return reverse("chat_session", args=[turn.session.public_id])


def inspector_of(turn: Turn) -> str:
    return reverse("session", args=[turn.session.public_id])


# Signing in


@pytest.mark.parametrize("path", [*PAGES, *PARTS])
def test_a_stranger_is_asked_to_sign_in(client: Client, db: None, path: str) -> None:
    assert client.get(path)["Location"] == f"/signin/?next={path}"


def test_a_password_signs_in_and_a_wrong_one_says_so(client: Client, alice: User) -> None:
    alice.set_password("correct horse battery")
    alice.save()
    for language, words in (("en", "No account here has"), ("de", "Kein Konto hier hat")):
        asked = {"headers": {"Accept-Language": language}}
        wrong = client.post("/signin/", {"username": "alice", "password": "no"}, **asked)
        assert words in wrong.content.decode()
    right = {"username": "alice", "password": "correct horse battery"}
    assert client.post("/signin/", right)["Location"] == "/chat/"


def test_a_link_signs_in_once_and_only_by_its_button(client: Client, alice: User) -> None:
    link = accounts.make_link(alice)
    for _ in range(2):  # looking at it uses nothing up
        assert "signs you in" in text_of(client, link)
    assert client.post(link)["Location"] == "/chat/"
    assert client.get("/settings/").status_code == 200

    assert "you are signed in" in client.get(link).content.decode()
    client.logout()
    again = client.post(link)
    assert again.status_code == 410
    assert ".venv/bin/python manage.py signinlink USER" in again.content.decode()


def test_signing_out_needs_a_post(as_alice: Client) -> None:
    assert as_alice.get("/signout/")["Location"] == "/"
    assert as_alice.get("/chat/").status_code == 200
    assert as_alice.post("/signout/")["Location"] == "/signin/"
    assert as_alice.get("/chat/").status_code == 302


def test_who_came_by_a_link_can_set_a_first_password(as_alice: Client, alice: User) -> None:
    alice.set_unusable_password()
    alice.save()
    as_alice.force_login(alice)
    assert "old_password" not in text_of(as_alice, "/password/")
    new = {"new_password1": "a fresh long one", "new_password2": "a fresh long one"}
    assert as_alice.post("/password/", new)["Location"] == "/settings/"
    assert "old_password" in text_of(as_alice, "/password/")


# Policy and words


@pytest.mark.parametrize("path", ["/signin/", *PAGES])
def test_pages_hold_no_inline_script_or_style(as_alice: Client, path: str) -> None:
    if path == "/signin/":
        as_alice.logout()
    response = as_alice.get(path)
    policy = response["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    html = response.content.decode()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", html)
    for script in re.findall(r"<script([^>]*)>", html):
        assert "src=" in script or 'type="application/json"' in script


def test_an_error_page_gives_the_requests_number(as_alice: Client) -> None:
    response = as_alice.get("/nowhere/")
    assert response.status_code == 404
    assert response["X-Request-Id"] in response.content.decode()


def test_a_crash_is_told_in_words(as_alice: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(user: User) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr("clawweb.views.chat.agent_status", fail)
    as_alice.raise_request_exception = False
    html = text_of(as_alice, "/chat/", status=500)
    assert "broke on our side" in html
    assert "RuntimeError" not in html


def test_empty_pages_teach_the_loop(as_alice: Client) -> None:
    assert "0 of 8 ratings until the next training" in text_of(as_alice, "/chat/")
    assert "Your ratings train your own agent only." in text_of(as_alice, "/chat/")
    assert "Training starts by itself at 8 ratings; there are 0." in text_of(as_alice, "/jobs/")
    assert "Each version is tested before it answers you" in text_of(as_alice, "/adapters/")


# Chat


def test_the_chat_shows_rows_as_text_and_replies_as_safe_html(
    as_alice: Client, alice: User
) -> None:
    turn = make_turn(alice, "<script>x</script>", reply="**bold** <img src=x onerror=y>")
    html = text_of(as_alice, chat_of(turn))
    assert "&lt;script&gt;x&lt;/script&gt;" in html
    assert "<script>x" not in html
    assert "<strong>bold</strong> &lt;img" in html


def test_what_is_said_runs_in_the_direction_of_its_script(as_alice: Client, alice: User) -> None:
    html = text_of(as_alice, chat_of(make_turn(alice)))
    said = re.findall(r'<(?:textarea|div class="reply[ "])[^>]*>', html)
    assert len(said) > 6
    assert [tag for tag in said if 'dir="auto"' not in tag] == []


def test_a_reply_names_what_answered(as_alice: Client, alice: User) -> None:
    turn = make_turn(alice, version=2)
    make_turn(alice, session=turn.session, parent=turn, fallback="v2 would not load")
    html = text_of(as_alice, chat_of(turn))
    assert ">v2<" in html
    assert "base model answered: v2 would not load" in html


def test_the_newest_branch_is_shown_and_others_on_request() -> None:
    def turn(name: str, parent: str | None, kind: str = "main") -> dict[str, Any]:
        return {"id": name, "parent": parent, "turn_type": kind}

    rows = [turn("a", None), turn("b", "a"), turn("b2", "a"), turn("s", "b2", "side")]
    rows += [turn("c", "b"), turn("d", "b2")]
    assert [row["id"] for row in branch(rows)] == ["a", "b2", "d"]
    assert [row["id"] for row in branch(rows, "b")] == ["a", "b", "c"]
    assert [row["id"] for row in branch(rows, "nonsense")] == ["a", "b2", "d"]
    assert branch([]) == []


def test_another_users_things_are_not_there(as_alice: Client, bob: User) -> None:
    turn = rated(bob, 1)[0]
    job = jobs.queue_job(user=bob)
    for path in (chat_of(turn), inspector_of(turn), f"/jobs/{job.public_id}/"):
        text_of(as_alice, path, status=404)
    for path in (*PAGES, *PARTS):
        assert turn.session.title not in text_of(as_alice, path)


# Inspector


def test_the_inspector_shows_every_rating_and_its_sample(as_alice: Client, alice: User) -> None:
    turn = make_turn(alice, "what is rain?")
    down(turn, "too_long")
    up(turn)
    html = text_of(as_alice, inspector_of(turn))
    assert html.count("<td>bad</td>") == 1
    assert html.count("<td>good</td>") == 1
    assert html.count(">counts<") == 1
    for words in ("superseded", "too_long", "3 read, 2 written", "temperature=", "mean -0.375"):
        assert words in html
    assert Feedback.objects.filter(turn=turn).count() == 2


def test_log_probs_are_summed_up_or_said_to_be_missing() -> None:
    summary = logprob_summary([-1.0, -3.0])
    assert summary is not None
    assert summary["mean"] == -2.0
    assert summary["least"] == -3.0
    assert summary["perplexity"] == pytest.approx(7.389056)  # e²
    assert logprob_summary(None) is None


# Jobs and versions


def finished_job(user: User, state: str = JobState.REFUSED) -> TrainingJob:
    job = TrainingJob.objects.create(user=user, state=state, reason="It drifted.", step=2, steps=2)
    for step, attempt, loss in ((1, 1, 2.0), (2, 2, 1.5)):
        StepMetric.objects.create(job=job, attempt=attempt, step=step, values={"loss": loss})
    Event.objects.create(user=user, kind="refused", job=job, text="It drifted.")
    return job


def test_a_jobs_page_tells_its_numbers_in_words_too(as_alice: Client, alice: User) -> None:
    html = text_of(as_alice, f"/jobs/{finished_job(alice).public_id}/")
    assert "Now 1.500, at first 2.000; between 1.500 and 2.000." in html
    assert "Nothing measured yet." in html  # of reward, which has no key in the points
    assert "It drifted." in html
    assert "plotly.min" in html


def test_every_method_can_be_chosen_for_a_job(as_alice: Client) -> None:
    page = text_of(as_alice, "/jobs/")
    (choice,) = re.findall(r'<select id="method".*?</select>', page, re.DOTALL)
    offered = re.findall(r'<option value="(\w+)">', choice)
    assert tuple(offered) == METHODS
    for method in METHODS:
        assert JobIn(method=method).method == method
    (chosen,) = re.findall(r'data-post="/api/jobs" data-with="method ([^"]+)"', page)
    assert sorted(chosen.split()) == sorted(CHOOSABLE)
    numbers = re.findall(r'type="number".*? name="settings.(\w+)" placeholder="([\d.]+)"', page)
    assert {name: float(usual) for name, usual in numbers} == {
        name: getattr(TrainConfig(), name) for name in CHOOSABLE if name not in CHOICES
    }
    for name in set(CHOOSABLE) & set(CHOICES):
        field = rf'<select id="{name}" name="settings.{name}".*?</select>'
        (choice,) = re.findall(field, page, re.DOTALL)
        values = re.findall(r'<option value="(\w+)">', choice)
        assert values[0] == getattr(TrainConfig(), name)
        for value in values:
            check_chosen({name: value})


def test_an_admin_sees_others_jobs_without_their_texts(
    client: Client, admin: User, alice: User
) -> None:
    turn = make_turn(alice, "my secret question")
    down(turn)
    job = jobs.queue_job(user=alice)
    assert jobs.claim_job(job.public_id) is not None
    StepMetric.objects.create(job=job, attempt=1, step=1, values={"loss": 2.0})
    client.force_login(admin)
    assert "alice" in text_of(client, "/jobs/")
    html = text_of(client, f"/jobs/{job.public_id}/")
    assert "1 rating of its owner" in html
    assert "secret" not in html
    assert "short sentences" not in html  # the hint of what she ticked
    points = client.get(f"/jobs/{job.public_id}/series/?after=0").json()
    assert points["jobs"][0]["traces"]["loss"]["step"] == [1]
    text_of(client, inspector_of(turn), status=404)


def test_versions_show_their_tests_and_their_moves(as_alice: Client, alice: User) -> None:
    make_adapter(alice, 1, AdapterState.STANDBY)
    make_adapter(alice, 2, AdapterState.LIVE)
    refused = make_adapter(alice, 3, AdapterState.REFUSED, note="It drifted too far.")
    tests = (("drift", 0.5, False), ("preference", None, None), ("empty", 0.1, True))
    for measure, value, ok in tests:
        GateResult.objects.create(adapter=refused, measure=measure, value=value, limit=0.3, ok=ok)
    html = text_of(as_alice, "/adapters/")
    assert "Version 2 answers now." in html
    assert "It drifted too far." in html
    for words in ("not passed", "not measured", ">ok<"):
        assert words in html
    assert html.count('data-post="/api/adapters/rollback"') == 1
    assert len(re.findall(r'data-post="/api/adapters/[^"]+/promote"', html)) == 1


def test_a_reply_says_which_notes_stood_in_its_prompt(as_alice: Client, alice: User) -> None:
    plain, told = make_turn(alice), make_turn(alice, prompted_hints=["Be <short>.", "No lists."])
    assert "reminded of" not in text_of(as_alice, chat_of(plain))
    assert "reminded of 2 notes" in text_of(as_alice, chat_of(told))
    assert "Notes in the prompt" not in text_of(as_alice, inspector_of(plain))
    assert "Be &lt;short&gt;." in text_of(as_alice, inspector_of(told))
    body = as_alice.get(f"/api/turns/{told.public_id}").json()
    assert body["prompted_hints"] == ["Be <short>.", "No lists."]
    up(told)  # and then they are what it teaches, as far as their user still says them
    comment(alice, "No lists.")
    assert '<div class="wordy" dir="auto">No lists.</div></td>' in text_of(
        as_alice, inspector_of(told)
    )


# Settings


def test_consent_is_changed_and_kept(as_alice: Client, alice: User) -> None:
    as_alice.post("/settings/consent/", {"consent": "keep"})
    alice.refresh_from_db()
    assert alice.consent == "keep"
    assert "Training is off in your settings" in text_of(as_alice, "/parts/agent/")
    assert as_alice.post("/settings/consent/", {"consent": "sell"}).status_code == 422


def test_notes_are_followed_at_once_by_a_tick_that_can_be_taken_back(
    as_alice: Client, alice: User
) -> None:
    tick = re.compile(r'<input type="checkbox" name="prompt_hints"[^>]*>')
    for ticked in (True, False):
        said = {"consent": "train"} | ({"prompt_hints": "on"} if ticked else {})
        assert as_alice.post("/settings/consent/", said).status_code == 302
        alice.refresh_from_db()
        assert alice.prompt_hints is ticked
        (box,) = tick.findall(text_of(as_alice, "/settings/"))
        assert (" checked" in box) is ticked
        assert 'aria-describedby="id_prompt_hints_helptext"' in box


def test_a_key_is_shown_once_and_can_be_revoked(as_alice: Client, alice: User) -> None:
    made = as_alice.post("/settings/keys/", {"name": "laptop", "scopes": ["chat", "feedback"]})
    assert "<code>http://testserver/v1</code>" in made.content.decode()
    plain = re.search(r'id="new-key">([^<]+)<', made.content.decode())
    assert plain
    assert accounts.key_for(plain.group(1)) is not None
    assert plain.group(1) not in text_of(as_alice, "/settings/")
    as_alice.post(f"/settings/keys/{ApiKey.objects.get(user=alice).pk}/revoke/")
    assert accounts.key_for(plain.group(1)) is None


def test_nobody_revokes_anothers_key(as_alice: Client, bob: User) -> None:
    key, plain = accounts.make_key(user=bob, name="his")
    as_alice.post(f"/settings/keys/{key.pk}/revoke/")
    assert accounts.key_for(plain) is not None


def test_only_an_admin_adds_people(client: Client, alice: User, admin: User) -> None:
    person = {"username": "carol", "password": "a long new password"}
    client.force_login(alice)
    assert client.post("/settings/users/", person).status_code == 403
    client.force_login(admin)
    weak = client.post("/settings/users/", {"username": "carol", "password": "12345"})
    assert "too short" in weak.content.decode()
    assert client.post("/settings/users/", person).status_code == 302
    assert client.login(**person)


# Admin tables


def test_admin_tables_open_and_hold_no_texts(client: Client, admin: User, alice: User) -> None:
    turn = make_turn(alice, "my secret question", reply="a secret reply")
    down(turn)
    finished_job(alice)
    make_adapter(alice, 1)
    client.force_login(admin)
    index = text_of(client, "/admin/")
    tables = re.findall(r'href="(/admin/clawweb/[a-z]+/)"', index)
    assert len(set(tables)) >= 15
    for table in set(tables):
        assert "secret" not in text_of(client, table)
    for path in (
        f"/admin/clawweb/turn/{turn.pk}/change/",
        f"/admin/clawweb/chatsession/{turn.session_id}/change/",
        f"/admin/clawweb/feedback/{turn.feedback.get().pk}/change/",
    ):
        text_of(client, path, status=404)
