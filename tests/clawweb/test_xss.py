"""Payloads wherever somebody can write, on every page that shows it: nothing of them runs.

The policy (no inline script, nothing from elsewhere) is the second wall; this is about the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from allauth.account.internal.flows.login import record_authentication
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.test import Client, RequestFactory

from clawweb.markdown import render
from clawweb.models import (
    AdapterState,
    AdapterVersion,
    ApiKey,
    Comparison,
    Event,
    FeedbackReason,
    GateResult,
    Judgement,
    SavedView,
    Transfer,
    TransferState,
    Turn,
    User,
)
from clawweb.records import storable
from clawweb.services import accounts, audit, feedback, housekeeping, jobs
from tests.clawweb.access_table import ELSEWHERE, LEADS, TABLE, World
from tests.clawweb.xss import ALL, MARK, PAYLOADS, live_in
from tests.factories import down, make_adapter, make_turn, rated
from tests.recorded import brought_in, exported

# What they ask for has been done.
LEADING_AWAY = ("signin/", "signin/code/", "settings/confirm/", "settings/confirm/code/")
LEADING_AWAY += ("settings/second-factor/", "signout/")
pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_reply_runs(payload: str) -> None:
    assert live_in(render(payload)) == []
    assert live_in(render(f"> 1. {payload}\n\n**{payload}**")) == []


@pytest.mark.parametrize(
    "html",
    [
        f"<script>alert('{MARK}')</script>",
        f"<img src=x onerror={MARK}>",
        f"<a href='javascript:{MARK}'>x</a>",
        f"<iframe srcdoc={MARK}></iframe>",
        f"<p style='{MARK}'>",
    ],
)
def test_what_would_run_is_found(html: str) -> None:
    """Or the tests here could not fail."""
    assert live_in(html) != []


def judged(turn: Turn, follow: Turn) -> None:
    Judgement.objects.create(
        turn=turn,
        next_turn=follow,
        state="judged",
        score=-1,
        hints=[ALL],
        votes=[{"score": -1, "hint": ALL, "text": ALL}],
        error=ALL,
        judge=PAYLOADS[0],
    )


@pytest.fixture
def world(alice: User, admin: User) -> World:
    """Alice's name, chats, ratings, notes, keys, versions and files are payloads."""
    name = PAYLOADS[0][:150]
    User.objects.filter(pk=alice.pk).update(
        username=name, instructions=ALL, reviewers_may_read=True
    )
    alice.refresh_from_db()
    TOTP.activate(alice, generate_totp_secret())
    RecoveryCodes.activate(alice)
    FeedbackReason.objects.create(slug="odd", label=PAYLOADS[2][:80], hint=PAYLOADS[3])
    live = make_adapter(alice, 1, AdapterState.LIVE, note=ALL)
    adapter = make_adapter(alice, 2, AdapterState.REFUSED, note=ALL)
    GateResult.objects.create(adapter=adapter, measure="pref", value=1, ok=False, text=ALL)
    turn = make_turn(
        alice,
        ALL,
        reply=ALL,
        reasoning=ALL,
        tools=[{"type": "function", "function": {"name": PAYLOADS[1], "description": ALL}}],
        fallback=PAYLOADS[0][:200],
        error=ALL,
        prompted_hints=[ALL],
        version=live.version,
    )
    housekeeping.edit_session(turn.session, title=PAYLOADS[0])
    feedback.rate_turn(
        turn=turn,
        author=alice,
        changes={"value": -1, "reasons": ["odd"], "comment": ALL, "correction": ALL},
    )
    follow = make_turn(alice, ALL, parent=turn, session=turn.session, reply=ALL)
    judged(turn, follow)
    other = make_turn(alice, ALL, session=turn.session, reply=ALL)
    pair = Comparison.objects.create(user=alice, kind="recheck", first=turn, second=other)
    down(make_turn(alice, ALL))
    rated(alice, 1)
    job = jobs.queue_job(user=alice)
    jobs.TrainingJob.objects.filter(pk=job.pk).update(reason=ALL, phase=PAYLOADS[0][:80])
    Event.objects.create(user=alice, kind="failed", job=job, adapter=adapter, text=ALL)
    ApiKey.objects.create(user=alice, name=PAYLOADS[2][:80], hashed="h", tail="<b>x", scopes=[])
    SavedView.objects.create(user=alice, page="sessions", name=PAYLOADS[2][:60], query=ALL[:500])
    Transfer.objects.create(
        user=alice, kind="import", shape="openclaw", state=TransferState.DONE, note=ALL
    )
    audit.record("read_session", turn.session, actor=admin, after={"x": ALL})
    people: dict[str, User | None] = {"owner": alice, "admin": admin}
    return World(
        people,
        {
            "session_id": turn.session.public_id,
            "turn_id": turn.public_id,
            "job_id": job.public_id,
            "kind": "json",
            "comparison_id": pair.public_id,
            "token": accounts.make_link(alice).split("/")[2],
        },
    )


def pages(*about: str) -> list[str]:
    """Every page of the table of who may go where, or those about some things: a new one is among
    them."""
    api = (*ELSEWHERE, "api/", "livez", "readyz", "metrics", "jsi18n")
    return [
        route
        for route, verbs in TABLE.items()
        if verbs.get("GET", LEADS) is not LEADS and route and not route.startswith(api)
        if not about or any(name in route for name in about)
    ]


