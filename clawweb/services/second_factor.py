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
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.db import transaction

from clawweb.models import User
from clawweb.services import audit

SEALED = ("secret", "seed")  # of an app, and of recovery codes


class Unreadable(Exception):
    """The secret was sealed under another secret key."""


def seal(text: str) -> str:
    return _box().encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """What `seal` was given, also under the key before this one (CLAWWEB_OLD_SECRET_KEY);
    Unreadable, and never something else, under another."""
    try:
        return _box().decrypt(sealed.encode()).decode()
    except InvalidToken as exc:
        raise Unreadable from exc


def _box() -> MultiFernet:
    return MultiFernet(
        [_one_box(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    )


def _one_box(key: str) -> Fernet:
    hashed = hashlib.sha256(b"second factor:" + key.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(hashed))


def seal_anew() -> int:
    """All that the old key sealed, under the one in use: the old one is needed no more. How many
    rows stay that neither key opens."""
    shut = 0
    for pk in Authenticator.objects.values_list("pk", flat=True):
        with transaction.atomic():
            row = Authenticator.objects.select_for_update().get(pk=pk)
            try:
                sealed = {name: row.data[name] for name in SEALED if name in row.data}
                for name, text in sealed.items():
                    row.data[name] = _box().rotate(text.encode()).decode()
            except InvalidToken:
                shut += 1
                continue
            if settings.SECRET_KEY_FALLBACKS:
                row.save(update_fields=["data"])
    return shut


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
