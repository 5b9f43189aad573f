"""Who is calling: a bearer key with a scope, or (under /api) a browser session with CSRF token."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import QuerySet
from django.http import HttpRequest
from django.middleware.csrf import CsrfViewMiddleware
from ninja.errors import HttpError

from clawweb.acting import bearer
from clawweb.limits import note_wrong_key
from clawweb.models import ApiKey, User
from clawweb.selectors.access import commanded_users, lacks_second_factor
from clawweb.services.accounts import key_for


def lacks(key: ApiKey, scope: str) -> str:
    """What whoever sends the key is told. A key's scopes are for good: it takes another key."""
    scopes = ",".join([*key.scopes, scope])
    return (
        f"This key lacks the scope {scope!r}; it has {', '.join(key.scopes)}. Make one that has it "
        f"under Settings, or by `manage.py createkey USER --scopes {scopes}`."
    )


class Scoped:
    """Ninja's auth callable: who may make a call that needs `scope`. A session may do all."""

    # For /api/docs, and for what makes clients out of /api/openapi.json
    openapi_security_schema: ClassVar = {
        "type": "http",
        "scheme": "bearer",
        "description": "A key from Settings. On this page, who is signed in needs none.",
    }

    def __init__(self, scope: str) -> None:
        self.scope = scope

    def __call__(self, request: HttpRequest) -> User | None:
        if token := bearer(request):
            key = key_for(token)
            if key is None:
                note_wrong_key(request.META.get("REMOTE_ADDR", ""))
                return None
            if self.scope not in key.scopes:
                raise HttpError(403, lacks(key, self.scope))
            request.api_key = key  # type: ignore[attr-defined]
            return key.user
        # Anything else there may be a proxy's own password, which a browser sends along.
        user = request.user
        if not user.is_authenticated:
            if request.headers.get("Authorization"):
                note_wrong_key(request.META.get("REMOTE_ADDR", ""))
            return None
        if user.is_pending:
            raise HttpError(403, "An admin has not let you in yet.")
        if lacks_second_factor(user):
            raise HttpError(403, "Admins need a second factor here: set one up under Settings.")
        _check_csrf(request)
        return user  # type: ignore[return-value]  # AUTH_USER_MODEL is ours


def _check_csrf(request: HttpRequest) -> None:
    refused = CsrfViewMiddleware(lambda _: None).process_view(request, lambda _: None, (), {})  # type: ignore[arg-type, return-value]
    if refused is not None:
        raise HttpError(403, "The CSRF token is missing or wrong: send it as X-CSRFToken.")


def caller(request: HttpRequest) -> User:
    """The user whom `Scoped` let in."""
    user: User = request.auth  # type: ignore[attr-defined]
    return user


def key_of(request: HttpRequest) -> ApiKey | None:
    return getattr(request, "api_key", None)


def commanded(request: HttpRequest) -> QuerySet[User]:
    """For whom the caller may train, promote and roll back. A key reaches its own user's alone, so
    that a lost one of an admin's costs no more."""
    user = caller(request)
    return User.objects.filter(pk=user.pk) if key_of(request) else commanded_users(user)
