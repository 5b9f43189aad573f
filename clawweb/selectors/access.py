"""Whose things a user may see or act on, beside their own. What a role may do is on `User`.

An object that is not in these sets is not there for the user: 404, not 403.
"""

from __future__ import annotations

from allauth.mfa.models import Authenticator
from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from clawweb.config import config
from clawweb.models import AuditEvent, ChatSession, User

READ = "read_session"  # what the audit calls it


def commanded_users(user: User) -> QuerySet[User]:
    """For whom the user may start, cancel, promote and roll back."""
    return User.objects.all() if user.runs_training else User.objects.filter(pk=user.pk)


def readable_sessions(user: User) -> QuerySet[ChatSession]:
    """Others' chats that they let a reviewer read, newest first, with `turns_main`. Not those that
    are kept out of everything else too: deleted and temporary ones."""
    if not user.may_review:
        return ChatSession.objects.none()
    granted = ChatSession.objects.filter(
        user__reviewers_may_read=True, user__is_active=True, deleted_at=None, temporary=False
    ).exclude(user=user)
    counted = granted.annotate(turns_main=Count("turns", filter=Q(turns__turn_type="main")))
    return counted.select_related("user").order_by("-updated_at", "-id")


def reads_of(user: User) -> QuerySet[AuditEvent]:
    """When somebody else read a chat of the user's, newest first, with `is_there`: whether the
    user can still look at it themselves."""
    chat = ChatSession.objects.filter(user=user, public_id=OuterRef("object_id"), deleted_at=None)
    reads = AuditEvent.objects.filter(subject=user, action=READ).exclude(actor=user)
    return reads.annotate(is_there=Exists(chat))


def has_second_factor(user: User) -> bool:
    return Authenticator.objects.filter(user=user, type=Authenticator.Type.TOTP).exists()


def lacks_second_factor(user: User) -> bool:
    """An admin who must have one here, and has none yet: lets in nowhere but to set one up."""
    return user.is_superuser and config().admin_second_factor and not has_second_factor(user)
