"""What allauth asks of an installation: our words, our rule of who may sign up, sealed secrets.

It keeps second factors and accounts elsewhere, and leads a sign-in from step to step. Named in
clawweb/settings.py.
"""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from clawweb.config import config
from clawweb.models import User
from clawweb.services import second_factor

_WRONG_CODE = gettext_lazy("That code is not right. Codes change every 30 seconds and work once.")


class Accounts(DefaultAccountAdapter):  # type: ignore[misc]
    """Signing in. Who signs up does so through our own service; no mail is sent."""

    error_messages = DefaultAccountAdapter.error_messages | {
        "incorrect_password": gettext_lazy("That is not your password."),
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False  # by allauth's own form

    def respond_user_inactive(self, request: HttpRequest, user: Any) -> HttpResponse:
        messages.error(request, _("This account is closed."))
        return redirect("signin")

    def add_message(self, request: HttpRequest, level: int, *args: Any, **kwargs: Any) -> None:
        """Our pages say it themselves."""

    def get_client_ip(self, request: HttpRequest) -> str:
        return request.META.get("REMOTE_ADDR") or "0.0.0.0"  # a socket has none

    def get_reauthentication_methods(self, user: Any) -> list[dict[str, str]]:
        """The password alone where there is one: who holds an unlocked phone has codes, too."""
        return super().get_reauthentication_methods(user)[:1]  # type: ignore[no-any-return]


class SecondFactors(DefaultMFAAdapter):  # type: ignore[misc]
    error_messages = DefaultMFAAdapter.error_messages | {
        "incorrect_code": _WRONG_CODE,
        "cannot_delete_authenticator": gettext_lazy("Admins must keep a second factor here."),
    }

    def encrypt(self, text: str) -> str:
        return second_factor.seal(text)

    def decrypt(self, encrypted_text: str) -> str:
        return second_factor.unseal(encrypted_text)

    def can_delete_authenticator(self, authenticator: Authenticator) -> bool:
        user: User = authenticator.user
        return not (user.is_superuser and config().admin_second_factor)
