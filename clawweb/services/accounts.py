"""Users, keys and one-time links. Secrets are hashed; the plain text is returned once."""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
from collections.abc import Sequence
from datetime import timedelta

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb.events import changed
from clawweb.models import SCOPES, ApiKey, Consent, ReplyLength, Role, SignInLink, User
from clawweb.services import audit, jobs
from clawweb.services.errors import ServiceError

UI_SCOPES = ("chat", "feedback")
CLI_SCOPES = tuple(scope for scope in SCOPES if scope != "export")
LINK_MINUTES = 15
MOST_INSTRUCTIONS = 2000  # characters; the conversation needs its room
MOST_TEMPERATURE = 1.5
MOST_KEYS = 50  # valid ones that people may make for themselves: limits are per key


def _hash(secret: str) -> str:
    # The secrets are 256 random bits: a plain hash cannot be guessed back, and lookups stay
    # indexed.
    return hashlib.sha256(secret.encode()).hexdigest()


def make_key(
    *,
    user: User,
    name: str,
    scopes: Sequence[str] = UI_SCOPES,
    days: int | None = None,
    most: int | None = None,
) -> tuple[ApiKey, str]:
    """A new key and its plain text, which is kept nowhere; None days = until it is revoked.
    ServiceError for unknown scopes, or where the user has `most` valid keys already."""
    unknown = set(scopes) - set(SCOPES)
    if unknown or not scopes:
        raise ServiceError(f"scopes are some of {', '.join(SCOPES)}, not {sorted(unknown)}")
    plain = f"claw-{secrets.token_urlsafe(32)}"
    with transaction.atomic():
        if most is not None:
            User.objects.select_for_update().get(pk=user.pk)  # of two at once one is the last
            if _valid_keys().filter(user=user).count() >= most:
                text = _("You have %(n)s valid keys already. Revoke one that nothing uses.")
                raise ServiceError(text % {"n": most})
        key = ApiKey.objects.create(
            user=user,
            name=name.strip()[:80] or "key",
            hashed=_hash(plain),
            tail=plain[-4:],
            scopes=list(scopes),
            expires_at=None if days is None else timezone.now() + timedelta(days=days),
        )
        audit.record("make_key", key, after={"scopes": key.scopes, "days": days})
    return key, plain


def key_for(plain: str) -> ApiKey | None:
    """The valid key with this text, of an active user; notes that it was used (once a minute)."""
    now = timezone.now()
    key = (
        _valid_keys()
        .select_related("user")
        .filter(hashed=_hash(plain), user__is_active=True)
        .exclude(user__role=Role.PENDING, user__is_superuser=False)
        .first()
    )
    if key and (key.last_used_at is None or now - key.last_used_at > timedelta(minutes=1)):
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
    return key


def _valid_keys() -> QuerySet[ApiKey]:
    unended = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return ApiKey.objects.filter(unended, revoked_at=None)


@transaction.atomic
def revoke_key(*, user: User, key_id: int) -> bool:
    """Whether a key of this user was still valid and is now revoked."""
    mine = ApiKey.objects.filter(user=user, pk=key_id)
    revoked = mine.filter(revoked_at=None).update(revoked_at=timezone.now())
    if revoked:
        audit.record("revoke_key", mine.get())
    return bool(revoked)


def refuse_taken(user: User) -> None:
    """ServiceError when somebody else has this name, also in other letters."""
    others = User.objects.exclude(pk=user.pk).filter(username__iexact=user.username)
    if taken := others.first():
        raise ServiceError(_("There is already a user called %(name)s.") % {"name": taken.username})


def add_user(*, username: str, password: str | None, role: str = Role.USER) -> User:
    """A new user; ServiceError says what is wrong with the name or the password. Without one (None)
    they sign in by links."""
    # As the form reads it where somebody signs in: nobody could under another.
    user = User(username=User.normalize_username(username).strip(), role=role)
    try:
        user.clean_fields(exclude=["password"])
        if password is not None:
            validate_password(password, user)
    except ValidationError as exc:
        raise ServiceError(" ".join(exc.messages)) from exc
    refuse_taken(user)
    user.set_password(password)
    with transaction.atomic():
        user.save()
        audit.record("add_user", user, after={"role": user.role})
    return user


