"""Signing in at a real OpenID provider, over HTTP: the whole code flow, and what is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import requests
from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount, SocialToken
from django.test import Client

from clawweb.models import AuditEvent, Role, User
from clawweb.views import single_sign_on
from tests.prepare import CLIENTS, in_ci

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")
PASSWORD = "correct horse battery"
CALLBACK = "http://testserver/signin/sso/callback/"


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """The address of oidc-provider, of tests/clients."""
    node = shutil.which("node")
    if not node or not (CLIENTS / "node_modules" / "oidc-provider").is_dir():
        assert not in_ci(), "npm packages of tests/clients are missing"
        pytest.skip("oidc-provider is not installed: run tests/prepare.py")
    command = [node, str(CLIENTS / "provider.mjs"), CALLBACK]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout
    yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    server.terminate()
    server.wait(10)
    server.stdout.close()


@pytest.fixture(autouse=True)
def many_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawweb.views.single_sign_on.SIGN_INS", 1000)


@pytest.fixture
def provider(issuer: str, db: None, setting: Any) -> Any:
    """Sets it as ours; more settings as a test likes."""

    def change(**more: object) -> None:
        secret = "a secret of ours"
        given = {"oidc_client_id": "clawweb", "oidc_client_secret": secret, "oidc_name": "Acme"}
        setting(oidc_issuer=issuer, **given, **more)

    change(sign_up="open")
    return change


def at_provider(address: str, who: str) -> str:
    """Where the provider sends the browser once `who` signed in there."""
    browser = requests.Session()
    answer = browser.get(address, allow_redirects=False, timeout=10)
    for _ in range(10):
        where = answer.headers.get("Location", "")
        if where.startswith("http://testserver/"):
            return where
        if where:
            address = requests.compat.urljoin(answer.url, where)
            answer = browser.get(address, allow_redirects=False, timeout=10)
        else:
            action = re.search(r'action="([^"]+)"', answer.text)[1]  # type: ignore[index]
            form = {"prompt": "login", "login": who, "password": "any"}
            answer = browser.post(
                requests.compat.urljoin(answer.url, action), form, allow_redirects=False, timeout=10
            )
    raise AssertionError(answer.text)


def sign_in(client: Client, who: str, **changed: str) -> Any:
    """Through the whole flow; `changed` are what the browser brings back instead."""
    leaving = client.get("/signin/sso/?next=/jobs/")
    assert leaving.status_code == 302
    back = at_provider(leaving["Location"], who)
    asked = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
    return client.get(f"/signin/sso/callback/?{urlencode({**asked, **changed})}")


def is_in(client: Client) -> bool:
    return client.get("/settings/").status_code == 200


def words(client: Client) -> str:
    return client.get("/signin/").content.decode()


def test_an_address_is_not_taken_for_a_name(client: Client, provider: Any) -> None:
    sign_in(client, "grace@example.org")
    assert User.objects.get().username == "grace"


def test_somebody_new_gets_an_account_and_comes_back_to_it(client: Client, provider: Any) -> None:
    assert "Sign in with Acme" in words(client)
    assert sign_in(client, "ada")["Location"] == "/jobs/"
    assert is_in(client)
    user = User.objects.get(username="ada")
    assert (user.role, user.email, user.has_usable_password()) == (Role.USER, "", False)
    link = SocialAccount.objects.get()
    assert (link.user, link.uid, link.extra_data) == (user, "ada", {})
    assert not SocialToken.objects.exists()
    assert not EmailAddress.objects.exists()
    assert AuditEvent.objects.filter(action="sign_in").latest("id").after["by"] == ["socialaccount"]

    again = Client()
    sign_in(again, "ada")
    assert is_in(again)
    assert User.objects.count() == 1


def test_the_sign_up_rule_holds(client: Client, provider: Any) -> None:
    provider(sign_up="closed")
    assert sign_in(client, "ada")["Location"] == "/signin/"
    assert "You have no account here yet" in words(client)
    assert not User.objects.exists()
    provider(sign_up="pending")
    sign_in(client, "ada")
    assert User.objects.get().role == Role.PENDING
    assert client.get("/chat/").status_code == 403


def test_a_name_is_never_a_way_into_anothers_account(
    client: Client, provider: Any, alice: User
) -> None:
    """Nor is an address: none is kept, none is compared."""
    alice.email = "alice@example.org"
    alice.save()
    sign_in(client, "alice")
    assert SocialAccount.objects.get().user.username == "alice-2"
    assert client.get("/settings/").context["user"] != alice


@pytest.mark.parametrize(
    "changed",
    [{"state": "another"}, {"state": ""}, {"code": "another"}, {"error": "access_denied"}],
)
def test_what_the_browser_brings_must_be_what_was_begun(
    client: Client, provider: Any, changed: dict[str, str]
) -> None:
    assert sign_in(client, "ada", **changed)["Location"] == "/signin/"
    assert not is_in(client)
    assert not User.objects.exists()


def test_a_code_of_another_sign_in_is_refused(client: Client, provider: Any) -> None:
    """The nonce and the PKCE verifier are another browser's: a code that leaked is of no use."""
    other = Client()
    back = at_provider(other.get("/signin/sso/")["Location"], "ada")
    code = parse_qs(urlsplit(back).query)["code"][0]
    assert sign_in(client, "eve", code=code)["Location"] == "/signin/"
    assert not User.objects.exists()


