"""Writes of turns: opening, claiming, checkpointing and finishing them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb import logs, sentences, valkey
from clawweb.engine import current_template_hash
from clawweb.events import changed
from clawweb.models import AdapterVersion, ChatSession, Consent, Turn, TurnState, User
from clawweb.selectors.asking import chat_params, instructions_of
from clawweb.selectors.chat import (
    begins_anew,
    input_of,
    memory_begins_at,
    messages_for,
    path_to,
    said,
    shape_of,
)
from clawweb.selectors.hints import hints_to_prompt
from clawweb.selectors.learning import live_adapter, policy_of, trained_on_from
from clawweb.selectors.placing import history_hash
from clawweb.selectors.trials import trial_for
from clawweb.services import judgements, waiting
from clawweb.services.errors import ServiceError
from rollouts.types import PLAIN, Message, Policy, ReplyShape, Rollout, SamplingParams

log = logging.getLogger(__name__)

LEASE = timedelta(seconds=15)
TITLE_CHARS = 60


def open_turn(
    *,
    session: ChatSession,
    parent: Turn | None,
    messages: Sequence[Message],
    params: SamplingParams | None = None,
    shape: ReplyShape = PLAIN,
    asked: str = "agent",
    turn_type: str = "main",
    turn_type_from: str = "",
    source: str = "ui",
    client_id: str | None = None,
    request_hash: str = "",
    anew: bool = False,
    aside: bool = False,
    instructions: str | None = None,
    user: User | None = None,
) -> Turn:
    """A pending turn that a generator will answer. A browser's `client_id` gives the same turn.

    A session that is not saved yet is made with it. `anew`: `messages` are all of the conversation,
    not only what is new after the parent's reply. `aside`: they are to be kept nowhere. `params`
    and `instructions`: what the user set for the chat. `user`: the session's, read just now.
    """
    if source == "ui" and (known := turn_sent_as(session.user, client_id)):
        return known
    user = user or User.objects.get(pk=session.user_id)  # a socket's own is as old as the socket
    waiting.check_room(user)
    recorded = not (aside or session.temporary or user.consent == Consent.NOTHING)
    turn = Turn(
        session=session,
        parent=parent,
        context_start_id=parent.context_start_id if parent else None,
        source=source,
        turn_type=turn_type,
        turn_type_from=turn_type_from,
        asked=asked,
        client_id=client_id,
        request_hash=request_hash if recorded else "",
        recorded=recorded,
        prompted_hints=_hints_for(user, messages, asked=asked, turn_type=turn_type),
        sampling=asdict(params or chat_params(user)),
    )
    if instructions is None:
        instructions = user.instructions if source == "ui" else ""
    _take_down(turn, messages, shape, instructions)
    anew = anew or memory_begins_at(turn)
    with transaction.atomic():
        if source == "ui" and (known := _sent_beside(user, client_id)):
            return known
        _reopen(session, turn, messages)
        turn.save()
        if anew:
            turn.context_start = turn
            turn.save(update_fields=["context_start"])
        judgements.expect(turn)
    log.info("asked", extra=logs.of_turn(turn))
    transaction.on_commit(lambda: valkey.wake_generator(turn.public_id), robust=True)
    return turn


def _sent_beside(user: User, client_id: str | None) -> Turn | None:
    """The same message, sent twice at once: the second one waits and finds the first's turn."""
    if client_id:
        User.objects.select_for_update().get(pk=user.pk)
    return turn_sent_as(user, client_id)


def _reopen(session: ChatSession, turn: Turn, messages: Sequence[Message]) -> None:
    """Whoever speaks opens a session again; its first words name it."""
    touched = ["updated_at", "closed_at", "done"]
    if turn.recorded and turn.turn_type == "main" and not session.title:
        text = next((m["content"] for m in messages if m["role"] == "user"), "")
        session.title = " ".join(text.split())[:TITLE_CHARS]
        touched.append("title")  # else a new name given meanwhile would be lost
    session.closed_at, session.done = None, False
    session.save(update_fields=touched if session.pk else None)


def _take_down(
    turn: Turn, messages: Sequence[Message], shape: ReplyShape, instructions: str
) -> None:
    """What is asked, onto the row; of a turn that is not recorded into the short-lived store."""
    if not turn.recorded:
        asked = {"input": list(messages), "shape": asdict(shape), "instructions": instructions}
        _keep(turn, asked)
        return
    turn.input_messages, turn.instructions = list(messages), instructions
    turn.tools, turn.tool_choice = list(shape.tools), shape.tool_choice
    turn.response_format = shape.response_format


def _hints_for(user: User, messages: Sequence[Message], *, asked: str, turn_type: str) -> list[str]:
    """Hints for a reply that the user's own agent gives to something the user says."""
    is_said = any(message["role"] == "user" for message in messages)
    if asked != "agent" or turn_type != "main" or not is_said:
        return []
    return hints_to_prompt(user)


