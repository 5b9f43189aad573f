"""`/api/agent`: what one's agent has learned, and a say in it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema

from clawweb import tasks
from clawweb.api.auth import Scoped, caller
from clawweb.selectors import agent as learned
from clawweb.selectors.learning import agent_status
from clawweb.services.accounts import pause_learning
from clawweb.services.notes import take_back_note

router = Router(tags=["agent"])


class PauseIn(Schema):
    paused: bool


class NoteIn(Schema):
    text: str


@router.get("", auth=Scoped("read"))
def get_agent(request: HttpRequest) -> Any:
    """Which version answers, how each was liked, and what came of every note."""
    user = caller(request)
    rates = learned.like_rates(user)
    return {
        **agent_status(user),
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
        "verdict": learned.verdict(rates),
        "notes": [asdict(note) for note in learned.notes_of(user)],
        "funnel": dict(learned.funnel(user)),
    }


@router.post("/pause", auth=Scoped("train"))
def post_pause(request: HttpRequest, body: PauseIn) -> Any:
    """Start no training by itself, or go on doing so."""
    user = caller(request)
    pause_learning(user=user, paused=body.paused)
    tasks.after_rating(user)
    return {"paused": body.paused}


@router.post("/notes/take-back", auth=Scoped("feedback"))
def post_take_back(request: HttpRequest, body: NoteIn) -> Any:
    """Take a note, as `GET /api/agent` gives its text, out of the ratings that said it."""
    user = caller(request)
    ratings = take_back_note(user=user, text=body.text)
    tasks.after_rating(user)
    return {"ratings": ratings}