def add_user_from_elsewhere(*, username: str, role: str) -> User:
    """A new user without a password, who signs in at the provider of the settings; of that name, or
    one like it: a name that another has is never given twice."""
    wanted = re.sub(r"[^\w.@+-]", "", User.normalize_username(username))[:140] or "user"
    user = User(username=_free_name(wanted), role=role)
    user.set_unusable_password()
    with transaction.atomic():
        user.save()
        audit.record("add_user", user, actor=user, after={"role": user.role, "by": "provider"})
    return user


def set_consent(
    *,
    user: User,
    consent: str,
    prompt_hints: bool = False,
    judge_elsewhere: bool | None = None,
    reviewers_may_read: bool | None = None,
) -> None:
    """What may happen to the user's chats, whether hints hold before they are learned, and whether
    a judge elsewhere or reviewers may read (None leaves that as it is)."""
    if consent not in Consent.values:
        raise ServiceError(f"consent is one of {', '.join(Consent.values)}")
    may_read = {"judge_elsewhere": judge_elsewhere, "reviewers_may_read": reviewers_may_read}
    told = {name: value for name, value in may_read.items() if value is not None}
    choices = {"consent": consent, "prompt_hints": prompt_hints, **told}
    with transaction.atomic():
        before = User.objects.filter(pk=user.pk).values(*choices).get()
        User.objects.filter(pk=user.pk).update(**choices)
        audit.record("change_consent", user, before=before, after=choices)
        if consent != Consent.TRAIN:
            jobs.withdraw_consent(user)


def set_asking(
    *, user: User, instructions: str, reply_length: str, temperature: float | None
) -> None:
    """How the chat asks from its next message on. Empty values are the installation's own."""
    if len(instructions) > MOST_INSTRUCTIONS:
        raise ServiceError(
            _("Instructions have at most %(n)s characters.") % {"n": MOST_INSTRUCTIONS}
        )
    if reply_length and reply_length not in ReplyLength.values:
        raise ServiceError(f"a reply's length is one of {', '.join(ReplyLength.values)}")
    if temperature is not None and not 0 <= temperature <= MOST_TEMPERATURE:  # also catches NaN
        raise ServiceError(
            _("A temperature is between 0 and %(most)s.") % {"most": MOST_TEMPERATURE}
        )
    if temperature is not None:
        temperature = round(temperature, 2)  # the server takes less than 0.01 for 0.01
    User.objects.filter(pk=user.pk).update(
        instructions=instructions.strip(), reply_length=reply_length, temperature=temperature
    )


@transaction.atomic
def pause_learning(*, user: User, paused: bool) -> None:
    """No job starts by itself, or again by itself; "Train now" works either way."""
    User.objects.filter(pk=user.pk).update(learning_paused=paused)
    changed(user.pk, "job", "learning")


def make_link(user: User) -> str:
    """The path of a link that signs `user` in once within 15 minutes."""
    token = secrets.token_urlsafe(32)
    with transaction.atomic():
        SignInLink.objects.create(
            user=user,
            hashed=_hash(token),
            expires_at=timezone.now() + timedelta(minutes=LINK_MINUTES),
        )
        audit.record("make_link", user)
    return f"/signin/{token}/"


def redeem_link(token: str) -> User | None:
    """The link's user, if it is unused and young; it is used up by this."""
    now = timezone.now()
    used = SignInLink.objects.filter(hashed=_hash(token), used_at=None, expires_at__gt=now).update(
        used_at=now
    )
    if not used:
        return None
    user = SignInLink.objects.select_related("user").get(hashed=_hash(token)).user
    return user if user.is_active else None


def link_is_good(token: str) -> bool:
    """Whether `redeem_link` would work now; uses nothing up."""
    return SignInLink.objects.filter(
        hashed=_hash(token), used_at=None, expires_at__gt=timezone.now()
    ).exists()


@transaction.atomic
def first_admin_link() -> str | None:
    """A sign-in link for the first admin, made when there is none; None once an admin has signed
    in."""
    admins = User.objects.filter(is_superuser=True, is_active=True)
    if admins.exclude(last_login=None).exists():
        return None
    admin = admins.order_by("id").first() or User.objects.create_superuser(_free_name("admin"))
    return make_link(admin)


def _free_name(wanted: str) -> str:
    """That, or with a number; whoever is called "admin" and is none does not become one by it."""
    names = itertools.chain([wanted], (f"{wanted}-{n}" for n in itertools.count(2)))
    return next(name for name in names if not User.objects.filter(username__iexact=name).exists())
