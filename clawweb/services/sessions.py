"""Writes of sessions: where a request belongs, opening and closing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from clawweb.config import config
from clawweb.models import ApiKey, ChatSession, Turn, TurnState, User
from clawweb.selectors.chat import begins_anew
from clawweb.selectors.placing import find_turn
from rollouts.types import Message


def open_session(
    *,
    user: User,
    external_id: str | None = None,
    api_key: ApiKey | None = None,
    temporary: bool = False,
) -> ChatSession:
    """The user's session of that name, made when it is not there. A temporary one keeps no text.

    A client may go on under the id of a session that is deleted: then that is the new one's name,
    until the deletion is undone. So a session's own id comes before a name.
    """
    if external_id is None:
        return ChatSession.objects.create(user=user, api_key=api_key, temporary=temporary)
    own = ChatSession.objects.filter(user=user)
    named = own.filter(external_id=external_id)
    found = own.filter(public_id=external_id, deleted_at=None).first() or named.first()
    if found is not None and found.deleted_at is not None:  # its name is free again
        named.update(external_id=None)
        found = None
    if found is not None:
        return found
    try:
        with transaction.atomic():
            return ChatSession.objects.create(user=user, external_id=external_id, api_key=api_key)
    except IntegrityError:  # another request of this caller made it in the meantime
        return named.get()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stateless request belongs: its session, the turn it follows, what is new in it.

    `anew` says that the client's conversation is not what ours was up to there (it has dropped,
    rewritten or summarised some of it, or still has what a chat's memory dropped): then `messages`
    are all that it sent, and the model is asked just that.
    """

    session: ChatSession
    parent: Turn | None
    messages: list[Message]
    anew: bool = False


def place(
    *,
    user: User,
    api_key: ApiKey | None,
    name: str | None,
    messages: Sequence[Message],
    turn_type: str = "main",
) -> Place:
    """Find a request's place. A name names its session; without one its key's conversation that the
    messages go on from; what goes on from none opens a session, saved with its first turn: two
    people may begin alike, and nobody's words go into a stranger's conversation. The rules are in
    `find_turn`."""
    session = open_session(user=user, external_id=name, api_key=api_key) if name else None
    key_id = api_key.pk if api_key else None
    found = find_turn(user, messages, session=session, api_key_id=key_id, turn_type=turn_type)
    if found is None:
        session = session or ChatSession(user=user, api_key=api_key)
        return Place(session=session, parent=None, messages=list(messages))
    goes_on = found.same and not _has_moved(found.turn)
    return Place(
        session=session or found.turn.session,
        parent=found.turn,
        messages=list(messages[found.length :] if goes_on else messages),
        anew=not goes_on,
    )


def _has_moved(turn: Turn) -> bool:
    """Whether memory has dropped the beginning of the conversation, in a browser: who sends it all
    the same is to be asked about all of it."""
    return turn.context_start is not None and not begins_anew(turn.context_start)


def close_session(session: ChatSession) -> None:
    """Its client says that it is over. What is said in it later opens it again."""
    ChatSession.objects.filter(pk=session.pk).update(closed_at=timezone.now(), done=True)


def close_idle() -> int:
    """Close the sessions in which nothing was said for so long; how many. Ratings are still taken,
    and what is said later opens a session again."""
    since = timezone.now() - timedelta(seconds=config().session_timeout)
    busy = Turn.objects.filter(state__in=[TurnState.PENDING, TurnState.STREAMING])
    idle = ChatSession.objects.filter(closed_at=None, updated_at__lt=since)
    return idle.exclude(pk__in=busy.values("session_id")).update(closed_at=timezone.now())
