"""Writes of sessions: where a request belongs, opening and closing them."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from clawweb.models import ApiKey, ChatSession, Turn, User
from clawweb.selectors.chat import turn_that_ends_with
from rollouts.types import Message


def open_session(
    *, user: User, external_id: str | None = None, api_key: ApiKey | None = None
) -> ChatSession:
    """The user's session of that name, made when it is not there."""
    if external_id is None:
        return ChatSession.objects.create(user=user, api_key=api_key)
    own = ChatSession.objects.filter(user=user).filter(
        Q(public_id=external_id) | Q(external_id=external_id)
    )
    found = own.first()
    if found is not None:
        return found
    try:
        with transaction.atomic():
            return ChatSession.objects.create(user=user, external_id=external_id, api_key=api_key)
    except IntegrityError:  # another request of this caller made it in the meantime
        return own.get()


def place(
    *,
    user: User,
    api_key: ApiKey | None,
    name: str | None,
    messages: Sequence[Message],
    turn_type: str = "main",
) -> tuple[ChatSession, Turn | None, list[Message]]:
    """Where a stateless request belongs: its session, the turn it follows, and what is new in
    it."""
    session = open_session(user=user, external_id=name, api_key=api_key) if name else None
    key_id = api_key.pk if api_key else None
    parent, length = turn_that_ends_with(
        user, messages, session=session, api_key_id=key_id, turn_type=turn_type
    )
    if session is None:
        session = parent.session if parent else open_session(user=user, api_key=api_key)
    return session, parent, list(messages[length:])


def close_session(session: ChatSession) -> None:
    ChatSession.objects.filter(pk=session.pk, closed_at=None).update(closed_at=timezone.now())
