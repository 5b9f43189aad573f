"""A second factor: asked for whatever came first, good once, kept sealed, removed with proof."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import (
    format_hotp_value,
    hotp_value,
    yield_hotp_counters_from_time,
)
from django.contrib.admin.models import LogEntry
from django.test import Client

from clawweb.config import config
from clawweb.models import AuditEvent, User
from clawweb.services import accounts, second_factor
from clawweb.stack.database import prepare_database

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def many_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of other tests have the same numbers, and their tries were counted, too."""
    monkeypatch.setattr("clawweb.views.second_factor.TRIES", 1000)


@pytest.fixture(autouse=True)
def one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the codes stands still: else one of them gives way to the next in the middle of
    a test, as it does each half minute, and what was used already is another than what is asked."""
    now = time.time()
    still = SimpleNamespace(time=lambda: now)
    monkeypatch.setattr("allauth.mfa.totp.internal.auth.time", still)


def code_of(secret: str, later: int = 0) -> str:
    """What an app shows now, or some steps of half a minute later."""
    now = list(yield_hotp_counters_from_time())[1]
    return format_hotp_value(hotp_value(secret, now + later))


def set_up(client: Client) -> tuple[str, list[str]]:
    """The secret and the recovery codes, as the pages show them."""
    page = client.get("/settings/second-factor/").content.decode()
    secret = re.search(r'"secret-text">(\w+)<', page)[1]  # type: ignore[index]
    response = client.post("/settings/second-factor/", {"code": code_of(secret)})
    assert response["Location"] == "/settings/second-factor/codes/", response.content.decode()
    shown = client.get("/settings/second-factor/codes/").content.decode()
    return secret, re.findall(r"<li><code>(\d{8})</code>", shown)


def by_link(user: User) -> tuple[Client, Any]:
    """A browser that used a one-time link, and where it was led."""
    client = Client()
    return client, client.post(accounts.make_link(user))["Location"]


def is_in(client: Client) -> bool:
    return client.get("/settings/").status_code == 200


def acts() -> list[str]:
    return list(AuditEvent.objects.order_by("id").values_list("action", flat=True))


def test_a_link_is_followed_by_a_code_and_a_code_is_good_once(client: Client, alice: User) -> None:
    client.force_login(alice)
    secret, _ = set_up(client)
    first, led_to = by_link(alice)
    assert led_to == "/signin/code/"
    assert not is_in(first)
    set_up_by = code_of(secret)
    assert "used already" in first.post("/signin/code/", {"code": set_up_by}).content.decode()
    assert "not right" in first.post("/signin/code/", {"code": "000000"}).content.decode()
    assert not is_in(first)
    code = code_of(secret, 1)  # a clock that is half a minute ahead
    assert first.post("/signin/code/", {"code": code})["Location"] == "/chat/"
    assert is_in(first)

    second, _ = by_link(alice)
    for old in (code, code_of(secret)):  # the same, and one from before it
        assert second.post("/signin/code/", {"code": old}).status_code == 200
    assert not is_in(second)
    assert {"add_second_factor", "fail_second_factor", "sign_in"} <= set(acts())
    by = AuditEvent.objects.filter(action="sign_in").latest("id").after["by"]
    assert by == ["link", "mfa"]


def test_a_password_is_followed_by_a_code_too_and_then_by_where_one_wanted_to_go(
    client: Client, alice: User
) -> None:
    client.force_login(alice)
    secret, _ = set_up(client)
    alice.set_password(PASSWORD)
    alice.save()
    form = {"username": "alice", "password": PASSWORD, "next": "/jobs/"}
    browser = Client()
    assert browser.post("/signin/", form)["Location"] == "/signin/code/"
    for path in ("/chat/", "/api/sessions", "/admin/"):
        assert browser.get(path).status_code in (302, 401), path
    assert browser.post("/signin/code/", {"code": code_of(secret, 1)})["Location"] == "/jobs/"


def test_the_admins_tables_have_no_way_in_of_their_own(admin: User) -> None:
    admin.set_password(PASSWORD)
    admin.save()
    form = {"username": "root", "password": PASSWORD}
    response = Client().post("/admin/login/?next=/admin/", form)
    assert response["Location"].startswith("/signin/?next=")


def test_recovery_codes_are_shown_once_and_each_signs_in_once(client: Client, alice: User) -> None:
    client.force_login(alice)
    _, codes = set_up(client)
    assert len(codes) == 10
    again = client.get("/settings/second-factor/codes/").content.decode()
    assert not any(code in again for code in codes)
    browser, _ = by_link(alice)
    assert browser.post("/signin/code/", {"code": codes[3]})["Location"] == "/chat/"
    other, _ = by_link(alice)
    assert other.post("/signin/code/", {"code": codes[3]}).status_code == 200
    assert "9 recovery codes are left" in client.get("/settings/security/").content.decode()

    client.post("/settings/second-factor/codes/new/")
    assert other.post("/signin/code/", {"code": codes[4]}).status_code == 200
    page = client.get("/settings/second-factor/codes/").content.decode()
    fresh = re.findall(r"<code>(\d{8})</code>", page)
    assert other.post("/signin/code/", {"code": fresh[0]})["Location"] == "/chat/"


def test_it_is_set_up_and_removed_with_the_password_again(client: Client, alice: User) -> None:
    alice.set_password(PASSWORD)
    alice.save()
    client.force_login(alice)
    confirm = "/settings/confirm/?next=/settings/second-factor/"
    led_to = client.get("/settings/second-factor/")["Location"]
    assert unquote(led_to) == confirm
    wrong = client.post(confirm, {"password": "no"}).content.decode()
    assert "That is not your password." in wrong
    assert client.post(confirm, {"password": PASSWORD})["Location"] == "/settings/second-factor/"
    set_up(client)

    other = Client()
    other.force_login(alice)
    for method in (other.get, other.post):
        assert "/settings/confirm/" in method("/settings/second-factor/remove/")["Location"]
        assert "/settings/confirm/" in method("/settings/second-factor/codes/new/")["Location"]
    assert "/settings/confirm/" in other.get("/settings/second-factor/codes/")["Location"]
    assert Authenticator.objects.filter(user=alice).count() == 2
    assert client.post("/settings/second-factor/remove/")["Location"] == "/settings/security/"
    assert not Authenticator.objects.filter(user=alice).exists()
    assert acts()[-1] == "remove_second_factor"


def test_a_password_with_a_space_at_its_end_is_said_again(client: Client, alice: User) -> None:
    alice.set_password(f"{PASSWORD} ")
    alice.save()
    client.force_login(alice)
    asked = "/settings/confirm/?next=/settings/second-factor/"
    answer = client.post(asked, {"password": f"{PASSWORD} "})
    assert answer["Location"] == "/settings/second-factor/"


def test_ones_own_password_cannot_be_guessed_for_ever(
    client: Client, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sits at an open browser would set another."""
    monkeypatch.setattr("clawweb.views.second_factor.TRIES", 1)
    alice.set_password(PASSWORD)
    alice.save()
    client.force_login(alice)
    new = {"new_password1": "quite another 7", "new_password2": "quite another 7"}
    client.post("/password/", {"old_password": "no", **new})
    page = client.post("/password/", {"old_password": PASSWORD, **new})
    assert "There were too many tries." in page.content.decode()
    alice.refresh_from_db()
    assert alice.check_password(PASSWORD)


