"""Signing in at an organisation's own provider: OpenID Connect, the code flow, with PKCE.

allauth speaks the protocol and guards the state; here are the nonce, the issuer's name, the token's
signature and our rule of who may come in. Nothing of what the provider says about a person is kept
but their subject. Which provider is a setting of the operator's: nobody else can make this server
fetch an address.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from typing import Any

import jwt
from allauth.account.decorators import reauthentication_required
from allauth.account.utils import get_next_redirect_url
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.internal import jwtkit
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialLogin
from allauth.socialaccount.providers.base.constants import AuthProcess
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.crypto import constant_time_compare
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from requests import RequestException

from clawweb.config import config, listed
from clawweb.limits import Refused, note_attempt
from clawweb.models import Role, User
from clawweb.services import accounts, audit
from clawweb.views.problems import posted_from

SIGN_INS = 20  # per address and minute
log = logging.getLogger(__name__)
WRONG = (OAuth2Error, RequestException, KeyError, TypeError, ValueError)  # what a provider can say


class Client(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]
    """Asks the provider, and checks what it answers."""

    nonce: str | None = None  # that this sign-in began with

    @property
    def openid_config(self) -> dict[str, Any]:
        found: dict[str, Any] = super().openid_config
        if found["issuer"].rstrip("/") != config().oidc_issuer.rstrip("/"):
            raise OAuth2Error(f"the provider calls itself {found['issuer']}")
        return found

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        return request.build_absolute_uri(reverse("sso_callback"))

    def complete_login(
        self, request: HttpRequest, app: SocialApp, token: Any, **kwargs: Any
    ) -> SocialLogin:
        told = self._decode_id_token(app, kwargs["response"]["id_token"])
        if not self.nonce or not constant_time_compare(str(told.get("nonce")), self.nonce):
            raise OAuth2Error("the nonce is not the one that this sign-in began with")
        about = told
        if "userinfo_endpoint" in self.openid_config:
            about = {**told, **self._fetch_user_info(token.token)}
        if about["sub"] != told["sub"]:
            raise OAuth2Error("two answers are about two people")
        login: SocialLogin = self.get_provider().sociallogin_from_response(
            request, {"id_token": about}
        )
        login.about = about
        return login

    def _decode_id_token(self, app: SocialApp, id_token: str) -> dict[str, Any]:
        """Signature, issuer, audience and times. allauth would leave the signature out, since the
        token comes from the provider's own address; it is checked all the same."""
        told: dict[str, Any] = jwtkit.verify_and_decode(
            credential=id_token,
            keys_url=self.openid_config["jwks_uri"],
            issuer=self.openid_config["issuer"],
            audience=app.client_id,
            lookup_kid=_key,
        )
        return told


def _key(published: dict[str, Any], kid: str) -> jwt.PyJWK | None:
    """The provider's key of this name, which verifies by its own algorithm, whatever the token
    says; none that is a secret (a token signed by HMAC)."""
    found = [key for key in published["keys"] if key.get("kid") == kid and key["kty"] != "oct"]
    return jwt.PyJWK(found[0]) if found else None


class Provider(OpenIDConnectProvider):  # type: ignore[misc]
    oauth2_adapter_class = Client
    pkce_enabled_default = True

    def redirect(
        self, request: HttpRequest, process: str, next_url: str | None = None, **kwargs: Any
    ) -> HttpResponse:
        nonce = secrets.token_urlsafe(24)
        asked = {**self.get_auth_params(), "nonce": nonce}
        response: HttpResponse = super().redirect(
            request, process, next_url, auth_params=asked, nonce=nonce
        )
        return response

    def extract_extra_data(self, data: dict[str, Any]) -> dict[str, Any]:
        return {}  # it would be kept, and nobody asks for it

    def extract_common_fields(self, data: dict[str, Any]) -> dict[str, Any]:
        return {}  # no address: none is matched with anybody's here

    def extract_email_addresses(self, data: dict[str, Any]) -> list[Any]:
        return []


class Callback(OAuth2CallbackView):  # type: ignore[misc]
    def _get_state(self, request: HttpRequest, provider: Provider) -> Any:
        state, response = super()._get_state(request, provider)
        self.adapter.nonce = (state or {}).get("nonce")
        return state, response


