"""Second factors, which allauth keeps: sealed secrets, codes that are good once, an end to them.

A code is spent in the row: two processes, or a Valkey that is down, make no second use of it.
"""

from __future__ import annotations

import base64
import hashlib

from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import (
    format_hotp_value,
    hotp_value,
    yield_hotp_counters_from_time,
)
from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.db import transaction

from clawweb.models import User
from clawweb.services import audit


class Unreadable(Exception):
    """The secret was sealed under another secret key."""


def seal(text: str) -> str:
    return _box().encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """What `seal` was given; Unreadable, and never something else, under another key."""
    try:
        return _box().decrypt(sealed.encode()).decode()
    except InvalidToken as exc:
        raise Unreadable from exc


def _box() -> Fernet:
    key = hashlib.sha256(b"second factor:" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(key))


@transaction.atomic
def spend_code(factor: Authenticator, code: str) -> bool:
    """Whether this right code of an app is newer than the last that was taken, and is taken now."""
    row = Authenticator.objects.select_for_update().get(pk=factor.pk)
    secret = unseal(row.data["secret"])
    typed = "".join(code.split())
    steps = [
        step
        for step in yield_hotp_counters_from_time()
        if format_hotp_value(hotp_value(secret, step)) == typed
    ]
    if not steps or steps[-1] <= row.data.get("last_step", 0):
        return False
    row.data["last_step"] = steps[-1]
    row.save(update_fields=["data"])
    return True


@transaction.atomic
def remove(user: User) -> bool:
    """Whether the user had a second factor; it is gone, and its recovery codes with it."""
    removed, _ = Authenticator.objects.filter(user=user).delete()
    if removed:
        audit.record("remove_second_factor", user)
    return bool(removed)
