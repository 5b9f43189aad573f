"""Writes of stateless requests: the turns of one, opened once however often it is sent.

Two marks say that a request has been sent before: an `Idempotency-Key`, and the retry count that
the official SDKs send. Both lead to the turns that are there, if their replies are whole or still
being written. The same words without a mark ask for another reply: a sibling.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

from django.db import IntegrityError
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb.models import ApiKey, Turn, TurnState
from clawweb.selectors.chat import begins_anew, input_of
from clawweb.selectors.placing import plain
from clawweb.services import chat, sessions, waiting
from clawweb.services.errors import OtherRequest, QuotaReached
from clawweb.services.sessions import Place
from rollouts.types import PLAIN, Message, ReplyShape, SamplingParams

RETRIED_WITHIN = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks for; each of `params` is a choice, and a turn."""

    key: ApiKey  # read for this request, with its user
    messages: Sequence[Message]
    params: Sequence[SamplingParams]
    asked: str = "agent"
    session: str | None = None  # its name
    turn_type: str = "main"
    turn_type_from: str = ""
    done: bool = False  # the session ends with this request
    once: str | None = None  # an Idempotency-Key
    retried: bool = False
    shape: ReplyShape = PLAIN

    def digest(self) -> str:
        """Names what is asked for. Requests of one key with the same name are the same request."""
        asked = [
            self.key.pk,
            self.session,
            self.asked,
            [asdict(params) for params in self.params],
            asdict(self.shape),
            [plain(message) for message in self.messages],
        ]
        text = json.dumps(asked, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def open_request(request: Request) -> list[Turn]:
    """A turn for each choice, the choices being siblings: those that are there, or new ones."""
    digest = request.digest()
    if request.once is not None:
        turns = _open_once(request, digest)
    else:
        tried = _tried_before(request, digest) if request.retried else []
        turns = _joined(tried, of=len(request.params))
        if not turns:
            turns = _open_all(request, _after(tried) or _place(request), digest)
    if request.done:
        sessions.close_session(turns[0].session)
    return turns


def _place(request: Request) -> Place:
    if request.session:  # whose name would open a session that stays empty
        waiting.check_room(request.key.user)
    return sessions.place(
        user=request.key.user,
        api_key=request.key,
        name=request.session,
        messages=request.messages,
        turn_type=request.turn_type,
    )


def _open_all(request: Request, place: Place, digest: str) -> list[Turn]:
    """A turn for each choice, or none: those opened before one is refused are not written."""
    turns: list[Turn] = []
    try:
        for params in request.params:
            turns.append(_open(request, place, params, digest))
    except QuotaReached:
        for turn in turns:
            hang_up(turn)
        raise
    return turns


def _open(
    request: Request,
    place: Place,
    params: SamplingParams,
    digest: str,
    client_id: str | None = None,
) -> Turn:
    return chat.open_turn(
        session=place.session,
        parent=place.parent,
        messages=place.messages,
        anew=place.anew,
        user=request.key.user,
        params=params,
        asked=request.asked,
        turn_type=request.turn_type,
        turn_type_from=request.turn_type_from,
        source="api",
        client_id=client_id,
        request_hash=digest,
        shape=request.shape,
    )


def _tried_before(request: Request, digest: str) -> list[Turn]:
    """The turns of the try before this one, the newest first."""
    since = timezone.now() - RETRIED_WITHIN
    rows = (
        Turn.objects.filter(session__user=request.key.user, source="api", request_hash=digest)
        .select_related("session")
        .order_by("-id")[: len(request.params)]
    )
    return [row for row in rows if row.finished_at is None or row.finished_at > since]


def _joined(tried: Sequence[Turn], *, of: int) -> list[Turn]:
    """These turns as the choices of this request; empty when one of them is not to be had."""
    joined = [turn for turn in tried if join(turn)]
    if len(joined) == of:
        return joined[::-1]
    for turn in joined:
        hang_up(turn)
    return []


def _after(tried: Sequence[Turn]) -> Place | None:
    """Beside a try before this one: without a name each would open a session of its own."""
    if not tried or not tried[0].recorded or tried[0].session.deleted_at is not None:
        return None
    return _beside(tried[0])


def _open_once(request: Request, digest: str) -> list[Turn]:
    """The turns under the request's Idempotency-Key; what is missing of them is opened.

    The turns' ids make two processes that are sent the same request agree: the one that writes
    second finds the first one's turns. A turn without a whole reply gives its id to a sibling.
    """
    ids = [_client_id(request, index) for index in range(len(request.params))]
    there = _under(request, ids)
    if any(turn.request_hash not in ("", digest) for turn in there.values()):
        raise OtherRequest(_("This Idempotency-Key was sent with another request. Use a new one."))
    in_vain = [turn for turn in there.values() if not join(turn)]
    for turn in in_vain:
        Turn.objects.filter(pk=turn.pk, client_id=turn.client_id).update(client_id=None)
        del there[str(turn.client_id)]
    if len(there) == len(ids):
        return [there[client_id] for client_id in ids]
    place = _after([*there.values(), *in_vain]) or _place(request)
    turns = []
    for client_id, params in zip(ids, request.params, strict=True):
        turn = there.get(client_id)
        if turn is None:
            try:
                turn = _open(request, place, params, digest, client_id)
            except IntegrityError:  # the same request came by another process in the meantime
                turn = _under(request, ids)[client_id]
                join(turn)
                # What the other has not opened yet goes beside it, and not into a session of ours.
                beside = replace(place, session=turn.session, parent=turn.parent)
                place = _beside(turn) if turn.recorded else beside
            except QuotaReached:
                for earlier in {row.pk: row for row in [*there.values(), *turns]}.values():
                    hang_up(earlier)
                raise
        turns.append(turn)
    return turns


def _client_id(request: Request, index: int) -> str:
    name = hashlib.sha256(str(request.once).encode()).hexdigest()[:32]
    return f"{request.key.pk}-{name}-{index}"


def _under(request: Request, ids: Sequence[str]) -> dict[str, Turn]:
    own = Turn.objects.filter(session__user=request.key.user, source="api")
    rows = own.filter(client_id__in=ids).select_related("session")
    return {str(row.client_id): row for row in rows}


def _beside(turn: Turn) -> Place:
    """The place of a sibling."""
    return Place(
        session=turn.session,
        parent=turn.parent,
        messages=input_of(turn),
        anew=begins_anew(turn),
    )


def join(turn: Turn) -> bool:
    """Wait for this reply too. False when it is not to be had whole: it failed, or is stopping, or
    its chat was deleted since."""
    unfinished = Turn.objects.filter(
        pk=turn.pk,
        state__in=[TurnState.PENDING, TurnState.STREAMING],
        stop_requested=False,
        readers__gt=0,
    )
    if unfinished.update(readers=F("readers") + 1):
        return True
    turn.refresh_from_db(fields=["state"])
    return turn.state == TurnState.COMPLETE and turn.session.deleted_at is None


def hang_up(turn: Turn) -> None:
    """A client is gone. The reply is stopped when nobody else waits for it: from then on nobody
    can join it either."""
    Turn.objects.filter(pk=turn.pk, readers__gt=0).update(readers=F("readers") - 1)
    if Turn.objects.filter(pk=turn.pk, readers=0).exists():
        chat.request_stop(turn)
