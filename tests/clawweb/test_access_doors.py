"""Reading with a grant, waiting for an admin, signing up; keys at /v1, and sockets."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import AnonymousUser
from django.core.management import CommandError, call_command
from django.test import AsyncClient, Client
from django.utils import timezone

from clawweb import events
from clawweb.asgi import application
from clawweb.consumers import SIGNED_OUT
from clawweb.models import SCOPES, ApiKey, AuditEvent, ChatSession, Role, User
from clawweb.orm import in_db
from clawweb.services import accounts
from clawweb.services.errors import ServiceError
from tests.clawweb.access_table import (
    ADMIN,
    APPROVED,
    OTHER,
    OWNER,
    REVIEWER,
    STRANGER,
    TRAINER,
    World,
    world_of,
)
from tests.clawweb.test_sockets import HOST, Browser
from tests.factories import down, make_adapter, make_turn


@pytest.fixture
def world(valkey_server: Any, engine: Any, alice: User, bob: User, admin: User) -> World:
    return world_of(alice, bob, admin)


# Reading with a grant


def test_a_reviewer_reads_what_its_owner_allows_and_the_owner_sees_that(world: World) -> None:
    client, alice = Client(), world.people[OWNER]
    assert alice is not None
    client.force_login(world.people[REVIEWER])  # type: ignore[arg-type]
    path = world.path("review/<str:session_id>/")
    listed = client.get("/review/").content.decode()
    assert path in listed
    assert "hello" not in listed  # opening it is what is written down
    assert "hello" in client.get(path).content.decode()

    own = Client()
    own.force_login(alice)
    assert "reviewer" in own.get("/settings/").content.decode()
    assert "a right that your account does not have" in own.get("/review/").content.decode()

    link = 'href="/sessions/' + path.removeprefix("/review/")
    assert link in own.get("/settings/").content.decode()
    ChatSession.objects.filter(user=alice).update(deleted_at=timezone.now())
    text = own.get("/settings/").content.decode()
    assert (link in text, "a chat that is deleted" in text) == (False, True)
    ChatSession.objects.filter(user=alice).update(deleted_at=None)

    User.objects.filter(pk=alice.pk).update(reviewers_may_read=False)
    assert client.get(path).status_code == 404
    assert path not in client.get("/review/").content.decode()


def test_a_reviewer_reads_reasons_in_their_own_language(world: World) -> None:
    turn = make_turn(world.people[OWNER])  # type: ignore[arg-type]
    down(turn, "too_long")
    client = Client(headers={"Accept-Language": "de"})
    client.force_login(world.people[REVIEWER])  # type: ignore[arg-type]
    assert "· Zu lang" in client.get(f"/review/{turn.session.public_id}/").content.decode()


def test_what_is_not_kept_is_not_read(world: World) -> None:
    alice = world.people[OWNER]
    turn = make_turn(alice, "kept for an hour")  # type: ignore[arg-type]
    turn.recorded = False
    turn.save()
    client = Client()
    client.force_login(world.people[REVIEWER])  # type: ignore[arg-type]
    page = client.get(f"/review/{turn.session.public_id}/").content.decode()
    assert "Nothing of this chat is kept." in page


# Signing up, and waiting


def test_who_waits_sees_who_lets_them_in(client: Client, alice: User, admin: User) -> None:
    alice.role = Role.PENDING
    alice.save()
    client.force_login(alice)
    for path in ("/chat/", "/settings/", "/nowhere/"):
        response = client.get(path)
        if path == "/nowhere/":
            assert response.status_code == 404
        else:
            assert response.status_code == 403
            assert "Ask one of these: root" in response.content.decode()
    assert client.post("/signout/").status_code == 302


@pytest.mark.usefixtures("valkey_server", "engine")
def test_who_is_signed_in_is_led_from_there_into_the_chat(client: Client, alice: User) -> None:
    client.force_login(alice)
    for path, leads in (("/signin/", "/chat/"), ("/signin/?next=/jobs/", "/jobs/")):
        assert client.get(path)["Location"] == leads
    assert client.get("/signin/?next=/signin/")["Location"] == "/chat/"


@pytest.mark.usefixtures("valkey_server", "engine")
def test_a_space_at_the_end_of_a_password_is_a_part_of_it(
    client: Client, admin: User, setting: Any
) -> None:
    setting(sign_up="open")
    form = {"username": "dora", "password": "correct horse battery "}
    client.post("/signup/", form)
    client.force_login(admin)
    client.post("/settings/users/", {**form, "username": "emil"})
    for name in ("dora", "emil"):
        signed_in = Client().post("/signin/", {**form, "username": name})
        assert signed_in.status_code == 302


@pytest.mark.usefixtures("valkey_server", "engine")
@pytest.mark.parametrize(("mode", "role"), [("pending", "pending"), ("open", "user")])
def test_strangers_sign_up_where_that_is_wanted(
    client: Client, db: None, setting: Any, mode: str, role: str
) -> None:
    form = {"username": "dora", "password": "correct horse battery"}
    assert client.post("/signup/", form).status_code == 404
    setting(sign_up=mode)
    assert "/signup/" in client.get("/signin/").content.decode()
    assert client.post("/signup/", {**form, "password": "123"}).status_code == 422
    assert client.post("/signup/", form)["Location"] == "/chat/"
    assert User.objects.get(username="dora").role == role
    assert client.get("/chat/").status_code == (403 if mode == "pending" else 200)


@pytest.mark.usefixtures("valkey_server")
def test_who_types_a_name_in_other_letters_signs_in_under_it(client: Client, db: None) -> None:
    """The form reads a ligature, or letters of double width, as the plain ones."""
    person = {"username": "\ufb01ona", "password": "correct horse battery"}
    assert accounts.add_user(**person).username == "fiona"
    with pytest.raises(ServiceError, match="already"):
        accounts.add_user(**{**person, "username": "fiona"})
    assert accounts.add_user_from_elsewhere(username="\ufb01ona", role="user").username == "fiona-2"
    assert client.post("/signin/", person).status_code == 302


def test_accounts_of_before_get_the_name_under_which_they_can_sign_in(db: None) -> None:
    for name in ("\uff41nna", "\ufb01ona", "fiona"):
        User.objects.create(username=name)
    import_module("clawweb.migrations.0020_usernames_as_they_are_read").normalise(apps, None)
    names = User.objects.order_by("pk").values_list("username", flat=True)
    assert list(names) == ["anna", "\ufb01ona", "fiona"]  # what another is called is left


@pytest.mark.usefixtures("valkey_server")
@pytest.mark.parametrize(
    ("here", "next_door", "elsewhere"),
    [("10.9.8.7", "10.9.8.7", "10.9.8.6"), ("2001:db8:0:7::1", "2001:db8:0:7:f::2", "2001:db8::1")],
)
def test_too_many_tries_are_told_to_wait(
    client: Client,
    db: None,
    monkeypatch: pytest.MonkeyPatch,
    here: str,
    next_door: str,
    elsewhere: str,
) -> None:
    monkeypatch.setattr("clawweb.views.accounts.SIGN_INS", 1)  # each takes a while, as it should
    wrong = {"username": "alice", "password": "no"}
    found = [client.post("/signin/", wrong, REMOTE_ADDR=at) for at in (here, next_door)]
    assert [response.status_code for response in found[-2:]] == [200, 429]
    assert int(found[-1]["Retry-After"]) >= 1
    german = {"REMOTE_ADDR": here, "HTTP_ACCEPT_LANGUAGE": "de"}
    assert (
        "Das waren zu viele Versuche." in client.post("/signin/", wrong, **german).content.decode()
    )
    assert client.post("/signin/", wrong, REMOTE_ADDR=elsewhere).status_code == 200


# /v1, by keys alone


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
async def test_v1_takes_the_right_key_alone(
    alice: User, bob: User, engine: Any, valkey_server: Any
) -> None:
    def make() -> dict[str, str]:
        make_adapter(alice, 1)
        keys = {
            "alice": accounts.make_key(user=alice, name="k", scopes=["chat"]),
            "bob": accounts.make_key(user=bob, name="k", scopes=["chat"]),
            "other": accounts.make_key(user=alice, name="k", scopes=set(SCOPES) - {"chat"}),
        }
        return {name: plain for name, (_, plain) in keys.items()}

    keys = await in_db(make)
    browser = AsyncClient()
    await in_db(browser.force_login, alice)

    async def ask(path: str, who: str = "", verb: str = "get") -> int:
        headers = {"Authorization": f"Bearer {keys[who]}"} if who else {}
        return (await getattr(browser, verb)(path, headers=headers)).status_code

    model = "/v1/models/agent@v1"
    assert [await ask(model, who) for who in ("alice", "bob", "other", "")] == [200, 404, 403, 401]
    assert [await ask("/v1/models", who) for who in ("alice", "other", "")] == [200, 403, 401]
    chat = "/v1/chat/completions"
    assert [await ask(chat, who, "post") for who in ("alice", "other", "")] == [400, 403, 401]
    for verb in ("put", "patch", "delete"):
        for path in (model, "/v1/models", chat):
            assert await ask(path, "alice", verb) == 405
    assert await ask("/v1/adapters", "alice") == 404
    await in_db(User.objects.filter(pk=alice.pk).update, role=Role.PENDING)
    assert await ask("/v1/models", "alice") == 401


# Sockets


def sockets() -> dict[str, Any]:
    """Each path that a browser can open, with its consumer."""
    at: Any = application.application_mapping["websocket"]
    while not hasattr(at, "routes"):
        at = at.inner
    return {str(route.pattern): route.callback for route in at.routes}


def test_each_socket_is_known() -> None:
    assert set(sockets()) == {"ws/chat/", "ws/nudges/", ""}  # "": all others, which are refused


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
@pytest.mark.parametrize("path", ["ws/chat/", "ws/nudges/"])
async def test_sockets_are_for_who_is_let_in(path: str, world: World) -> None:
    people = {**world.people, STRANGER: AnonymousUser(), "nobody": None}
    for role, user in people.items():
        end = opened(path, user)
        await end.connect()
        if role not in APPROVED:
            shut = {"type": "websocket.close", "code": SIGNED_OUT}
            assert await end.receive_output(30) == shut, role
        assert await end.receive_nothing(0.2), role
        await end.disconnect()


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
@pytest.mark.parametrize("role", [OTHER, REVIEWER, TRAINER, ADMIN])
async def test_no_command_reaches_anothers_chat(world: World, alice: User, role: str) -> None:
    """Whatever else they may read or do: a socket is for one's own chats."""
    turn = await in_db(make_turn, alice)
    name, session = turn.public_id, await in_db(lambda: turn.session.public_id)
    commands = [
        *({"type": kind, "turn": name} for kind in ("stop", "follow", "regenerate")),
        {"type": "send", "text": "x", "session": session},
        {"type": "send", "text": "x", "parent": name},
        {"type": "send", "text": "x", "edits": name},
    ]
    end = opened("ws/chat/", world.people[role])
    await end.connect()
    for command in commands:
        await end.send_json(command)
        async with asyncio.timeout(30):
            message = await end.receive_json()
        assert (message["type"], message["message"]) == (
            "error",
            "That is not there any more. Load the page again.",
        ), command
    await end.disconnect()
    assert await in_db(lambda: turn.session.turns.count()) == 1


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
@pytest.mark.parametrize(
    ("what", "hearing"),
    [
        *((what, {OWNER}) for what in ("session", "turn", "receipt", "transfer", "comparison")),
        *((what, {OWNER, TRAINER, ADMIN}) for what in ("job", "adapter")),
    ],
)
async def test_nudges_are_heard_by_whom_they_are_for(
    world: World, alice: User, what: Any, hearing: set[str]
) -> None:
    ends = {role: opened("ws/nudges/", world.people[role]) for role in APPROVED}
    for end in ends.values():
        await end.connect()
        assert await end.receive_nothing(0.1)
    await in_db(events.changed, alice.pk, what, "its-id")
    for role, end in ends.items():
        if role in hearing:
            async with asyncio.timeout(30):
                assert (await end.receive_json())["what"] == what
        assert await end.receive_nothing(0.2), role
        await end.disconnect()


