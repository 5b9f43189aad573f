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
from dataclasses import replace
from functools import partial

from clawweb import valkey
from clawweb.config import config
from clawweb.engine import base_hash, get_engine, tokenizer_controls
from clawweb.models import Turn, TurnState
from clawweb.orm import in_db
from clawweb.selectors.chat import messages_for
from clawweb.services import chat
from clawweb.services.health import beat
from rollouts.errors import (
    EngineRefused,
    EngineUnavailable,
    PromptTooLong,
    RolloutError,
    UnknownAdapter,
)
from rollouts.hints import prompted_messages
from rollouts.rendering import defuse, defused
from rollouts.types import BASE, Delta, Rollout, SamplingParams

log = logging.getLogger(__name__)

CONCURRENT = 32
IDLE_SECONDS = 0.5  # how often rows are looked at when nothing wakes us
CHECKPOINT_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0


class Generator:
    """One process's replies in flight."""

    def __init__(self) -> None:
        self.running: dict[str, Reply] = {}
        self.name = f"generator@{socket.gethostname()}:{os.getpid()}"
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Until `stopping` is set: claim, answer, repeat. Then let the replies in flight end as
        interrupted."""
        helpers = [
            asyncio.create_task(self._listen_for_stops()),
            asyncio.create_task(self._heartbeat()),
        ]
        try:
            while not self.stopping.is_set():
                if not await self._claim_all():
                    await self._wait()
        finally:
            writing = [reply.task for reply in self.running.values() if reply.task]
            for task in [*helpers, *writing]:
                task.cancel()
            await asyncio.gather(*helpers, *writing, return_exceptions=True)

    async def _claim_all(self) -> bool:
        claimed = False
        while len(self.running) < CONCURRENT:
            turn = await in_db(chat.claim_turn)
            if turn is None:
                return claimed
            claimed = True
            reply = self.running[turn.public_id] = Reply(turn)
            reply.task = asyncio.create_task(reply.write())
            reply.task.add_done_callback(partial(self._forget, turn.public_id))
        await asyncio.sleep(0.05)
        return True

    def _forget(self, public_id: str, _: asyncio.Task[None]) -> None:
        self.running.pop(public_id, None)

    async def _wait(self) -> None:
        """Until Valkey wakes us or half a second is over."""
        try:
            async with valkey.connect_async() as client:
                await client.blpop([valkey.WAKE], timeout=IDLE_SECONDS)
        except valkey.ValkeyError:
            await asyncio.sleep(IDLE_SECONDS)

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
        while True:
            with contextlib.suppress(Exception):  # the next beat tells; replies matter more
                await in_db(beat, self.name, "generator", f"{len(self.running)} replies in flight")
            await asyncio.sleep(HEARTBEAT_SECONDS)


class Reply:
    """One turn's reply while it is written."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.text = ""
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.prompt_ids: tuple[int, ...] | None = None
        self.stop = False
        self.task: asyncio.Task[None] | None = None
        self.policy = BASE
        self.params = chat.sampling_of(turn)
        self.log: TokenLog | None = None

    async def write(self) -> None:
        """Answer the turn, whatever happens: the row ends in a final state with a reason."""
        self.log = TokenLog(self.turn.public_id)
        keeper = asyncio.create_task(self._keep())
        async with self.log:
            try:
                await self.log.begin()
                rollout = await self._generate()
                await self._finish(TurnState.COMPLETE, rollout)
            except asyncio.CancelledError:
                state = TurnState.STOPPED if self.stop else TurnState.INTERRUPTED
                error = "" if self.stop else "The server was stopped while it wrote this reply."
                await asyncio.shield(self._finish(state, self._partial(), error))
            except RolloutError as exc:
                await self._finish(TurnState.FAILED, self._partial(), *_in_words(exc))
            except Exception:
                log.exception("reply %s failed", self.turn.public_id)
                await self._finish(
                    TurnState.FAILED, self._partial(), "Something broke on our side."
                )
            finally:
                keeper.cancel()
            await self.log.end()

    def end(self) -> None:
        """Stop here: the user asked to. What there is becomes the reply."""
        self.stop = True
        if self.task is not None:
            self.task.cancel()

    async def _keep(self) -> None:
        """Save what there is and renew the lease every second, also before the first token."""
        while True:
            await asyncio.sleep(CHECKPOINT_SECONDS)
            if await self._checkpoint():
                self.end()
                return

    async def _checkpoint(self) -> bool:
        return await in_db(
            chat.checkpoint, self.turn, text=self.text, ids=self.ids, prompt_ids=self.prompt_ids
        )

    async def _generate(self) -> Rollout:
        turn = self.turn
        self.policy, fallback = await in_db(
            chat.choose_policy, turn, base_hash=await in_db(base_hash)
        )
        if fallback:
            await in_db(chat.note_fallback, turn, fallback)
        try:
            return await self._fitting()
        except UnknownAdapter:
            return await self._after_reload()

    async def _after_reload(self) -> Rollout:
        """The server forgot the adapter (it was restarted): load it again, or let base answer and
        say so."""
        try:
            await get_engine().load(self.policy)
            return await self._fitting()
        except EngineRefused as exc:
            log.warning("%s cannot be served: %s", self.policy.adapter, exc)
            reason = f"version {self.policy.version} could not be loaded"
            await in_db(chat.note_fallback, self.turn, reason)
            self.policy = BASE
            return await self._fitting()

    async def _fitting(self) -> Rollout:
        """Generate; when the prompt is too long first shorten the reply, then the prompt."""
        limit = self.params.max_tokens
        while True:
            try:
                return await self._ask(self.params)
            except PromptTooLong:
                if self.params.max_tokens is not None:
                    self.params = replace(self.params, max_tokens=None)
                elif await in_db(chat.make_room, self.turn):
                    self.params = replace(self.params, max_tokens=limit)
                else:
                    raise

    async def _ask(self, params: SamplingParams) -> Rollout:
        controls = tokenizer_controls()
        messages = defused(await in_db(messages_for, self.turn), controls)
        hints = [defuse(hint, controls) for hint in self.turn.prompted_hints]
        return await get_engine().generate(
            prompted_messages(messages, hints),
            policy=self.policy,
            params=params,
            on_delta=self._take,
        )

    async def _take(self, delta: Delta) -> None:
        offset = len(self.text)
        self.text += delta.text
        self.ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.prompt_ids = delta.prompt_ids or self.prompt_ids
        if delta.text and self.log is not None:
            await self.log.add(offset, delta.text)
        if self.turn.first_token_at is None and self.text:
            await self._checkpoint()  # notes the time of the first token

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
        )

    async def _finish(
        self, state: TurnState, rollout: Rollout | None, error: str = "", code: str = ""
    ) -> None:
        text = rollout.text if rollout is not None else self.text
        await in_db(
            chat.finish_turn,
            self.turn,
            state=state,
            rollout=rollout,
            text=text,
            error=error,
            code=code,
        )


