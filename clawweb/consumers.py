"""Websockets: commands in, text and nudges out. All state is in rows; a socket can die at any
time."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from contextlib import aclosing
from typing import Any

from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host
from django.utils import translation
from django.utils.translation import gettext as _

from clawweb import events, tasks
from clawweb.models import ChatSession, Turn, User
from clawweb.orm import in_db
from clawweb.records import storable
from clawweb.selectors.access import lacks_second_factor
from clawweb.selectors.chat import (
    begins_anew,
    input_of,
    session_json,
    session_of,
    turn_json,
    turn_of,
)
from clawweb.sentences import counted
from clawweb.services import chat
from clawweb.services.browsers import still_signed_in
from clawweb.services.errors import ServiceError
from clawweb.services.outage import outage
from clawweb.streams import follow
from rollouts.types import Message

log = logging.getLogger(__name__)

MAX_TEXT = 100_000
MAX_CLIENT_ID = 64
SIGNED_OUT = 4401
WRONG_ORIGIN = 4403


class NudgeConsumer(AsyncJsonWebsocketConsumer):
    """Tells a signed-in browser what changed. `/ws/nudges/`"""

    groups: list[str] = []

    async def connect(self) -> None:
        user = self.scope.get("user")
        translation.activate(_language_of(self.scope))  # of all that this socket is told
        refused = await self._refused(user)
        if not refused:
            self.user: User = user
            await self._join(events.group(user.pk))
            await self._hear_as_allowed()
        await self.accept()  # last: what changes once a browser sees it open, it hears
        if refused:
            await self.close(refused)  # with a code, which an open socket alone is told

    async def _refused(self, user: Any) -> int | None:
        """The code that the socket is closed with."""
        if not self._same_origin():
            return WRONG_ORIGIN
        if not (user and user.is_authenticated) or await in_db(_is_shut_out, user):
            return SIGNED_OUT
        return None

    async def _hear_as_allowed(self) -> None:
        """Everybody's jobs, for as long as this person runs training."""
        hears = events.ADMINS in self.groups
        if self.user.runs_training and not hears:
            await self._join(events.ADMINS)
        elif hears and not self.user.runs_training:
            await self._leave(events.ADMINS)

    async def _join(self, name: str) -> None:
        try:
            await self.channel_layer.group_add(name, self.channel_name)
            self.groups = [*self.groups, name]
        except Exception:  # no Valkey, no nudges: the page polls
            return

    async def _leave(self, name: str) -> None:
        self.groups = [group for group in self.groups if group != name]
        try:
            await self.channel_layer.group_discard(name, self.channel_name)
        except Exception:  # nothing is nudged then either; what comes later must not be passed on
            await self.close(SIGNED_OUT)

    def _same_origin(self) -> bool:
        """Browsers send Origin with every websocket; one from another site is not ours."""
        headers = dict(self.scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS):
            return False  # a name that somebody pointed at this address
        origin = headers.get(b"origin")
        return origin is None or origin.decode("latin-1").partition("://")[2] == host

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any
    ) -> None:
        """A frame that holds no JSON is a command that says nothing; it ends no socket."""
        try:
            content = json.loads(text_data or "")
        except (ValueError, RecursionError):
            content = None
        await self.receive_json(content, **kwargs)

    async def look_again(self, event: dict[str, Any]) -> None:
        if not await self._may_stay():
            await self.close(SIGNED_OUT)
            return
        await in_db(self.user.refresh_from_db)  # what they may do may be another
        await self._hear_as_allowed()

    async def _may_stay(self) -> bool:
        """A socket outlives the sign-in that opened it; that may have been ended elsewhere."""
        return await in_db(still_signed_in, self.scope["session"].session_key, self.user)

    async def changed(self, event: dict[str, Any]) -> None:
        await self.send_json({"type": "changed", "what": event["what"], "id": event["id"]})