def opened(path: str, user: Any) -> Browser:
    scope = {"type": "websocket", "path": f"/{path}", "headers": [HOST], "user": user}
    return Browser(sockets()[path], scope)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((" ",), "blank"),
        (("a/b",), "valid username"),
        (("Alice",), "already a user called alice"),
        (("new", "--scopes", "chat,all"), "scopes are some of"),
        (("new", "--days", "0"), "from 1 to"),
        (("new", "--days", "99999999"), "from 1 to"),
    ],
)
def test_a_command_that_makes_no_key_makes_no_user(
    alice: User, more: tuple[str, ...], words: str
) -> None:
    with pytest.raises(CommandError, match=words):
        call_command("createkey", "--create", *more)
    assert list(User.objects.all()) == [alice]


@pytest.mark.parametrize("shut_out", [{"is_active": False}, {"role": "pending"}], ids=str)
def test_a_command_makes_no_key_that_would_not_be_let_in(
    alice: User, shut_out: dict[str, Any]
) -> None:
    User.objects.filter(pk=alice.pk).update(**shut_out)
    with pytest.raises(CommandError, match="No key of alice would be let in"):
        call_command("createkey", "alice")
    assert not ApiKey.objects.exists()


def test_a_user_whom_the_command_makes_is_in_the_audit_log(db: None, capsys: Any) -> None:
    call_command("createkey", "new", "--create", "--scopes", "read, chat", "--days", "1")
    key = accounts.key_for(capsys.readouterr().out.strip())
    assert key is not None
    assert (key.user.username, key.scopes) == ("new", ["read", "chat"])
    assert not key.user.has_usable_password()
    assert [row.action for row in AuditEvent.objects.order_by("pk")] == ["add_user", "make_key"]