def test_a_name_in_other_letters_is_the_same_name(alice: User) -> None:
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in "alice")
    names = [*[wide, "alice", wide.upper()] * 10, "alice"]
    answers = [
        Client(REMOTE_ADDR=f"10.0.0.{n}").post("/signin/", {"username": name, "password": "no"})
        for n, name in enumerate(names)
    ]
    assert [answer.status_code for answer in answers] == [200] * 30 + [429]


@pytest.mark.parametrize("unticked", ["is_active", "is_superuser"])
def test_the_only_admin_stays_one(admin: User, unticked: str) -> None:
    browser = Client()
    browser.force_login(admin)
    ticked = {"is_active", "is_staff", "is_superuser"} - {unticked}
    form = {"username": admin.username, "role": admin.role, **dict.fromkeys(ticked, "on")}
    page = browser.post(f"/admin/clawweb/user/{admin.pk}/change/", form, follow=True)
    admin.refresh_from_db()
    assert (admin.is_active, admin.is_superuser) == (True, True)
    assert "You are the only admin." in page.content.decode()


@pytest.mark.parametrize("by_action", [True, False])
def test_that_the_last_admin_stays_is_all_that_is_said(
    client: Client, admin: User, by_action: bool
) -> None:
    client.force_login(admin)
    one = f"/admin/clawweb/user/{admin.pk}/delete/"
    chosen = {"action": "delete_selected", "_selected_action": [admin.pk]}
    form = {"post": "yes", **(chosen if by_action else {})}
    page = client.post("/admin/clawweb/user/" if by_action else one, form, follow=True)
    said = page.content.decode()
    assert "You are the only admin." in said
    assert "was deleted" not in said
    assert "Successfully deleted" not in said
    assert not LogEntry.objects.exists()