class ChatConsumer(NudgeConsumer):
    """The chat page's socket: send, regenerate, stop, follow. `/ws/chat/`"""

    async def connect(self) -> None:
        self.followed: dict[str, asyncio.Task[None]] = {}
        await super().connect()

    async def disconnect(self, code: int) -> None:
        # Readers go; the generation goes on. Coming back with a cursor loses nothing.
        for task in self.followed.values():
            task.cancel()

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        commands = {
            "send": self._send,
            "regenerate": self._regenerate,
            "stop": self._stop,
            "follow": self._follow,
        }
        if not await self._may_stay():
            await self.close(SIGNED_OUT)
            return
        try:
            content = storable(content)
            command = commands.get(content.get("type", ""))
            if command is None:
                raise ServiceError(f"a message's type is one of {', '.join(commands)}")
            await command(content)
        except ServiceError as exc:
            await self._error(content, str(exc))
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
            await self._error(content, _("That message is malformed."))
        except (Turn.DoesNotExist, ChatSession.DoesNotExist):
            await self.send_json(_gone(content))
        except DatabaseError as exc:  # a socket that dies would be sent the same again and again
            out = outage(exc)
            log.warning("a command failed on the database", exc_info=None if out else exc)
            message = str(out) if out else _("That was not saved. Try again soon.")
            await self._error(content, message)

    async def _error(self, content: Any, message: str) -> None:
        await self.send_json(_refusal(content, message))

    async def _send(self, content: dict[str, Any]) -> None:
        text = str(content["text"]).strip()
        if not text:
            raise ServiceError(_("Write something first."))
        if len(text) > MAX_TEXT:
            raise ServiceError(
                _("A message has at most %(n)s characters.") % {"n": counted(MAX_TEXT)}
            )
        turn = await in_db(self._open, content, text)
        await self._announce(turn, content)
        await in_db(tasks.after_opening, turn)

    def _open(self, content: dict[str, Any], text: str) -> Turn:
        known = chat.turn_sent_as(self.user, _client_id(content))
        if known is not None:
            return known  # the browser sends again what it cannot know to have arrived
        if content.get("edits"):  # said again in other words: a sibling
            edited = turn_of(self.user, str(content["edits"]))
            said = _said_otherwise(edited, text)
            return self._opened(content, said, edited.session, edited.parent)
        name = content.get("session")
        if name:
            session = session_of(self.user, str(name))
        else:  # saved with its first turn: a refusal leaves no empty chat behind
            session = ChatSession(user=self.user, temporary=content.get("temporary") is True)
        parent = None
        if content.get("parent"):
            parent = turn_of(self.user, str(content["parent"]))
        elif session.pk:
            parent = session.turns.filter(turn_type="main").order_by("-id").first()
        if parent is not None and parent.session_id != session.pk:
            raise ServiceError(_("That reply belongs to another chat."))
        return self._opened(content, [Message(role="user", content=text)], session, parent)

    def _opened(
        self,
        content: dict[str, Any],
        messages: list[Message],
        session: ChatSession,
        parent: Turn | None,
    ) -> Turn:
        if parent is not None and not parent.is_finished:
            raise ServiceError(_("The last reply is still being written. Stop it or wait for it."))
        return chat.open_turn(
            session=session,
            parent=parent,
            messages=messages,
            client_id=_client_id(content),
        )

    async def _regenerate(self, content: dict[str, Any]) -> None:
        def again() -> Turn:
            turn = turn_of(self.user, str(content["turn"]))
            name = _name_beside(turn, _client_id(content))
            known = chat.turn_sent_as(self.user, name)
            return known or chat.regenerate(turn=turn, client_id=name, as_set_now=True)

        await self._announce(await in_db(again), content)

    async def _announce(self, turn: Turn, content: dict[str, Any]) -> None:
        body, session = await in_db(lambda: (turn_json(turn), session_json(turn.session)))
        await self.send_json(
            {
                "type": "turn",
                "turn": _plain(body),
                "session": _plain(session),
                "client_id": content.get("client_id"),
            }
        )
        self._read(turn, 0)

    async def _stop(self, content: dict[str, Any]) -> None:
        turn = await in_db(turn_of, self.user, str(content["turn"]))
        await in_db(chat.request_stop, turn)

    async def _follow(self, content: dict[str, Any]) -> None:
        cursor = int(content.get("cursor") or 0)
        if cursor < 0:
            raise ServiceError(_("a cursor counts characters from 0"))
        turn = await in_db(turn_of, self.user, str(content["turn"]))
        self._read(turn, cursor)

    def _read(self, turn: Turn, cursor: int) -> None:
        earlier = self.followed.pop(turn.public_id, None)
        if earlier is not None:
            earlier.cancel()
        self.followed[turn.public_id] = asyncio.create_task(self._pass_on(turn, cursor))

    async def _pass_on(self, turn: Turn, cursor: int) -> None:
        waits = False
        async with aclosing(follow(turn, cursor)) as pieces:
            async for piece in pieces:
                if piece.before is not None or (waits and piece.by):
                    waits = piece.before is not None
                    place = {"turn": turn.public_id, "before": piece.before}
                    await self._tell({"type": "queue", **place})
                if piece.text:
                    delta = {"turn": turn.public_id, "cursor": piece.cursor, "text": piece.text}
                    await self._tell({"type": "delta", **delta})
        try:
            body = await in_db(lambda: turn_json(turn_of(self.user, turn.public_id)))
            told = {"type": "done", "turn": _plain(body)}
        except Turn.DoesNotExist:  # its chat was deleted or erased while it was read
            told = _gone({"turn": turn.public_id})
        self.followed.pop(turn.public_id, None)
        await self._tell(told)

    async def _tell(self, message: dict[str, Any]) -> None:
        """To a browser that may have left meanwhile; it comes back with a cursor."""
        try:
            await self.send_json(message)
        except (OSError, RuntimeError) as exc:  # the server's words for a closed socket
            raise asyncio.CancelledError from exc