def sign_in(client: Client, user: Any) -> None:
    """So lately that no page asks who it is once more."""
    client.force_login(user)
    request = RequestFactory().get("/")
    request.session = client.session
    record_authentication(request, user, method="password", reauthenticated=True)
    request.session.save()


def runs(response: Any) -> list[str]:
    html = "html" in response["Content-Type"]
    return live_in(response.content.decode()) if html else []


@pytest.mark.parametrize("role", ["owner", "admin"])
def test_no_page_runs_what_was_written(client: Client, world: World, role: str) -> None:
    """Nor does the page that says no; and each that this one may see is seen."""
    sign_in(client, world.people[role])
    wrong: dict[str, Any] = {}
    shown = 0
    for route in pages():
        response = client.get(world.path(route))
        shown += MARK in response.content.decode()
        leads_away = response.status_code == 302 and route in LEADING_AWAY
        if (response.status_code == 200 or leads_away) != (role in TABLE[route]["GET"].who):
            wrong[route] = response.status_code
        if live := runs(response):
            wrong[route] = live[:3]
    assert wrong == {}
    assert shown >= (12 if role == "owner" else 4), "the payloads are to be seen, as text"


def test_no_table_of_the_admins_runs_it(client: Client, world: World) -> None:
    client.force_login(world.people["admin"])  # type: ignore[arg-type]
    adapter = AdapterVersion.objects.get(note=ALL, state=AdapterState.REFUSED)
    tables = [
        *("user", "apikey", "trainingjob", "adapterversion", "event", "gateresult"),
        *("feedbackreason", "auditevent", "transfer", "turn", "chatsession"),
    ]
    paths = [f"/admin/clawweb/{name}/" for name in tables]
    paths += [f"/admin/clawweb/adapterversion/{adapter.pk}/change/"]
    for path in [*paths, "/admin/clawweb/auditevent/?q=%3Cscript%3Ealert('xss7')"]:
        response = client.get(path)
        if response.status_code == 200:
            assert live_in(response.content.decode()) == [], path


def test_searches_and_names_from_outside_are_text(client: Client, world: World) -> None:
    client.force_login(world.people["owner"])  # type: ignore[arg-type]
    for first in range(0, len(PAYLOADS), 9):
        payload = storable("".join(PAYLOADS[first : first + 9]))  # as asgi.py takes it in
        for path in ("/parts/sessions/", "/sessions/", "/jobs/", "/agent/"):
            data = {"q": payload, "page": payload, "turn": payload, "current": payload}
            html = client.get(path, data).content.decode()
            assert live_in(html) == [], (path, payload)
        missing = client.get("/chat/x/", {"turn": payload}).content.decode()
        assert live_in(missing) == []


def of_openclaw(bob: User) -> list[dict[str, Any]]:
    return [
        {
            "session_id": PAYLOADS[0],
            "turn": 1,
            "timestamp": "2026-01-01T00:00:00Z",
            "messages": [{"role": "user", "content": ALL}],
            "prompt_text": ALL,
            "response_text": ALL,
            "tool_calls": None,
            "next_state": {"role": "user", "content": ALL},
        }
    ]


def of_ours(bob: User) -> list[dict[str, Any]]:
    """As another installation wrote them."""
    tools = [{"type": "function", "function": {"name": PAYLOADS[1], "description": ALL}}]
    turn = make_turn(bob, ALL, reply=ALL, reasoning=ALL, tools=tools)
    housekeeping.edit_session(turn.session, title=PAYLOADS[0])
    changes = {"value": -1, "comment": ALL, "correction": ALL}
    feedback.rate_turn(turn=turn, author=bob, changes=changes)
    return exported(bob)


@pytest.mark.parametrize("records", [of_openclaw, of_ours])
def test_imported_records_are_text(
    client: Client, alice: User, bob: User, records: Callable[[User], list[dict[str, Any]]]
) -> None:
    brought_in(alice, records(bob))
    session = alice.chat_sessions.get()
    turn = session.turns.get().public_id
    names = {"session_id": session.public_id, "turn_id": turn, "kind": "json"}
    world = World({}, names)
    client.force_login(alice)
    shown = set()
    for route in pages("sessions/", "<str:session_id>", "<str:turn_id>", "agent/"):
        if "owner" in TABLE[route]["GET"].who:
            response = client.get(world.path(route))
            assert (response.status_code, runs(response)) == (200, []), route
            shown |= {route} if MARK in response.content.decode() else set()
    assert shown >= {"chat/<str:session_id>/", "sessions/<str:session_id>/", "sessions/"}


def test_json_is_no_page(client: Client, world: World) -> None:
    """What the API says is not sniffed for HTML."""
    client.force_login(world.people["owner"])  # type: ignore[arg-type]
    for path in ("/api/sessions", "/api/agent", world.path("api/turns/<turn_id>")):
        response = client.get(path)
        assert response["Content-Type"].startswith("application/json"), path
        assert response["X-Content-Type-Options"] == "nosniff"
