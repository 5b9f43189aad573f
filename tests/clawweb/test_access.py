"""Who gets in where: every route, by every verb, for every kind of user, and every scope of a key.

The routes are walked: one that has no line in the table fails, whoever adds it.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from clawweb import limits
from clawweb.models import SCOPES, ApiKey, User
from clawweb.services import accounts
from tests.clawweb.access_table import (
    ADMIN,
    ALIKE,
    APPROVED,
    ELSEWHERE,
    LEADS,
    OTHER,
    OWNER,
    PENDING,
    REVIEWER,
    STRANGER,
    TABLE,
    TRAINER,
    VERBS,
    World,
    let_in,
    routes,
    told,
    world_of,
)


@pytest.fixture
def world(valkey_server: Any, engine: Any, alice: User, bob: User, admin: User) -> World:
    return world_of(alice, bob, admin)


def test_each_route_has_a_line() -> None:
    found = {route for route in routes() if not route.startswith(ELSEWHERE)}
    assert found - set(TABLE) == set(), "say in TABLE who may go there"
    assert set(TABLE) - found == set(), "is not there any more"


@pytest.mark.usefixtures("transfer_files")
def test_who_may_gets_in_and_nobody_else(world: World) -> None:
    wrong = []
    for route, verb, rule in told(world):
        # A page that is everybody's own is tried by one of those who are alike
        alike = APPROVED - {OTHER} if rule.who >= APPROVED else set()
        for role in set(world.people) - alike:
            status = world.ask(verb, route, role, **rule.body)
            if role in rule.who:
                right = let_in(status)
            elif role == STRANGER:
                right = status == (401 if route.startswith("api/") else 302)
            else:
                right = status == (403 if role == PENDING else rule.refusal)
            if not right:
                wrong.append((role, verb, route, status))
    assert not wrong, "\n".join(map(str, wrong))


def test_a_verb_without_a_line_is_nobodys(world: World) -> None:
    """Not even an admin's."""
    wrong = []
    for route, verbs in TABLE.items():
        for verb in set(VERBS) - set(verbs) if route not in ALIKE else ():
            status = world.ask(verb, route, ADMIN)
            if let_in(status) or status >= 500:
                wrong.append((verb, route, status))
    assert not wrong, "\n".join(map(str, wrong))


def test_the_address_of_a_form_leads_to_the_page_with_it(client: Client, world: World) -> None:
    client.force_login(world.people[OWNER])  # type: ignore[arg-type]
    for route in (route for route, verbs in TABLE.items() if verbs.get("GET") is LEADS):
        page = client.get(world.path(route))["Location"]
        assert page in ("/settings/", "/settings/security/", "/data/", "/sessions/"), route
        assert client.get(page).status_code == 200


@pytest.mark.usefixtures("transfer_files")
def test_a_key_does_what_its_scopes_say(world: World) -> None:
    alice, wrong = world.people[OWNER], []
    assert alice is not None
    exact = {s: accounts.make_key(user=alice, name=s, scopes=[s])[1] for s in SCOPES}
    others = {s: accounts.make_key(user=alice, name=s, scopes=set(SCOPES) - {s})[1] for s in SCOPES}
    for route, verb, rule in told(world):
        if rule.scope:
            right = world.ask(verb, route, key=exact[rule.scope], **rule.body)
            lacking = world.ask(verb, route, key=others[rule.scope], **rule.body)
            if not let_in(right) or lacking != 403:
                wrong.append((verb, route, right, lacking))
        elif OWNER in rule.who and STRANGER not in rule.who:
            status = world.ask(verb, route, key=exact["read"], **rule.body)
            if status != 302:  # pages are for sessions
                wrong.append((verb, route, status))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("role", [OTHER, REVIEWER, TRAINER, ADMIN, PENDING])
def test_a_key_reaches_nobody_elses_things(
    world: World, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin's either: a lost key must not cost more than its own user's things."""
    monkeypatch.setattr(limits, "WRONG_KEYS", 1000)  # as those of who waits are
    user = world.people[role]
    assert user is not None
    _, key = accounts.make_key(user=user, name="k", scopes=SCOPES)
    refusal = 401 if role == PENDING else 404
    wrong = []
    for route, verb, rule in told(world):
        if rule.scope and rule.refusal == 404:
            status = world.ask(verb, route, key=key, **rule.body)
            if status != refusal:
                wrong.append((verb, route, status))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(("path", "body"), [("jobs", {}), ("adapters/rollback", {})])
def test_only_who_runs_the_training_names_another(
    world: World, path: str, body: dict[str, str]
) -> None:
    body = {**body, "user": "alice"}
    found = {role: world.ask("POST", f"api/{path}", role, **body) for role in APPROVED}
    assert {role for role, status in found.items() if let_in(status)} == {OWNER, TRAINER, ADMIN}
    assert found[OTHER] == found[REVIEWER] == 404
    _, key = accounts.make_key(user=world.people[ADMIN], name="k", scopes=SCOPES)  # type: ignore[arg-type]
    assert world.ask("POST", f"api/{path}", key=key, **body) == 404


def test_nobody_revokes_anothers_key(world: World) -> None:
    alice, bob = world.people[OWNER], world.people[OTHER]
    assert alice is not None
    client = Client()
    client.force_login(bob)  # type: ignore[arg-type]
    client.post(world.path("settings/keys/<int:key_id>/revoke/"))
    assert alice.api_keys.get(pk=world.names["key_id"]).revoked_at is None


def test_the_admins_tables_are_the_admins(world: World) -> None:
    """Also for who is staff and no more."""
    staff = User.objects.create_user("staff", is_staff=True)
    world.names |= {"object_id": staff.pk, "id": staff.pk, "app_label": "clawweb", "url": "x"}
    world.names |= {"path": staff.pk, "content_type_id": 1}
    # Signing in and out, one's own password, and an empty list of tables
    own = ("login/", "logout/", "password_change/", "jsi18n/", "autocomplete/", "admin/")
    wrong = []
    for route in routes():
        if not route.startswith("admin/") or route.endswith((*own, "done/")):
            continue
        for user in (world.people[TRAINER], staff):
            client = Client()
            client.force_login(user)  # type: ignore[arg-type]
            if client.get(world.path(route)).status_code == 200:
                wrong.append((str(user), route))
    assert not wrong, "\n".join(map(str, wrong))


def test_a_key_that_has_expired_is_said_to_have_and_is_not_revoked(
    client: Client, alice: User
) -> None:
    client.force_login(alice)
    key, _ = accounts.make_key(user=alice, name="old", days=1)
    address = f"/settings/keys/{key.pk}/revoke/"
    assert address in client.get("/settings/").content.decode()
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now())
    text = client.get("/settings/").content.decode()
    assert (address in text, "expired" in text) == (False, True)