def _keep(turn: Turn, texts: dict[str, Any]) -> None:
    try:
        valkey.keep_text(turn.public_id, texts)
    except valkey.ValkeyError as exc:
        raise ServiceError(
            _(
                "You asked to keep nothing, and the short-lived store for that is down. "
                "Try again soon."
            )
        ) from exc


def turn_sent_as(user: User, client_id: str | None) -> Turn | None:
    """The turn that the user's browser opened under this id, in whichever session."""
    if not client_id:
        return None
    return Turn.objects.filter(session__user=user, client_id=client_id).first()


def regenerate(
    *,
    turn: Turn,
    client_id: str | None = None,
    asked: str = "",
    turn_type: str = "",
    turn_type_from: str = "",
    as_set_now: bool = False,
) -> Turn:
    """A sibling that answers the same input again, asked for as the turn was or as said here.

    `as_set_now`: one of the chat's own, under what its user has set since.
    """
    messages = input_of(turn)
    as_set_now = as_set_now and turn.source == "ui"
    if not messages:
        raise ServiceError(_(sentences.NOT_KEPT))
    return open_turn(
        session=turn.session,
        parent=turn.parent,
        messages=messages,
        params=None if as_set_now else sampling_of(turn),
        instructions=None if as_set_now else instructions_of(turn),
        shape=shape_of(turn),
        asked=asked or ("agent" if turn.asked.startswith("agent") else turn.asked),
        turn_type=turn_type or turn.turn_type,
        turn_type_from=turn_type_from if turn_type else turn.turn_type_from,
        source=turn.source,
        client_id=client_id,
        anew=begins_anew(turn),
        aside=not turn.recorded,
    )


def sampling_of(turn: Turn) -> SamplingParams:
    return SamplingParams.from_json(turn.sampling)


def request_stop(turn: Turn) -> bool:
    """Ask the generator to stop; False when the reply is finished already. What no generator has
    begun ends here: nobody shall write for a reader who has left."""
    if waiting.take_back(turn):
        return True
    written = Turn.objects.filter(pk=turn.pk, state=TurnState.STREAMING)
    asked = bool(written.update(stop_requested=True))
    if asked:
        transaction.on_commit(lambda: valkey.call_stop(turn.public_id), robust=True)
    return asked


# What follows is called by generators. Each write is conditional on the turn's lease.


def claim_turn(public_id: str, *, base_hash: str) -> tuple[Turn, Policy] | None:
    """The turn, now streaming under a lease of ours, and what answers it, settled once; None when
    it is not to be had. One write: the row names its lease and its version at the same time."""
    pending = Turn.objects.select_related("session__user").filter(state=TurnState.PENDING)
    turn = pending.filter(public_id=public_id).first()
    if turn is None:
        return None
    wanted, fallback = _chosen(turn, base_hash)
    now = timezone.now()
    values: dict[str, Any] = {
        "state": TurnState.STREAMING,
        "lease_token": str(uuid.uuid4()),
        "lease_until": now + LEASE,
        "started_at": now,
    }
    if wanted is not None:
        values |= {"adapter": wanted, "adapter_name": wanted.name, "version": wanted.version}
        values["trial"] = turn.trial
    if fallback:
        values |= _as_base(fallback)
    if not Turn.objects.filter(pk=turn.pk, state=TurnState.PENDING).update(**values):
        return None
    for name, value in values.items():
        setattr(turn, name, value)
    return turn, policy_of(wanted)


def _chosen(turn: Turn, base_hash: str) -> tuple[AdapterVersion | None, str]:
    """The version that answers, None for base; the second value says why base has to."""
    if turn.asked == "base":
        return None, ""
    user = turn.session.user
    if turn.asked.startswith("agent@v"):
        wanted = user.adapters.filter(version=int(turn.asked[7:])).first()
        if wanted is None or wanted.state not in ("live", "standby"):
            return None, sentences.NOT_THERE % {"n": turn.asked[7:]}
    else:
        trial = trial_for(turn, base_hash=base_hash)
        turn.trial = trial is not None
        # Base in its own name, and its replies train: else nobody got a version of the new base.
        wanted = trial or trained_on_from(live_adapter(user))
    if wanted is not None and wanted.base_hash != base_hash:
        return None, sentences.OTHER_BASE
    return wanted, ""


def _held(turn: Turn) -> Any:
    return Turn.objects.filter(pk=turn.pk, state=TurnState.STREAMING, lease_token=turn.lease_token)


def _as_base(reason: str) -> dict[str, Any]:
    """Base answers in the adapter's place, as plain base: the row says so, and never trains."""
    plain = {"adapter": None, "adapter_name": "", "version": 0, "prompted_hints": []}
    return {**plain, "fallback": reason[:200]}


def note_fallback(turn: Turn, reason: str) -> None:
    """The version that was chosen cannot answer after all."""
    turn.prompted_hints = []
    _held(turn).update(**_as_base(reason))