def _said_otherwise(edited: Turn, text: str) -> list[Message]:
    """The turn's message in other words, after what its program had said before it, above all its
    system message: none of that is on the page to be edited."""
    said = [] if begins_anew(edited) else input_of(edited)
    places = [i for i, message in enumerate(said) if message["role"] == "user"]
    return [*said[: max(places, default=0)], Message(role="user", content=text)]


def _refusal(content: Any, message: str) -> dict[str, Any]:
    """Why a command was not done, with the names that the browser gave in it."""
    known = content if isinstance(content, dict) else {}
    given = {name: known.get(name) for name in ("client_id", "turn")}
    # What is no name is not said back: it may nest too deep to be written.
    names = {name: value if isinstance(value, str) else None for name, value in given.items()}
    return {"type": "error", "message": message, **names}


def _gone(content: Any) -> dict[str, Any]:
    """The refusal after which no browser need ask again."""
    words = _("That is not there any more. Load the page again.")
    return {**_refusal(content, words), "gone": True}


def _client_id(content: dict[str, Any]) -> str | None:
    """The browser's own name for what it sends, if it gave one that a row can hold."""
    name = content.get("client_id")
    if name is not None and not (isinstance(name, str) and len(name) <= MAX_CLIENT_ID):
        raise ServiceError(f"a client_id is a text of at most {MAX_CLIENT_ID} characters")
    return name or None


def _name_beside(turn: Turn, client_id: str | None) -> str | None:
    """A browser's name for another reply to a program's request. Those requests are found by their
    Idempotency-Keys in the same column, everybody's: what a browser says must not read like one."""
    if client_id is None or turn.source != "api":
        return client_id
    return hashlib.sha256(f"{turn.session.user_id} {client_id}".encode()).hexdigest()


def _is_shut_out(user: User) -> bool:
    return user.is_pending or lacks_second_factor(user)


def _language_of(scope: Any) -> str:
    """As for a page: what the user chose, else what the browser asks for."""
    request = HttpRequest()
    request.COOKIES = scope.get("cookies", {})
    asked = dict(scope["headers"]).get(b"accept-language", b"")
    request.META["HTTP_ACCEPT_LANGUAGE"] = asked.decode("latin-1")
    return translation.get_language_from_request(request)


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """Times as ISO 8601 text; the rest is JSON already."""
    return {
        name: value.isoformat() if hasattr(value, "isoformat") else _deep(value)
        for name, value in body.items()
    }


def _deep(value: Any) -> Any:
    return _plain(value) if isinstance(value, dict) else value
