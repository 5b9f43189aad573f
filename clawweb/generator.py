"""The generator: takes pending turns, streams replies from the engine, keeps what it got.

It owns every generation. Browsers and API clients only read: from the token log in Valkey, or
from the row when Valkey is down. Without Valkey it still finds pending rows, writes checkpoints
and sees stop requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.db import Error as DatabaseFailed
from django.utils import timezone

from clawweb import logs, sentences, valkey
from clawweb.config import config
from clawweb.engine import base_hash, get_engine, get_ready, tokenizer_controls
from clawweb.load import Meter
from clawweb.models import Turn, TurnState
from clawweb.orm import in_db
from clawweb.selectors.chat import input_of, messages_for, shape_of
from clawweb.selectors.waiting import next_turns
from clawweb.services import chat, serving
from clawweb.services.errors import NotRecorded
from clawweb.services.health import beat, ended
from clawweb.streams import Ended, TokenLogs
from rollouts.errors import EngineRefused, EngineUnavailable, PromptTooLong, UnknownAdapter
from rollouts.hints import prompted_messages
from rollouts.rendering import defuse, defused, defused_json
from rollouts.types import BASE, Delta, Message, Policy, ReplyShape, Rollout

log = logging.getLogger(__name__)

CONCURRENT = 40  # replies at once; vLLM takes as many (stack/parts.py)
RESERVED = 8  # of them for users who have fewer than so many
IDLE_SECONDS = 0.5  # how often rows are looked at when nothing wakes us
CROWDED_SECONDS = 0.1  # and when there is no room to spare
CHECKPOINT_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0
CANCEL_SECONDS = 3.0  # until a cancelled task is cancelled again


class Generator:
    """One process's replies in flight."""

    def __init__(self) -> None:
        self.running: dict[str, Reply] = {}
        self.claims: set[asyncio.Task[None]] = set()
        self.name = f"generator@{socket.gethostname()}:{os.getpid()}"
        self.stopping = asyncio.Event()
        self.logs: TokenLogs | None = None

    async def run(self) -> None:
        """Until `stopping` is set: claim, answer, repeat. Then let the replies in flight end as
        interrupted."""
        self.logs = TokenLogs()
        self.bell = valkey.connect_async()
        helpers = [
            asyncio.create_task(self._listen_for_stops()),
            asyncio.create_task(self._heartbeat()),
            asyncio.create_task(in_db(get_ready)),
        ]
        try:
            await self._answer_all()
        finally:
            await asyncio.gather(*self.claims, return_exceptions=True)
            writing = [reply.task for reply in self.running.values() if reply.task]
            await end_all({*helpers, *writing})
            with contextlib.suppress(Exception):
                await in_db(ended, self.name)
            await self.logs.close()
            with contextlib.suppress(valkey.ValkeyError):
                await self.bell.aclose()

    async def _answer_all(self) -> None:
        """The turns that Valkey calls out, and each half second those whose call was lost. Where
        not everybody finds room the rows alone say who comes next."""
        clock = asyncio.get_running_loop().time
        look_at = clock()
        while not self.stopping.is_set():
            if self._room() <= RESERVED:
                await asyncio.sleep(CROWDED_SECONDS)
                look_at = clock()
            if clock() >= look_at:
                look_at = clock() + IDLE_SECONDS
                for public_id in await self._waiting():
                    self._take(public_id)
            elif public_id := await self._called(look_at - clock()):
                self._take(public_id)

    async def _waiting(self) -> list[str]:
        """Whose turn it is by the rows; nobody's while the database does not say."""
        try:
            return await in_db(next_turns, room=self._room(), reserved=RESERVED)
        except DatabaseFailed:
            log.exception("the rows do not say who waits; they are asked again")
            return []

    def _room(self) -> int:
        return CONCURRENT - len(self.running) - len(self.claims)

    async def _called(self, seconds: float) -> str | None:
        """The id of a turn that has been opened; None when there was none in that time."""
        try:
            call = await self.bell.blpop([valkey.WAKE], timeout=max(seconds, 0.01))
        except valkey.ValkeyError:
            await asyncio.sleep(max(seconds, 0))
            return None
        return call[1] if call else None

    def _take(self, public_id: str) -> None:
        task = asyncio.create_task(self._answer(public_id))
        self.claims.add(task)
        task.add_done_callback(self.claims.discard)

    async def _answer(self, public_id: str) -> None:
        """Begin the reply if the turn is still to be had."""
        try:
            reply = await in_db(claimed, public_id, self.logs)
        except Exception:
            log.exception("%s is not claimed; it is looked for again", public_id)
            return
        if reply is not None:
            self.running[public_id] = reply
            reply.task = asyncio.create_task(reply.write())
            reply.task.add_done_callback(lambda _: self.running.pop(public_id, None))

    async def _listen_for_stops(self) -> None:
        while True:
            try:
                async with (
                    valkey.connect_async(read_seconds=60) as client,
                    client.pubsub() as calls,
                ):
                    await calls.subscribe(valkey.STOP)
                    while True:
                        call = await calls.get_message(ignore_subscribe_messages=True, timeout=30)
                        if call and call["data"] in self.running:
                            self.running[call["data"]].end()
            except valkey.ValkeyError:
                await asyncio.sleep(1)  # the checkpoints see the row's flag meanwhile

    async def _heartbeat(self) -> None:
        meter = Meter()
        while True:
            with contextlib.suppress(Exception):  # the next beat tells; replies matter more
                doing = sentences.WRITES % {"n": len(self.running)}
                await in_db(beat, self.name, "generator", doing, meter.read())
            await asyncio.sleep(HEARTBEAT_SECONDS)


