"""Where one is signed in: a list, an end to each, and to the sockets that it opened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from allauth.usersessions.models import UserSession
from channels.layers import get_channel_layer
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from clawweb import events, middleware
from clawweb.consumers import SIGNED_OUT
from clawweb.models import AuditEvent, User
from clawweb.orm import in_db
from clawweb.services import accounts, browsers
from tests.clawweb.test_sockets import connected

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
CHROME = "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36"


@pytest.fixture(autouse=True)
def nobody_seen() -> None:
    middleware._SEEN.clear()


def browser_of(user: User, agent: str) -> Client:
    client = Client(HTTP_USER_AGENT=agent, REMOTE_ADDR="10.0.0.7")
    client.force_login(user)
    client.get("/settings/")
    return client


def is_in(client: Client) -> bool:
    return client.get("/settings/").status_code == 200


@pytest.mark.usefixtures("valkey_server", "engine")
def test_each_browser_is_listed_and_can_be_ended(alice: User, bob: User) -> None:
    here, there = browser_of(alice, FIREFOX), browser_of(alice, CHROME)
    browser_of(bob, CHROME)
    page = here.get("/settings/security/").content.decode()
    for text in ("Firefox on Linux", "Chrome on Windows", "10.0.0.7", "this one"):
        assert text in page
    found = browsers.browsers_of(alice, here.session.session_key)
    assert [(row.program, row.here) for row in found] == [("Firefox", True), ("Chrome", False)]
    number = found[1].id  # what a screen reader lists says which: "Sign out Chrome on Windows"
    assert f'id="end-{number}" aria-labelledby="end-{number} browser-{number}"' in page
    assert f'<strong id="browser-{number}">Chrome on Windows</strong>' in page
    bobs = UserSession.objects.get(user=bob)
    assert here.post(f"/settings/security/browsers/{bobs.pk}/end/").status_code == 404
    assert here.post(f"/settings/security/browsers/{found[1].id}/end/").status_code == 302
    assert not is_in(there)
    assert is_in(here)
    assert UserSession.objects.filter(user=bob).exists()
    assert AuditEvent.objects.latest("id").action == "end_browser"


@pytest.mark.parametrize(
    ("sign", "name"),
    [("CriOS/140.0", "Chrome"), ("FxiOS/140.0", "Firefox"), ("Version/19", "Safari")],
)
def test_on_an_iphone_a_browser_is_called_what_it_is(alice: User, sign: str, name: str) -> None:
    phone = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15"
    key = browser_of(alice, f"{phone} {sign} Mobile/15E148 Safari/604.1").session.session_key
    (found,) = browsers.browsers_of(alice, key)
    assert (found.program, found.system) == (name, "iPhone")


@pytest.mark.usefixtures("valkey_server", "engine")
def test_all_others_end_at_once_and_with_the_password(alice: User, bob: User) -> None:
    here, there, bobs = (
        browser_of(alice, FIREFOX),
        browser_of(alice, CHROME),
        browser_of(bob, CHROME),
    )
    here.post("/settings/security/browsers/end/")
    assert (is_in(here), is_in(there), is_in(bobs)) == (True, False, True)
    there = browser_of(alice, CHROME)
    new = {"new_password1": "correct horse battery", "new_password2": "correct horse battery"}
    here.post("/password/", new)
    assert (is_in(here), is_in(there), is_in(bobs)) == (True, False, True)
    assert [row.here for row in browsers.browsers_of(alice, here.session.session_key)] == [True]
    acts = AuditEvent.objects.order_by("id").values_list("action", flat=True)
    assert [act for act in acts if act != "sign_in"] == [
        *("end_others", "change_password", "end_others"),
    ]


@pytest.mark.usefixtures("valkey_server", "engine")
def test_an_admin_who_sets_a_password_ends_all(alice: User, admin: User) -> None:
    hers, admins = browser_of(alice, FIREFOX), browser_of(admin, CHROME)
    form = {"password1": "battery horse 7", "password2": "battery horse 7"}
    admins.post(f"/admin/clawweb/user/{alice.pk}/password/", {**form, "usable_password": "true"})
    assert not is_in(hers)
    assert not UserSession.objects.filter(user=alice).exists()
    assert is_in(admins)


@pytest.mark.usefixtures("valkey_server", "engine")
def test_the_admins_tables_have_no_page_of_their_own_for_the_password(admin: User) -> None:
    """Tries at it would not be counted there, nor other browsers ended, nor anything audited."""
    admin.set_password("right horse battery")
    admin.save()
    client = browser_of(admin, FIREFOX)
    new = {"new_password1": "correct horse battery", "new_password2": "correct horse battery"}
    for response in (
        client.get("/admin/password_change/"),
        client.post("/admin/password_change/", {"old_password": "right horse battery", **new}),
    ):
        assert (response.status_code, response["Location"]) == (302, "/password/")
    admin.refresh_from_db()
    assert admin.check_password("right horse battery")
    assert is_in(client)


@pytest.mark.usefixtures("valkey_server", "engine")
def test_a_page_is_no_write_each_time(alice: User, django_assert_max_num_queries: Any) -> None:
    client = browser_of(alice, FIREFOX)
    seen = UserSession.objects.get().last_seen_at
    client.get("/settings/")
    assert UserSession.objects.get().last_seen_at == seen
    middleware._SEEN.clear()
    client.get("/settings/")
    assert UserSession.objects.get().last_seen_at > seen


@pytest.mark.usefixtures("valkey_server", "engine")
def test_what_ended_is_forgotten(alice: User) -> None:
    """With its address; by signing out, and by not coming back."""
    left, stays = browser_of(alice, FIREFOX), browser_of(alice, CHROME)
    late = browser_of(alice, FIREFOX)
    left.post("/signout/")
    Session.objects.filter(pk=late.session.session_key).update(expire_date=timezone.now())
    browsers.forget_ended()
    assert UserSession.objects.get().session_key == stays.session.session_key
    assert Session.objects.count() == 1


def test_a_key_is_no_browser(alice: User, client: Client) -> None:
    _, key = accounts.make_key(user=alice, name="k", scopes=["read"])
    client.force_login(alice)
    client.get("/api/sessions", headers={"Authorization": f"Bearer {key}"})
    assert not UserSession.objects.exists()


def test_a_proxys_own_password_is_no_key(alice: User, valkey_server: None) -> None:
    """A browser that was asked for one by a proxy in front sends it along with every call."""
    client = Client(headers={"Authorization": "Basic dXNlcjpwYXNz"}, enforce_csrf_checks=True)
    assert client.get("/api/sessions").status_code == 401
    client.force_login(alice)
    assert client.get("/api/sessions").status_code == 200
    assert UserSession.objects.filter(user=alice).exists()
    refused = client.post("/api/agent/pause", {"paused": True}, content_type="application/json")
    assert refused.status_code == 403  # without the token of a form, as ever


# Sockets


async def closed(socket: Any) -> Any:
    """What the server says last, nudges left out."""
    async with asyncio.timeout(30):
        while (said := await socket.receive_output(30))["type"] != "websocket.close":
            pass
    return said["code"]


@pytest.mark.queue
@pytest.mark.django_db(transaction=True, serialized_rollback=True)
async def test_an_open_socket_ends_with_its_sign_in(
    alice: User, engine: Any, valkey_server: Any
) -> None:
    async with connected(alice) as here, connected(alice) as there:
        await in_db(browsers.browsers_of, alice, None)
        key = there.scope["session"].session_key

        def end() -> None:
            UserSession.objects.create(user=alice, session_key=key, ip="10.0.0.7", user_agent="x")
            browsers.end_others(alice, but=here.scope["session"].session_key)

        await in_db(end)
        assert await closed(there) == SIGNED_OUT
        await here.send_json({"type": "stop", "turn": "turn-x"})
        said = (await here.receive_json())["message"]
        assert said == "That is not there any more. Load the page again."


@pytest.mark.queue
@pytest.mark.django_db(transaction=True, serialized_rollback=True)
async def test_a_command_is_refused_when_no_nudge_came(
    alice: User, engine: Any, valkey_server: Any
) -> None:
    for end in (
        lambda: User.objects.filter(pk=alice.pk).update(is_active=False),
        lambda: User.objects.filter(pk=alice.pk).update(is_active=True, role="pending"),
    ):
        async with connected(alice) as chat:
            await in_db(end)
            await chat.send_json({"type": "send", "text": "hello"})
            assert await closed(chat) == SIGNED_OUT
    assert await in_db(alice.chat_sessions.count) == 0


@pytest.mark.queue
@pytest.mark.django_db(transaction=True, serialized_rollback=True)
async def test_an_open_socket_hears_of_others_jobs_only_while_one_runs_training(
    alice: User, bob: User, engine: Any, valkey_server: Any
) -> None:
    layer, alices = get_channel_layer(), events.group(alice.pk)

    async def tell(group: str, **message: str) -> None:
        """One after another; `events` promises no order between two changes."""
        await layer.group_send(group, message)

    async with connected(alice) as socket:
        heard = []

        async def until(name: str) -> None:
            while (told := (await socket.receive_json())["id"]) != name:
                heard.append(told)

        for role in ("trainer", "user"):
            await in_db(User.objects.filter(pk=alice.pk).update, role=role)
            await tell(alices, type="look_again")
            await tell(alices, type="changed", what="session", id=f"as-{role}")
            await until(f"as-{role}")  # a socket takes one thing after another: it has looked
            if role == "trainer":
                await in_db(events.changed, bob.pk, "job", "of-bob")
                await until("of-bob")
            await tell(events.ADMINS, type="changed", what="job", id=f"of-bob-{role}")
            await tell(alices, type="changed", what="job", id=f"of-alice-{role}")
            await until(f"of-alice-{role}")
        assert heard == ["of-bob-trainer"]
