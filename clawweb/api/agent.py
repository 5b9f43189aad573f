"""`/api/agent`: what one's agent has learned, and a say in it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema, Status

from clawweb import tasks
from clawweb.api.auth import Scoped, caller
from clawweb.selectors import agent as learned
from clawweb.selectors.chat import session_of, turn_of
from clawweb.selectors.forgetting import versions_that_learned_from
from clawweb.selectors.notes import notes_of
from clawweb.services.accounts import pause_learning
from clawweb.services.complaints import ask_again
from clawweb.services.forgetting import train_without
from clawweb.services.notes import take_back_note

router = Router(tags=["agent"])


class PauseIn(Schema):
    paused: bool


class RecheckIn(Schema):
    turn: str | None = None


class NoteIn(Schema):
    text: str


@router.get("", auth=Scoped("read"))
def get_agent(request: HttpRequest) -> Any:
    """Which version answers, how each was liked, and what came of every note."""
    user = caller(request)
    rates, status = learned.like_rates(user), learned.agent_status(user)
    return {
        **status,
        "rates": [
            {
                "version": rate.version,
                "liked": rate.liked,
                "votes": rate.votes,
                "low": rate.interval[0],
                "high": rate.interval[1],
            }
            for rate in rates
        ],
        "verdict": learned.verdict(rates, answers=status["version"]),
        "notes": [asdict(note) for note in notes_of(user)],
        "funnel": dict(learned.funnel(user)),
    }


@router.post("/pause", auth=Scoped("train"))
def post_pause(request: HttpRequest, body: PauseIn) -> Any:
    """Start no training by itself, or go on doing so."""
    user = caller(request)
    pause_learning(user=user, paused=body.paused)
    tasks.after_rating(user)
    return {"paused": body.paused}


@router.post("/rechecks", auth=Scoped("chat"), response={202: Any})
def post_rechecks(request: HttpRequest, body: RecheckIn | None = None) -> Any:
    """Have the live version answer one's newest complaints again, or the one that is named; each is
    a comparison of the kind `recheck`. 409 while the base model answers."""
    user = caller(request)
    turn = turn_of(user, body.turn) if body and body.turn else None
    return Status(202, {"asked": ask_again(user=user, turn=turn)})


@router.get("/chats/{path:name}", auth=Scoped("read"))
def get_learned_from(request: HttpRequest, name: str) -> Any:
    """Which versions have learned from a chat, by their numbers."""
    session = session_of(caller(request), name)
    return {"versions": [row.version for row in versions_that_learned_from(session)]}


@router.post("/train-without", auth=Scoped("train"), response={202: Any})
def post_train_without(request: HttpRequest) -> Any:
    """Go back to the newest version that has learned from no deleted chat, and train again from
    what is left; where that cannot be now `job` is null and `why` says so. 409 when what answers
    has learned from none."""
    back, job, why = train_without(caller(request))
    if job is not None:
        tasks.enqueue(tasks.run_training_job, job.public_id)
    version = back.version if back else 0
    return Status(202, {"version": version, "job": job.public_id if job else None, "why": why})


@router.post("/notes/take-back", auth=Scoped("feedback"))
def post_take_back(request: HttpRequest, body: NoteIn) -> Any:
    """Take a note, as `GET /api/agent` gives its text, out of the ratings that said it."""
    user = caller(request)
    ratings = take_back_note(user=user, text=body.text)
    tasks.after_rating(user)
    return {"ratings": ratings}
