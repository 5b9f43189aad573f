"""How one signs in, and where one is signed in."""

from __future__ import annotations

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from clawweb.config import config
from clawweb.services import browsers
from clawweb.views import single_sign_on
from clawweb.views.problems import posted_from


@never_cache
@login_required
@require_safe
def security(request: HttpRequest) -> HttpResponse:
    factors = {row.type: row for row in Authenticator.objects.filter(user=request.user)}
    codes = factors.get(Authenticator.Type.RECOVERY_CODES)
    context = {
        "provider": single_sign_on.name() if single_sign_on.is_set() else "",
        "connected": SocialAccount.objects.filter(
            user=request.user, provider=single_sign_on.provider_id()
        ).exists(),
        "factor": factors.get(Authenticator.Type.TOTP),
        "codes_left": None if codes is None else bin(~codes.data["used_mask"] & 0x3FF).count("1"),
        "may_remove": not (request.user.is_superuser and config().admin_second_factor),
        "browsers": browsers.browsers_of(request.user, request.session.session_key),
    }
    return render(request, "accounts/security.html", context)


@login_required
@posted_from("security")
def end_browser(request: HttpRequest, browser_id: int) -> HttpResponse:
    if not browsers.end(request.user, browser_id):
        raise Http404
    messages.success(request, _("That browser is signed out."))
    return redirect("security")


@login_required
@posted_from("security")
def end_others(request: HttpRequest) -> HttpResponse:
    if browsers.end_others(request.user, but=request.session.session_key):
        messages.success(request, _("All other browsers are signed out."))
    return redirect("security")
