"""Signing in and out, and one's settings. Parse, call a service, render."""

from __future__ import annotations

import unicodedata

from allauth.account.internal.flows.login import record_authentication
from allauth.account.internal.flows.reauthentication import raise_if_reauthentication_required
from allauth.account.utils import perform_login
from django.contrib import messages
from django.contrib.auth import login, logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, SetPasswordForm
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.core.exceptions import PermissionDenied
from django.forms.models import model_to_dict
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse, reverse_lazy
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from clawweb.config import config
from clawweb.limits import Refused, limits_of, note_attempt
from clawweb.models import Role, User
from clawweb.selectors import quotas
from clawweb.selectors.access import reads_of
from clawweb.selectors.effective import effective
from clawweb.selectors.judging import judge_status
from clawweb.sentences import counted
from clawweb.services import accounts, audit, browsers, erasure
from clawweb.services.errors import ServiceError
from clawweb.views import single_sign_on
from clawweb.views.forms import AskingForm, ConsentForm, KeyForm, SignInForm, UserForm
from clawweb.views.problems import posted_from
from clawweb.views.second_factor import note_try

BACKEND = "django.contrib.auth.backends.ModelBackend"
SIGN_INS = 20  # per address and minute
SIGN_INS_AS = 30  # per name and minute, from all addresses together
SIGN_UPS = 5


@never_cache
@require_http_methods(["GET", "POST"])
def signin_link(request: HttpRequest, token: str) -> HttpResponse:
    """A one-time link: GET changes nothing, so that no mail scanner uses it up."""
    if request.method == "POST":
        user = accounts.redeem_link(token)
        if user is not None:
            return _signed_in(request, user, "link", reverse("chat"))
    good = request.method == "GET" and accounts.link_is_good(token)
    return render(request, "accounts/signin_link.html", {"good": good}, status=200 if good else 410)


class CountedPasswordChange(PasswordChangeForm):
    """Whoever sits at an open browser may not guess for ever."""

    def clean_old_password(self) -> str:
        note_try("password-again", self.user)
        return str(super().clean_old_password())