def make_room(turn: Turn) -> bool:
    """Shorten the prompt; False when nothing can go. In the browser the memory goes first, an API
    caller's conversation stays whole; hints give way to what is left."""
    return (turn.source == "ui" and move_memory(turn)) or _drop_hints(turn)


def move_memory(turn: Turn) -> bool:
    """Drop the older half of the turns in the prompt; False when only the new message is left."""
    path = [row for row in path_to(turn) if row.pk >= (turn.context_start_id or 0)]
    if len(path) < 2:
        return False
    turn.context_start = path[(len(path) + 1) // 2]
    return bool(_held(turn).update(context_start=turn.context_start))


def _drop_hints(turn: Turn) -> bool:
    if not turn.prompted_hints:
        return False
    turn.prompted_hints = []
    return bool(_held(turn).update(prompted_hints=[]))


def checkpoint(
    turn: Turn, *, text: str, ids: Sequence[int], prompt_ids: Sequence[int] | None
) -> bool:
    """Save what there is and renew the lease. True when the reply should stop."""
    values: dict[str, Any] = {"lease_until": timezone.now() + LEASE}
    if turn.recorded:
        values |= {"reply": text, "response_ids": list(ids)}
        if prompt_ids is not None:
            values["prompt_ids"] = list(prompt_ids)
    if turn.first_token_at is not None:
        values["first_token_at"] = turn.first_token_at
    if not _held(turn).update(**values):
        return True
    return Turn.objects.filter(pk=turn.pk, stop_requested=True).exists()


def finish_turn(
    turn: Turn,
    *,
    state: TurnState,
    rollout: Rollout | None,
    text: str,
    error: str = "",
    code: str = "",
) -> bool:
    """End the turn under its lease; the reply's ids and log-probs go onto the row as the engine
    gave them. False where the row ended otherwise: by another, or because nothing held the text."""
    values: dict[str, Any] = {
        "state": state,
        "finished_at": timezone.now(),
        "error": error,
        "error_code": code,
        "template_hash": current_template_hash(),
        "first_token_at": turn.first_token_at,
    }
    calls = list(rollout.tool_calls) if rollout is not None else []
    if rollout is not None:
        plain = rollout.params.keeps_behaviour_logprobs and rollout.logprobs is not None
        values |= {
            "prompt_tokens": len(rollout.prompt_ids),
            "reply_tokens": len(rollout.response_ids),
            "prompt_ids": list(rollout.prompt_ids),
            "response_ids": list(rollout.response_ids),
            "logprobs": list(rollout.logprobs or ()) if plain else None,
            "finish_reason": rollout.finish_reason,
            "reasoning": rollout.reasoning,
        }
    if turn.recorded:
        values |= {"reply": text, "tool_calls": calls}
        values["history_hash"] = _history_after(turn, said(text, calls))
    else:
        values |= {"prompt_ids": None, "response_ids": None, "logprobs": None, "reply": ""}
        values |= {"reasoning": "", **_kept_aside(turn, text, rollout)}
    with transaction.atomic():
        done = _held(turn).update(**values)
        if done:
            changed(turn.session.user_id, "turn", turn.public_id)
    return bool(done) and values["state"] == state


def _kept_aside(turn: Turn, text: str, rollout: Rollout | None) -> dict[str, str]:
    """The reply of a turn that is not recorded into the short-lived store; the end comes anyway,
    and where the text is lost it has failed: an empty reply would pass for the model's. Not of one
    that another has ended, or that is erased: what was said then stays so."""
    if not _held(turn).exists():
        return {}
    counts = (len(rollout.prompt_ids), len(rollout.response_ids)) if rollout else (None, None)
    calls = list(rollout.tool_calls) if rollout else []
    kept = {"input": input_of(turn), "shape": asdict(shape_of(turn))}
    kept["instructions"] = instructions_of(turn)
    try:
        _keep(turn, {**kept, "reply": text, "tool_calls": calls, "tokens": counts})
    except ServiceError as exc:
        return {"state": TurnState.FAILED, "error": str(exc)}
    return {}


def _history_after(turn: Turn, reply: Message) -> str:
    # Named by the whole conversation, also when the prompt's memory begins later.
    return history_hash([*messages_for(turn, whole=True), reply])


def interrupt_abandoned() -> list[Turn]:
    """Turns whose generator is gone: their text is kept and the user may try again."""
    gone = list(
        Turn.objects.select_related("session").filter(
            state=TurnState.STREAMING, lease_until__lt=timezone.now()
        )
    )
    interrupted = []
    for turn in gone:
        with transaction.atomic():
            lapsed = _held(turn).filter(lease_until__lt=timezone.now())
            ended = {"state": TurnState.INTERRUPTED, "finished_at": timezone.now()}
            if lapsed.update(**ended, error=sentences.WRITER_DIED):
                changed(turn.session.user_id, "turn", turn.public_id)
                interrupted.append(turn)
    return interrupted