class Elsewhere(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Our rules, as allauth asks for them."""

    def get_provider(self, request: HttpRequest, provider: Any, client_id: Any = None) -> Provider:
        return Provider(request, app=_app())

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: Any = None,
        exception: Any = None,
        extra_context: Any = None,
    ) -> None:
        log.warning("a sign-in at the provider failed: %s %s", error, exception or "")
        raise ImmediateHttpResponse(refused(request))

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        domains = _domains()
        about = sociallogin.about
        domain = str(about.get("email", "")).rpartition("@")[2].lower()
        if domains and not (about.get("email_verified") is True and domain in domains):
            text = _("Your address is not one of those that may sign in here.")
            raise ImmediateHttpResponse(refused(request, text))

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        if config().sign_up == "closed":
            text = _("You have no account here yet. Ask an admin for one, then connect it.")
            raise ImmediateHttpResponse(refused(request, text))
        return True

    def is_auto_signup_allowed(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return True  # without a form in between: an admin sees who waits

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        about = sociallogin.about
        wanted = about.get("preferred_username") or about.get("email") or ""
        role = Role.PENDING if config().sign_up == "pending" else Role.USER
        user = accounts.add_user_from_elsewhere(username=str(wanted).partition("@")[0], role=role)
        sociallogin.user = user
        sociallogin.save(request)
        return user

    def get_connect_redirect_url(self, request: HttpRequest, socialaccount: SocialAccount) -> str:
        """Where allauth leads once it is done; what happened is told from the row."""
        known = SocialAccount.objects.filter(
            user=request.user, provider=socialaccount.provider, uid=socialaccount.uid
        )
        if known.exists():
            audit.record("connect_provider", request.user)
            messages.success(request, _("Connected. You can sign in that way from now on."))
        else:
            messages.error(request, _("That account signs in somebody else here."))
        return reverse("security")


def _app() -> SocialApp:
    """The provider of the settings; 404 where there is none. Its id changes with the issuer, so
    that another provider's people are never taken for this one's."""
    if not is_set():
        raise Http404
    return SocialApp(
        provider="openid_connect",
        provider_id=provider_id(),
        name=name(),
        client_id=config().oidc_client_id,
        secret=config().oidc_client_secret,
        settings={"server_url": config().oidc_issuer.rstrip("/")},
    )


def provider_id() -> str:
    return "oidc-" + hashlib.sha256(config().oidc_issuer.rstrip("/").encode()).hexdigest()[:16]


def is_set() -> bool:
    return bool(config().oidc_issuer and config().oidc_client_id)


def name() -> str:
    return config().oidc_name or config().oidc_issuer.partition("//")[2].partition("/")[0]


def _domains() -> set[str]:
    """As they stand after an address's @; many write that along."""
    return {word.lower().removeprefix("@") for word in listed(config().oidc_domains)}


def refused(request: HttpRequest, text: str = "") -> HttpResponse:
    """Back to where it began, with a sentence."""
    messages.error(request, text or _("Signing in at the provider did not work. Try it again."))
    return redirect("security" if request.user.is_authenticated else "signin")


@never_cache
@require_GET
def start(request: HttpRequest) -> HttpResponse:
    """A link and not a form: a form's target may not lead to another host (form-action). Who makes
    a browser go here gains nothing: it signs in whom the provider knows."""
    provider = Provider(request, app=_app())
    if request.user.is_authenticated:
        return redirect("chat")
    try:  # each makes this server ask the provider
        note_attempt("sso", request.META.get("REMOTE_ADDR", ""), SIGN_INS)
    except Refused as exc:
        return refused(request, str(exc))
    return _leave(request, provider, AuthProcess.LOGIN)


@never_cache
@login_required
@posted_from("security")
@reauthentication_required(app="allauth.socialaccount")
def connect(request: HttpRequest) -> HttpResponse:
    """Shows the way there instead of leading there: form-action again."""
    provider = Provider(request, app=_app())
    response = _leave(request, provider, AuthProcess.CONNECT)
    if not response["Location"].startswith("http"):
        return response
    context = {"to": response["Location"], "name": name()}
    return render(request, "accounts/connect.html", context)


def _leave(request: HttpRequest, provider: Provider, process: str) -> HttpResponse:
    try:
        return provider.redirect(request, process, get_next_redirect_url(request))
    except WRONG as exc:
        log.warning("the provider does not answer as it should: %r", exc)
        return refused(request, _("The provider does not answer. Try it again later."))


@never_cache
@require_GET
def callback(request: HttpRequest) -> HttpResponse:
    client = Client(request, _app().provider_id)
    try:
        response: HttpResponse = Callback.adapter_view(client)(request)
    except WRONG as exc:
        log.warning("the provider does not answer as it should: %r", exc)
        return refused(request)
    return response


@login_required
@posted_from("security")
@reauthentication_required(app="allauth.socialaccount")
def disconnect(request: HttpRequest) -> HttpResponse:
    if not request.user.has_usable_password():
        messages.error(request, _("Set a password first: you could not sign in any more."))
    elif SocialAccount.objects.filter(user=request.user, provider=provider_id()).delete()[0]:
        audit.record("disconnect_provider", request.user)
        messages.success(request, _("Disconnected."))
    return redirect("security")
