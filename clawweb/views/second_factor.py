"""A second factor: set up, asked for at sign-in, taken away. allauth's views in our pages.

Who signs in gives a code of the app, or one of ten recovery codes, after the password, the one-time
link or the sign-in elsewhere alike: each of those is one factor.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from allauth.account.adapter import get_adapter
from allauth.account.forms import ReauthenticateForm
from allauth.account.internal.flows.login import record_authentication
from allauth.account.views import ReauthenticateView
from allauth.mfa.base.forms import AuthenticateForm
from allauth.mfa.base.forms import ReauthenticateForm as ReauthenticateByCode
from allauth.mfa.base.views import AuthenticateView
from allauth.mfa.base.views import ReauthenticateView as CodeAgainView
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.views import GenerateRecoveryCodesView, ViewRecoveryCodesView
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.totp.views import ActivateTOTPView, DeactivateTOTPView
from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from clawweb.limits import Refused, note_attempt
from clawweb.models import User
from clawweb.services import audit, second_factor

TRIES = 5  # at codes, and at one's password again, per person and minute
VERBS = ["get", "post", "head"]


def _code_field() -> forms.CharField:
    attributes = {"autocomplete": "one-time-code", "inputmode": "numeric", "autofocus": True}
    return forms.CharField(
        label=gettext_lazy("Code"), max_length=20, widget=forms.TextInput(attrs=attributes)
    )


def note_try(what: str, user: Any) -> None:
    """Count a try of this person's, wherever it comes from; a form's error when it is too many."""
    try:
        note_attempt(what, f"user {user.pk}", TRIES)
    except Refused as exc:
        raise ValidationError(_("There were too many tries. Wait a minute.")) from exc


class GoodOnce:
    """A code of the app, or a recovery code, tried a bounded number of times."""

    user: User
    authenticator: Authenticator

    def clean_code(self) -> str:
        note_try("second-factor", self.user)
        try:
            code: str = super().clean_code()  # type: ignore[misc]
            is_of_app = self.authenticator.type == Authenticator.Type.TOTP
            if is_of_app and not second_factor.spend_code(self.authenticator, code):
                raise ValidationError(_("This code was used already. Wait for the next one."))
        except second_factor.Unreadable as exc:
            # The secret key was changed; to let anyone in for it would be worse
            raise ValidationError(
                _("Your second factor cannot be read any more. An admin can remove it.")
            ) from exc
        return code

    def _emit_authentication_failed(self, authenticator: Authenticator) -> None:
        audit.record("fail_second_factor", self.user, actor=self.user)


class CodeForm(GoodOnce, AuthenticateForm):  # type: ignore[misc]
    """At sign-in."""

    code = _code_field()


class CodeAgain(GoodOnce, ReauthenticateByCode):  # type: ignore[misc]
    """From somebody who is signed in and has no password."""

    code = _code_field()


class PasswordAgain(ReauthenticateForm):  # type: ignore[misc]
    password = forms.CharField(
        label=gettext_lazy("Password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "autofocus": True}),
    )

    def clean_password(self) -> str:
        note_try("password-again", self.user)
        return str(super().clean_password())


class FirstCode(ActivateTOTPForm):  # type: ignore[misc]
    """Proof that the app has the secret."""

    code = _code_field()

    def clean_code(self) -> str:
        note_try("first-code", self.user)
        return str(super().clean_code())


class AskForCode(AuthenticateView):  # type: ignore[misc]
    form_class = CodeForm
    template_name = "accounts/code.html"
    http_method_names = VERBS


class Confirm:
    """Said again who one is, where one can; who has nothing to say it with is let through."""

    request: HttpRequest

    def _check_reauthentication_method_available(self, request: HttpRequest) -> Any:
        if request.method not in ("GET", "POST", "HEAD"):
            return HttpResponseNotAllowed(VERBS)
        if not get_adapter().get_reauthentication_methods(request.user):
            return redirect("security")
        return super()._check_reauthentication_method_available(request)  # type: ignore[misc]


class ConfirmByPassword(Confirm, ReauthenticateView):  # type: ignore[misc]
    form_class = PasswordAgain
    template_name = "accounts/confirm.html"
    http_method_names = VERBS


class ConfirmByCode(Confirm, CodeAgainView):  # type: ignore[misc]
    form_class = CodeAgain
    template_name = "accounts/confirm.html"
    http_method_names = VERBS


class SetUp(ActivateTOTPView):  # type: ignore[misc]
    form_class = FirstCode
    template_name = "accounts/second_factor.html"
    http_method_names = VERBS

    def form_valid(self, form: FirstCode) -> HttpResponse:
        response: HttpResponse = super().form_valid(form)
        app = Authenticator.objects.get(user=self.request.user, type=Authenticator.Type.TOTP)
        second_factor.spend_code(app, form.cleaned_data["code"])  # it signs nobody in
        # The code just given is proof enough to be shown the recovery codes.
        record_authentication(self.request, self.request.user, "mfa", reauthenticated=True)
        audit.record("add_second_factor", self.request.user)
        messages.success(self.request, _("From now on a code is asked for when you sign in."))
        return response


class Remove(DeactivateTOTPView):  # type: ignore[misc]
    template_name = "accounts/second_factor_remove.html"
    http_method_names = VERBS

    def form_valid(self, form: Any) -> HttpResponse:
        second_factor.remove(self.request.user)
        messages.success(self.request, _("The second factor is removed."))
        return redirect("security")


class RecoveryCodes(ViewRecoveryCodesView):  # type: ignore[misc]
    """Shown once. They are taken along as a file that the page itself holds: no address has it."""

    template_name = "accounts/recovery_codes.html"
    http_method_names = ["get", "head"]

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().get_context_data(**context)
        text = "\n".join(["clawweb", *found["unused_codes"], ""])
        return {**found, "file": f"data:text/plain;charset=utf-8,{quote(text)}"}


class NewRecoveryCodes(GenerateRecoveryCodesView):  # type: ignore[misc]
    template_name = "accounts/recovery_codes_new.html"
    http_method_names = VERBS

    def form_valid(self, form: Any) -> HttpResponse:
        response: HttpResponse = super().form_valid(form)
        audit.record("renew_recovery_codes", self.request.user)
        return response