class PasswordView(PasswordChangeView):
    """Asks for the old password, where there is one: who came by a link may have none yet."""

    template_name = "accounts/password.html"
    success_url = reverse_lazy("settings")

    def get(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        self._confirm()
        return super().get(request, *args, **kwargs)

    def post(self, request: HttpRequest, *args: str, **kwargs: object) -> HttpResponse:
        self._confirm()
        return super().post(request, *args, **kwargs)

    def _confirm(self) -> None:
        """Who has no password to give, and a second factor, gives a code."""
        if not self.request.user.has_usable_password():
            raise_if_reauthentication_required(self.request, app="allauth.mfa")

    def get_form_class(self) -> type[SetPasswordForm]:
        known = self.request.user.has_usable_password()
        return CountedPasswordChange if known else SetPasswordForm

    def form_valid(self, form: SetPasswordForm) -> HttpResponse:
        response = super().form_valid(form)
        audit.record("change_password", self.request.user)
        browsers.end_others(self.request.user, but=self.request.session.session_key)
        text = _("Your password is changed. Other browsers that were signed in are signed out.")
        messages.success(self.request, text)
        return response


class SignInView(LoginView):
    """By password, a bounded number of times per minute, address and name; then by the second
    factor, where there is one."""

    template_name = "accounts/signin.html"
    form_class = SignInForm
    redirect_authenticated_user = True

    def get_success_url(self) -> str:
        wanted: str = super().get_success_url()
        return reverse("chat") if wanted == self.request.path else wanted  # else it led to itself

    def get_context_data(self, **context: object) -> dict[str, object]:
        provider = single_sign_on.name() if single_sign_on.is_set() else ""
        sign_up = config().sign_up != "closed"
        return super().get_context_data(sign_up=sign_up, provider=provider, **context)

    def post(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        refused = _too_many(request, "sign-in", SIGN_INS)
        if refused is None:
            # As the form reads it: the same name in other letters is the same name.
            name = unicodedata.normalize("NFKC", request.POST.get("username", ""))
            name = name.strip().lower()[:150]
            refused = _too_many(request, "sign-in-as", SIGN_INS_AS, who=name)
        return refused or super().post(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        user = form.get_user()
        return _signed_in(self.request, user, "password", self.get_success_url())


def _signed_in(request: HttpRequest, user: User, by: str, then: str) -> HttpResponse:
    """The next step: a code, where the user has a second factor, or where they wanted to go."""
    record_authentication(request, user, by)
    return perform_login(request, user, redirect_url=then)


@never_cache
@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
def sign_up(request: HttpRequest) -> HttpResponse:
    """An account of one's own, where the installation has that; one that waits for an admin, where
    it says so."""
    mode = config().sign_up
    if mode == "closed":
        raise Http404
    form = UserForm(request.POST or None)
    form.fields["password"].help_text = ""
    if request.method == "POST":
        refused = _too_many(request, "sign-up", SIGN_UPS)
        if refused is not None:
            return refused
        if form.is_valid():
            role = Role.PENDING if mode == "pending" else Role.USER
            try:
                user = accounts.add_user(**form.cleaned_data, role=role)
            except ServiceError as exc:
                form.add_error(None, str(exc))
            else:
                login(request, user, backend=BACKEND)
                return redirect("chat")
    context = {"form": form, "waits": mode == "pending"}
    return render(request, "accounts/signup.html", context, status=422 if form.errors else 200)


def _too_many(
    request: HttpRequest, what: str, most: int, who: str | None = None
) -> HttpResponse | None:
    """The answer to an address, or tries at a name, that are too many; None while they are not."""
    try:
        note_attempt(what, request.META.get("REMOTE_ADDR", "") if who is None else who, most)
    except Refused as exc:
        response = render(request, "429.html", {"words": str(exc)}, status=429)
        response["Retry-After"] = exc.headers["Retry-After"]
        return response
    return None


@never_cache
@login_required
@require_safe
def effective_settings(request: HttpRequest) -> HttpResponse:
    """What this installation is set to; secrets are hidden."""
    if not request.user.is_superuser:
        raise PermissionDenied
    return render(request, "accounts/effective.html", {"settings": effective()})


@never_cache
@login_required
@require_safe
def settings(request: HttpRequest) -> HttpResponse:
    return _settings_page(request)


@login_required
@posted_from("settings")
def set_consent(request: HttpRequest) -> HttpResponse:
    form = ConsentForm(request.POST)
    if not form.is_valid():
        return _settings_page(request, consent_form=form)
    accounts.set_consent(user=request.user, **form.cleaned_data)
    messages.success(request, _("Saved. It holds from now on."))
    return redirect("settings")


@login_required
@posted_from("settings")
def set_asking(request: HttpRequest) -> HttpResponse:
    form = AskingForm(request.POST)
    if not form.is_valid():
        return _settings_page(request, asking_form=form)
    accounts.set_asking(user=request.user, **form.cleaned_data)
    messages.success(request, _("Saved. Your next message is asked so."))
    return redirect("settings")


@never_cache
@login_required
@posted_from("settings")
def make_key(request: HttpRequest) -> HttpResponse:
    """Renders the key instead of redirecting: its text is kept nowhere else."""
    form = KeyForm(request.POST)
    if not form.is_valid():
        return _settings_page(request, key_form=form)
    try:
        key, plain = accounts.make_key(
            user=request.user, **form.cleaned_data, most=accounts.MOST_KEYS
        )
    except ServiceError as exc:
        form.add_error(None, str(exc))
        return _settings_page(request, key_form=form)
    return _settings_page(request, new_key=key, plain=plain)


@login_required
@posted_from("settings")
def revoke_key(request: HttpRequest, key_id: int) -> HttpResponse:
    if accounts.revoke_key(user=request.user, key_id=key_id):
        messages.success(request, _("The key is revoked. Programs that use it are shut out now."))
    return redirect("settings")


@login_required
@posted_from("settings")
def delete_account(request: HttpRequest) -> HttpResponse:
    """For good; typing the own name is the confirmation."""
    if request.POST.get("name", "").strip() != request.user.get_username():
        messages.error(request, _("Nothing is deleted: that was not your username."))
        return redirect("settings")
    try:
        erasure.erase_user(request.user)
    except ServiceError as exc:
        messages.error(request, str(exc))
        return redirect("settings")
    logout(request)
    messages.success(request, _("Your account is closed, and what was yours is being erased."))
    return redirect("signin")


@sensitive_post_parameters("password")
@login_required
@posted_from("settings")
def add_user(request: HttpRequest) -> HttpResponse:
    if not request.user.is_superuser:
        raise PermissionDenied
    form = UserForm(request.POST)
    if form.is_valid():
        try:
            user = accounts.add_user(**form.cleaned_data)
        except ServiceError as exc:
            form.add_error(None, str(exc))
        else:
            messages.success(request, _("%(name)s can sign in now.") % {"name": user.username})
            return redirect("settings")
    return _settings_page(request, user_form=form)


def _settings_page(request: HttpRequest, **context: object) -> HttpResponse:
    """The page with whatever a form on it has to say; other forms are fresh."""
    defaults: dict[str, object] = {
        "consent_form": ConsentForm(initial=model_to_dict(request.user, ConsentForm.base_fields)),
        "asking_form": AskingForm(initial=model_to_dict(request.user, AskingForm.base_fields)),
        "key_form": KeyForm(),
        "user_form": UserForm(),
        "keys": [(key, limits_of(key)) for key in request.user.api_keys.order_by("-id")],
        "judge": judge_status(request.user),
        "reads": reads_of(request.user)[:10],
        "quotas": _quotas(request.user),
        "base_url": request.build_absolute_uri("/v1"),
    }
    wrong = any(getattr(form, "errors", None) for form in context.values())
    return render(
        request, "accounts/settings.html", {**defaults, **context}, status=422 if wrong else 200
    )


def _quotas(user: User) -> list[tuple[str, quotas.Quota, str, str]]:
    """What is used of each limit, in words and numbers; an empty limit is none."""

    def row(
        label: str, quota: quotas.Quota, unit: str = "%(n)s"
    ) -> tuple[str, quotas.Quota, str, str]:
        limit = unit % {"n": counted(quota.limit)} if quota.limit else ""
        return label, quota, unit % {"n": counted(quota.used)}, limit

    return [
        row(_("Tokens today"), quotas.tokens_today(user)),
        row(_("Minutes of training this week"), quotas.training_this_week(user)),
        row(_("Versions kept"), quotas.versions_kept(user)),
        row(_("Disk of your versions"), quotas.disk(user), _("%(n)s MB")),
    ]