async def end_all(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel them until they have ended. Once is not enough: a client library that waits with a
    timeout may take the cancellation for it, and go on."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)


def claimed(public_id: str, logs: TokenLogs | None) -> Reply | None:
    """The reply to write, if the turn is ours; in one visit to the database with its prompt."""
    found = chat.claim_turn(public_id, base_hash=base_hash())
    if found is None:
        return None
    reply = Reply(*found, logs)
    with contextlib.suppress(Exception):  # it goes wrong again where the row is told
        reply.asked = reply.what_is_asked()
    return reply


class Reply:
    """One turn's reply while it is written."""

    def __init__(self, turn: Turn, policy: Policy, logs: TokenLogs | None) -> None:
        self.turn = turn
        self.policy = policy
        self.logs = logs
        self.asked: tuple[list[Message], ReplyShape] | None = None
        self.text = ""
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.prompt_ids: tuple[int, ...] | None = None
        self.stop = False
        self.task: asyncio.Task[None] | None = None
        self.params = chat.sampling_of(turn)
        self.ended: Ended | None = None

    async def write(self) -> None:
        """Answer the turn, whatever happens: the row ends in a final state with a reason."""
        with logs.about(**logs.of_turn(self.turn)):
            await self._write()

    async def _write(self) -> None:
        keeper = asyncio.create_task(self._keep())
        try:
            await self._finish(TurnState.COMPLETE, await self._generate())
        except asyncio.CancelledError:
            state = TurnState.STOPPED if self.stop else TurnState.INTERRUPTED
            error = "" if self.stop else sentences.SERVER_STOPPED
            await asyncio.shield(self._finish(state, self._partial(), error))
        except (EngineUnavailable, EngineRefused, NotRecorded) as exc:
            await self._finish(TurnState.FAILED, self._partial(), *_in_words(exc, self.turn.source))
        except Exception:
            log.exception("reply %s failed", self.turn.public_id)
            await self._finish(TurnState.FAILED, self._partial(), sentences.OUR_FAULT)
        finally:
            keeper.cancel()
        if self.logs is not None:
            await self.logs.end(self.turn.public_id, self.ended)

    def end(self) -> None:
        """Stop here: the user asked to. What there is becomes the reply."""
        self.stop = True
        if self.task is not None:
            self.task.cancel()

    async def _keep(self) -> None:
        """Save what there is and renew the lease every second, also before the first token."""
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            try:
                is_over = await self._checkpoint()
            except DatabaseFailed:  # the lease outlasts some; the next one may succeed
                log.exception("what there is of %s is not saved", self.turn.public_id)
                continue
            if is_over:
                self.end()
                return

    async def _checkpoint(self) -> bool:
        return await in_db(
            chat.checkpoint, self.turn, text=self.text, ids=self.ids, prompt_ids=self.prompt_ids
        )

    async def _generate(self) -> Rollout:
        self._begin(self.turn.fallback)
        asked = self.asked or await in_db(self.what_is_asked)
        try:
            return await self._fitting(*asked)
        except UnknownAdapter:
            return await self._after_reload(*asked)

    def what_is_asked(self) -> tuple[list[Message], ReplyShape]:
        """Messages and shape as they may be rendered."""
        if not input_of(self.turn):  # lost: the model would answer what was said before
            raise NotRecorded(sentences.NOT_KEPT)
        controls = tokenizer_controls()
        messages, shape = defused(messages_for(self.turn), controls), shape_of(self.turn)
        return messages, replace(shape, tools=defused_json(list(shape.tools), controls))

    def _begin(self, fallback: str) -> None:
        if self.logs is not None:
            self.logs.begin(self.turn.public_id, self.policy.adapter or "", fallback)

    async def _after_reload(self, messages: list[Message], shape: ReplyShape) -> Rollout:
        """The server forgot the adapter (it was restarted): load and prove it again, or let base
        answer and say so."""
        try:
            if self.turn.adapter is None:
                await get_engine().load(self.policy)
            else:  # not in_db: its few threads are for rows, and this waits for the server
                await asyncio.to_thread(serving.load_and_probe, self.turn.adapter)
        except serving.NOT_PROVEN as exc:
            await self._fall_back(exc)
        try:
            return await self._fitting(messages, shape)
        except UnknownAdapter as exc:  # forgotten again; any other refusal is of what was asked
            await self._fall_back(exc)
            return await self._fitting(messages, shape)

    async def _fall_back(self, why: Exception) -> None:
        log.warning("%s cannot be served: %s", self.policy.adapter, why)
        reason = sentences.NOT_LOADED % {"n": self.policy.version}
        await in_db(chat.note_fallback, self.turn, reason)
        self.policy = BASE
        self._begin(reason)

    async def _fitting(self, messages: list[Message], shape: ReplyShape) -> Rollout:
        """Generate; when the prompt is too long first shorten the reply, then the prompt."""
        limit = self.params.max_tokens
        while True:
            try:
                return await self._ask(messages, shape)
            except PromptTooLong:
                if self.params.max_tokens is not None:
                    self.params = replace(self.params, max_tokens=None)
                elif await in_db(chat.make_room, self.turn):
                    self.params = replace(self.params, max_tokens=limit)
                    messages, shape = await in_db(self.what_is_asked)
                else:
                    raise

    async def _ask(self, messages: Sequence[Message], shape: ReplyShape) -> Rollout:
        controls = tokenizer_controls()
        hints = [defuse(hint, controls) for hint in self.turn.prompted_hints]
        return await get_engine().generate(
            prompted_messages(messages, hints),
            policy=self.policy,
            params=self.params,
            shape=shape,
            on_delta=self._take,
        )

    async def _take(self, delta: Delta) -> None:
        offset = len(self.text)
        self.text += delta.text
        self.reasoning += delta.reasoning
        self.ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.prompt_ids = delta.prompt_ids or self.prompt_ids
        places = [self._take_call(call) for call in delta.tool_calls]
        if not (delta.text or delta.tool_calls):
            return
        if self.turn.first_token_at is None:
            self.turn.first_token_at = timezone.now()  # the next checkpoint writes it
        if self.logs is not None:
            self.logs.add(self.turn.public_id, delta, offset=offset, at=places)

    def _take_call(self, call: dict[str, Any]) -> int:
        """Write the part of a tool call down; where in its arguments it stands."""
        function = call["function"]
        if call["index"] == len(self.calls):
            self.calls.append({"id": call["id"], "type": "function", "function": dict(function)})
            return 0
        known = self.calls[call["index"]]["function"]
        place = len(known["arguments"])
        known["arguments"] += function["arguments"]
        return place

    def _partial(self) -> Rollout | None:
        """What was sampled so far: exact as far as it goes."""
        if self.prompt_ids is None:
            return None
        whole = len(self.ids) == len(self.logprobs)
        return Rollout(
            text=self.text,
            prompt_ids=self.prompt_ids,
            response_ids=tuple(self.ids),
            logprobs=tuple(self.logprobs) if whole and self.ids else None,
            finish_reason="stop",
            policy=self.policy,
            params=self.params,
            reasoning=self.reasoning,
            tool_calls=tuple(self.calls),
        )

    async def _finish(
        self, state: TurnState, rollout: Rollout | None, error: str = "", code: str = ""
    ) -> None:
        text = rollout.text if rollout is not None else self.text
        done = await in_db(
            chat.finish_turn,
            self.turn,
            state=state,
            rollout=rollout,
            text=text,
            error=error,
            code=code,
        )
        facts = {"version": self.policy.adapter or "base", "tokens": len(self.ids)}
        log.info("reply %s%s", state.value, "" if done else ", not by the row", extra=facts)
        self.ended = None  # where it ended otherwise the row knows how
        if done:
            self.ended = Ended(
                state=state,
                finish_reason=rollout.finish_reason if rollout else "",
                error=error,
                code=code,
                chars=len(text),
                calls=[len(c["function"]["arguments"]) for c in rollout.tool_calls]
                if rollout
                else [],
                prompt_tokens=len(rollout.prompt_ids) if rollout else None,
                completion_tokens=len(rollout.response_ids) if rollout else None,
            )


def _in_words(exc: Exception, source: str) -> tuple[str, str]:
    """An error as the user reads it, and its code."""
    if isinstance(exc, NotRecorded):
        return str(exc), exc.title
    if isinstance(exc, EngineUnavailable):
        return sentences.NO_MODEL, "engine_unavailable"
    if isinstance(exc, PromptTooLong):
        limit = config().context_tokens
        if source == "ui":  # of its conversation nothing else is left (chat.make_room)
            words = round(limit // 2, -2)  # in most languages a word is one to two tokens
            return sentences.MESSAGE_TOO_LONG % {"words": words}, "context_length_exceeded"
        return sentences.TOO_LONG % {"limit": limit}, "context_length_exceeded"
    return sentences.REFUSED % {"why": exc}, "refused_by_engine"