def test_who_has_no_password_gives_a_code_before_setting_one(client: Client, alice: User) -> None:
    client.force_login(alice)
    _, codes = set_up(client)
    new = {"new_password1": PASSWORD, "new_password2": PASSWORD}
    other = Client()
    other.force_login(alice)
    assert other.post("/password/", new)["Location"].startswith("/settings/confirm/code/")
    assert not User.objects.get(pk=alice.pk).has_usable_password()
    other.post("/settings/confirm/code/?next=/chat/", {"code": codes[0]})
    assert other.post("/password/", new)["Location"] == "/settings/"


def test_guessing_ends_soon(client: Client, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    client.force_login(alice)
    _, codes = set_up(client)
    browser, _ = by_link(alice)
    monkeypatch.setattr("clawweb.views.second_factor.TRIES", 3)
    for _ in range(4):
        page = browser.post("/signin/code/", {"code": "000000"}).content.decode()
    assert "too many tries" in page
    assert browser.post("/signin/code/", {"code": codes[0]}).status_code == 200  # a right one, too
    assert not is_in(browser)


def test_an_admin_takes_away_a_lost_one(client: Client, alice: User, admin: User) -> None:
    client.force_login(alice)
    set_up(client)
    client.force_login(admin)
    form = {"action": "remove_second_factor", "_selected_action": [alice.pk]}
    client.post("/admin/clawweb/user/", form)
    row = AuditEvent.objects.latest("id")
    assert (row.actor, row.subject, row.action) == (admin, alice, "remove_second_factor")
    assert by_link(alice)[1] == "/chat/"


def test_the_operator_takes_away_a_lost_one(client: Client, alice: User) -> None:
    from django.core.management import call_command

    client.force_login(alice)
    set_up(client)
    call_command("signinlink", "alice", "--remove-second-factor")
    assert by_link(alice)[1] == "/chat/"
    assert "remove_second_factor" in acts()


def test_admins_are_led_to_it_where_it_is_demanded(
    client: Client, admin: User, alice: User, setting: Any
) -> None:
    setting(admin_second_factor=True)
    client.force_login(admin)
    for path in ("/chat/", "/settings/", "/admin/", "/review/"):
        assert client.get(path)["Location"] == "/settings/second-factor/", path
    assert client.get("/api/sessions").status_code == 403
    set_up(client)
    assert client.get("/chat/").status_code == 200
    refused = client.post("/settings/second-factor/remove/").content.decode()
    assert "Admins must keep" in refused
    assert Authenticator.objects.filter(user=admin).exists()
    client.force_login(alice)
    assert is_in(client)  # people may, admins must


def test_secrets_are_sealed_and_another_key_opens_nothing(
    client: Client, alice: User, settings: Any
) -> None:
    client.force_login(alice)
    secret, codes = set_up(client)
    kept = str(list(Authenticator.objects.values()))
    assert secret not in kept
    assert not any(code in kept for code in codes)
    settings.SECRET_KEY = "another"
    factor = Authenticator.objects.get(user=alice, type="totp")
    with pytest.raises(second_factor.Unreadable):
        second_factor.unseal(factor.data["secret"])
    browser, led_to = by_link(alice)
    assert led_to == "/signin/code/"
    page = browser.post("/signin/code/", {"code": code_of(secret, 1)}).content.decode()
    assert "cannot be read any more" in page
    assert not is_in(browser)


def test_a_secret_key_is_changed_without_anybody_noticing(
    client: Client, alice: User, bob: User, settings: Any
) -> None:
    client.force_login(alice)
    secret, codes = set_up(client)
    old = settings.SECRET_KEY
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "a new one", [old]
    assert is_in(client)
    assert second_factor.seal_anew() == 0

    settings.SECRET_KEY_FALLBACKS = []  # the old one is gone: its seals are, too
    browser, _ = by_link(alice)
    browser.post("/signin/code/", {"code": code_of(secret, 1)})
    assert is_in(browser)
    browser, _ = by_link(alice)
    browser.post("/signin/code/", {"code": codes[0]})
    assert is_in(browser)


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
def test_a_start_says_what_another_key_sealed_and_leaves_it(
    client: Client, alice: User, settings: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawweb.stack.database.back_up", lambda *_, **__: None)
    client.force_login(alice)
    secret, _ = set_up(client)
    old = settings.SECRET_KEY
    settings.SECRET_KEY = "a new one"
    prepare_database(config())
    assert "2 second factors are sealed with another secret key" in capsys.readouterr().out
    settings.SECRET_KEY = old
    prepare_database(config())
    assert "second factors" not in capsys.readouterr().out
    browser, _ = by_link(alice)
    browser.post("/signin/code/", {"code": code_of(secret, 1)})
    assert is_in(browser)