def test_another_nonce_is_refused(
    client: Client, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this server sent and what it remembers differ; all else is right."""
    from allauth.socialaccount.internal import statekit

    kept = statekit.unstash_state

    def changed(*args: Any, **kwargs: Any) -> Any:
        state = kept(*args, **kwargs)
        return state and {**state, "nonce": "another"}

    monkeypatch.setattr(statekit, "unstash_state", changed)
    assert sign_in(client, "ada")["Location"] == "/signin/"
    monkeypatch.undo()
    assert not User.objects.exists()


@pytest.mark.parametrize(
    "who",
    [
        "signed-by-a-stranger",
        "changed-afterwards",
        "not-signed",
        "signed-by-the-public-key",
        "signed-by-nobodys-key",
    ],
)
def test_a_forged_token_is_refused(client: Client, provider: Any, who: str) -> None:
    """All else in it is right, and the person is who signed in: its signature alone is wrong."""
    assert sign_in(client, who)["Location"] == "/signin/"
    assert "did not work" in words(client)
    assert not User.objects.exists()


def test_a_callback_works_once(client: Client, provider: Any) -> None:
    back = at_provider(client.get("/signin/sso/")["Location"], "ada")
    path = back.removeprefix("http://testserver")
    assert client.get(path)["Location"] == "/chat/"
    client.post("/signout/")
    assert client.get(path)["Location"] == "/signin/"
    assert not is_in(client)


def test_a_domain_is_the_same_with_its_sign(setting: Any) -> None:
    setting(oidc_domains="example.com, @Example.org")
    assert single_sign_on._domains() == {"example.com", "example.org"}


def test_only_verified_addresses_of_the_named_domains_get_in(client: Client, provider: Any) -> None:
    provider(sign_up="open", oidc_domains="example.com")
    sign_in(client, "ada")
    assert "not one of those" in words(client)
    provider(sign_up="open", oidc_domains="example.com, Example.org")
    sign_in(client, "eve")  # of that domain, but not verified
    assert not is_in(client)
    sign_in(client, "ada")
    assert is_in(client)


def test_one_connects_only_ones_own_account(
    client: Client, provider: Any, alice: User, bob: User
) -> None:
    alice.set_password(PASSWORD)
    alice.save()
    client.force_login(alice)
    asked = client.post("/settings/sso/connect/")
    assert asked["Location"].startswith("/settings/confirm/")  # the password again
    client.post("/settings/confirm/?next=/chat/", {"password": PASSWORD})
    page = client.post("/settings/sso/connect/").content.decode()
    leaving = re.search(r'primary" href="([^"]+)"', page)[1].replace("&amp;", "&")  # type: ignore[index]
    back = at_provider(leaving, "ada").removeprefix("http://testserver")
    assert client.get(back)["Location"] == "/settings/security/"
    assert SocialAccount.objects.get().user == alice
    assert AuditEvent.objects.latest("id").action == "connect_provider"

    again = Client()
    sign_in(again, "ada")
    assert again.get("/settings/").context["user"] == alice

    other = Client()
    other.force_login(bob)
    page = other.post("/settings/sso/connect/").content.decode()
    leaving = re.search(r'primary" href="([^"]+)"', page)[1].replace("&amp;", "&")  # type: ignore[index]
    other.get(at_provider(leaving, "ada").removeprefix("http://testserver"))
    assert "somebody else" in other.get("/settings/security/").content.decode()
    assert SocialAccount.objects.get().user == alice

    client.post("/settings/sso/disconnect/")
    assert not SocialAccount.objects.exists()


def test_the_last_way_in_is_kept(client: Client, provider: Any) -> None:
    sign_in(client, "ada")
    client.post("/settings/sso/disconnect/")
    assert SocialAccount.objects.exists()


def test_a_second_factor_is_asked_for_here_too(client: Client, provider: Any) -> None:
    from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret

    sign_in(client, "ada")
    TOTP.activate(User.objects.get(), generate_totp_secret())
    other = Client()
    assert sign_in(other, "ada")["Location"] == "/signin/code/"
    assert not is_in(other)


def test_a_closed_account_stays_closed(client: Client, provider: Any) -> None:
    sign_in(client, "ada")
    User.objects.update(is_active=False)
    other = Client()
    assert sign_in(other, "ada")["Location"] == "/signin/"
    assert not is_in(other)


def test_a_provider_that_is_gone_is_a_sentence(client: Client, db: None, setting: Any) -> None:
    setting(oidc_issuer="http://127.0.0.1:9", oidc_client_id="clawweb")
    assert client.get("/signin/sso/")["Location"] == "/signin/"
    assert "does not answer" in words(client)


def test_without_a_provider_there_is_nothing(client: Client, alice: User) -> None:
    assert client.get("/signin/sso/").status_code == 404
    assert client.get("/signin/sso/callback/?code=x&state=y").status_code == 404
    assert "sso" not in words(client)
    client.force_login(alice)
    assert client.post("/settings/sso/connect/").status_code == 404
