"""The one way into the audit log. Texts and secrets have no business in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allauth.account.internal.flows.login import get_authentication_records
from django.contrib.auth.signals import user_logged_in
from django.db.models import Model
from django.dispatch import receiver
from django.http import HttpRequest

from clawweb import acting
from clawweb.models import AuditEvent, User

LONGEST_NAME = AuditEvent._meta.get_field("object_id").max_length  # a username may be longer
SYSTEM = "system"  # a command in the terminal, or a sweep


def record(
    action: str,
    on: Model,
    *,
    actor: User | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """That `action` (verb_noun) was done to a row, by whoever is acting; `actor` where the request
    does not know yet.

    `before` and `after` hold states and choices, never what somebody said, wrote or signs in with.
    Call it inside the transaction of the act.
    """
    who = actor or acting.actor()
    AuditEvent.objects.create(
        actor=who,
        actor_name=who.get_username() if who else SYSTEM,
        subject=_subject(on),
        action=action,
        kind=on._meta.model_name,
        object_id=_name(on)[:LONGEST_NAME],
        before=dict(before or {}),
        after=dict(after or {}),
        request_id=acting.request_id(),
    )


def _subject(on: Model) -> User | None:
    """Whose it is."""
    owner = on if isinstance(on, User) else getattr(on, "user", None)
    return owner if isinstance(owner, User) and owner.pk else None


def _name(on: Model) -> str:
    """What people call the row: not its title, which its user wrote."""
    for name in ("public_id", "username", "slug"):
        if hasattr(on, name):
            return str(getattr(on, name))
    return on.name if on._meta.model_name == "adapterversion" else str(on.pk)  # type: ignore[attr-defined]


@receiver(user_logged_in)
def _signed_in(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    by = [row["method"] for row in get_authentication_records(request, user)]
    record("sign_in", user, actor=user, after={"by": by})