class TokenLog:
    """The turn's stream in Valkey. When Valkey is down it does nothing: readers turn to the row."""

    def __init__(self, public_id: str) -> None:
        self.key = valkey.gen_key(public_id)
        self.client = valkey.connect_async(read_seconds=2)
        self.down = False

    async def __aenter__(self) -> TokenLog:
        return self

    async def begin(self) -> None:
        await self._do("xadd", self.key, {"offset": 0, "text": ""}, maxlen=valkey.MAX_ENTRIES)
        await self._do("expire", self.key, valkey.TTL_SECONDS)

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(valkey.ValkeyError):
            await self.client.aclose()

    async def add(self, offset: int, text: str) -> None:
        await self._do(
            "xadd", self.key, {"offset": offset, "text": text}, maxlen=valkey.MAX_ENTRIES
        )

    async def end(self) -> None:
        await self._do("xadd", self.key, {"end": 1})

    async def _do(self, command: str, *args: object, **kwargs: object) -> None:
        if self.down:
            return
        try:
            await getattr(self.client, command)(*args, **kwargs)
        except valkey.ValkeyError as exc:
            self.down = True
            log.warning("token log of %s is off: %s", self.key, exc)


def _in_words(exc: RolloutError) -> tuple[str, str]:
    """An engine's error as the user reads it, and its code."""
    if isinstance(exc, EngineUnavailable):
        text = "The model server does not answer right now. Your message is saved: try again soon."
        return text, "engine_unavailable"
    if isinstance(exc, PromptTooLong):
        limit = config().context_tokens
        return f"The conversation is longer than {limit} tokens.", "context_length_exceeded"
    return f"The model server refused: {exc}", "refused_by_engine"
