"""Writes of what a file brings in: sessions, turns and ratings of one user, line by line.

The same line twice is the same row: ids that are free are kept, others are derived from the user
and the line, so that a file can be brought in again, and a run that died can start over.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import islice
from typing import IO, Any

from django.db import DataError, IntegrityError, transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from pydantic import TypeAdapter, ValidationError

from clawweb import sentences
from clawweb.models import ChatSession, Consent, Judgement, JudgementState, Turn, TurnState, User
from clawweb.openclaw_records import OpenClawScore, OpenClawTurn
from clawweb.records import (
    MAX_LINE,
    BadLine,
    Line,
    SessionLine,
    TurnLine,
    checked,
    kind_of,
    parse_line,
)
from clawweb.selectors.chat import messages_for, next_turn, reply_message
from clawweb.selectors.placing import History
from clawweb.selectors.records import sessions_of
from clawweb.services import feedback
from clawweb.services.chat import TITLE_CHARS
from clawweb.services.erasure import SESSION, is_buried
from clawweb.services.errors import NotRecorded
from clawweb.services.sessions import place
from rollouts.types import SamplingParams

AT_ONCE = 50  # lines in one transaction
SHOWN = 50  # bad lines that a report names
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_SAMPLING = TypeAdapter(SamplingParams)
# Taken over by one line each: they are called alike in the file and in the row.
_SAME = (
    *("turn_type", "turn_type_from", "source", "state", "recorded", "tool_calls", "reasoning"),
    *("tools", "tool_choice", "response_format", "prompted_hints", "fallback", "finish_reason"),
    *("error", "error_code", "instructions", "trial"),
)
_TIMES = ("created_at", "started_at", "first_token_at", "finished_at")


@dataclass(slots=True)
class Report:
    """What came of a file."""

    sessions: int = 0
    turns: int = 0
    ratings: int = 0
    scores: int = 0
    known: int = 0  # turns and scores that were here already
    left_out: int = 0
    reasons: list[str] = field(default_factory=list)

    def leave_out(self, number: int, why: object) -> None:
        self.left_out += 1
        if len(self.reasons) < SHOWN:
            self.reasons.append(sentences.LINE % {"n": number, "why": why})

    @property
    def is_in_vain(self) -> bool:
        """Whether no line of the file was of any use."""
        came = self.sessions + self.turns + self.ratings + self.scores + self.known
        return bool(self.left_out) and not came

    def __str__(self) -> str:
        told = [sentences.IMPORTED % asdict(self)]
        counts = (
            (sentences.SCORES, self.scores),
            (sentences.KNOWN, self.known),
            (sentences.LEFT_OUT, self.left_out),
        )
        told += [words % {"n": count} for words, count in counts if count]
        more = self.left_out - len(self.reasons)
        rest = [sentences.MORE % {"n": more}] if more else []
        return "\n".join([" ".join(told), *self.reasons, *rest])


def lines_in(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The file's lines that hold anything, numbered from 1; of one that is too long the start."""
    number = 0
    while raw := file.readline(MAX_LINE + 1):
        number += 1
        rest = raw
        while not rest.endswith(b"\n") and (rest := file.readline(MAX_LINE)):
            pass
        if raw.strip():
            yield number, raw


def batches(lines: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """The lines, as many at a time as `take_all` should be given."""
    while some := list(islice(lines, AT_ONCE)):
        yield some


class Import:
    """One file into one user's rows. `take` a line at a time; `report` says what came of it."""

    def __init__(self, user: User) -> None:
        user = User.objects.get(pk=user.pk)
        if user.consent == Consent.NOTHING:
            raise NotRecorded(
                _("You asked to keep nothing of your chats, so none can be taken in.")
            )
        self.user = user
        self.report = Report()
        self._session_at_hand: int | None = None
        self._histories: dict[int, History] = {}  # of that session's turns, by primary key
        self._takers = {
            "session": self._session,
            "turn": self._turn,
            "openclaw": self._openclaw_turn,
            "openclaw_score": self._openclaw_score,
        }

    @transaction.atomic
    def take_all(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Some lines in one transaction, for speed: as many as others' writes can wait for."""
        for number, raw in lines:
            self.take(number, raw)

    def take(self, number: int, raw: bytes) -> None:
        """One line: into rows as a whole, or into the report with the reason."""
        try:
            line = parse_line(raw)
            with transaction.atomic():
                self._takers[kind_of(line)](line)
        except BadLine as exc:
            self.report.leave_out(number, exc)
        except (IntegrityError, DataError):
            self.report.leave_out(number, gettext_noop("it does not fit to what is here already"))

    def _session(self, line: Line) -> None:
        said = checked(SessionLine, line)
        if self._own_session(said.id) is not None:
            return
        taken = ChatSession.objects.filter(user=self.user, external_id=said.external_id)
        taken.exclude(deleted_at=None).update(external_id=None)  # its name is free again
        row = ChatSession.objects.create(
            public_id=self._free_id(ChatSession, "sess", self._session_names(said.id)),
            user=self.user,
            # A name that another session has here leads to that one.
            external_id=None if taken.exists() else said.external_id,
            title=said.title,
            locked=said.locked,
            pinned=said.pinned,
            temporary=said.temporary,
            closed_at=said.closed_at,
            done=said.done,
        )
        _set_times(row, created_at=said.created_at, updated_at=said.updated_at)
        self.report.sessions += 1

    def _turn(self, line: Line) -> None:
        said = checked(TurnLine, line)
        session = self._own_session(said.session)
        if session is None:
            raise BadLine(gettext_noop("its session is not in a line before it"))
        if self._own_turn(said.id, session) is not None:
            self.report.known += 1
            return
        row = Turn(
            public_id=self._free_id(Turn, "turn", self._turn_names(said.id, session)),
            session=session,
            parent=self._earlier(said.parent, session),
            asked=said.model,
            adapter_name=said.adapter,
            version=said.adapter_version,
            sampling=_sampling(said.sampling),
            input_messages=said.input if said.recorded else [],
            reply=said.reply if said.recorded else "",
            **{name: getattr(said, name) for name in _SAME},
        )
        anew = said.context_start == said.id
        row.context_start = None if anew else self._earlier(said.context_start, session)
        self._save(row, anew=anew, **{name: getattr(said, name) for name in _TIMES})
        if said.recorded and (said.reply or said.tool_calls):
            feedback.take_over(turn=row, author=self.user, said=said.feedback)
            self.report.ratings += bool(said.feedback)

    def _earlier(self, name: str | None, session: ChatSession) -> Turn | None:
        if name is None:
            return None
        found = self._own_turn(name, session)
        if found is None:
            raise BadLine(
                gettext_noop("the turn that it follows is not in a line of its session before it")
            )
        return found

    def _openclaw_turn(self, line: Line) -> None:
        said = checked(OpenClawTurn, line)
        if not said.reply and not said.tool_calls:
            raise BadLine(gettext_noop("it has no reply"))
        name, session_name = f"openclaw {said.name}", _session_name(said.session_id)
        session = sessions_of(self.user).filter(external_id=session_name).first()
        if session and self._own_turn(name, session) is not None:
            self.report.known += 1
            return
        sessions = ChatSession.objects.filter(user=self.user).count()
        at = place(
            user=self.user,
            api_key=None,
            name=session_name,
            messages=said.messages,  # type: ignore[arg-type]  # checked to be messages
        )
        is_new = ChatSession.objects.filter(user=self.user).count() > sessions
        self.report.sessions += is_new
        public_id = self._turn_names(name, at.session)[-1]
        row = Turn(
            public_id=public_id,
            session=at.session,
            parent=at.parent,
            source="api",
            state=TurnState.COMPLETE,
            # Its scores name it by the number, which starts again when upstream does.
            client_id=f"openclaw:{said.turn}:{public_id[-20:]}",
            input_messages=at.messages,
            reply=said.reply,
            reasoning=said.reasoning,
            tool_calls=said.tool_calls or [],
        )
        self._save(row, anew=at.anew, created_at=said.at, finished_at=said.at)
        if not at.session.title:
            text = next((m["content"] for m in at.messages if m["role"] == "user"), "")
            at.session.title = " ".join(text.split())[:TITLE_CHARS]
            at.session.save(update_fields=["title"])
        if said.at is not None and is_new:
            _set_times(at.session, created_at=said.at, updated_at=said.at)
        elif said.at is not None:
            _set_times(at.session, updated_at=max(at.session.updated_at, said.at))

    def _openclaw_score(self, line: Line) -> None:
        """A judge's score of a turn that came in before; it needs the turn that followed."""
        said = checked(OpenClawScore, line)
        turns = Turn.objects.filter(
            session__user=self.user,
            session__deleted_at=None,
            session__external_id=_session_name(said.session_id),
            client_id__startswith=f"openclaw:{said.turn}:",
        )
        turn = turns.order_by("-id").first()
        following = next_turn(turn) if turn is not None else None
        if turn is None or following is None:
            raise BadLine(
                gettext_noop("the turn that it scores, or the one after that, has not come in")
            )
        if Judgement.objects.filter(turn=turn).exists():
            self.report.known += 1
            return
        score = int(said.score) if said.score in (-1, 0, 1) else None
        Judgement.objects.create(
            turn=turn,
            next_turn=following,
            state=JudgementState.JUDGED if score or said.accepted else JudgementState.NO_SIGNAL,
            judge="OpenClaw-RL",
            score=score,
            hints=[said.hint] if said.accepted and said.hint else [],
        )
        self.report.scores += 1

    def _save(self, row: Turn, *, anew: bool, **times: datetime | None) -> None:
        row.save()
        if anew:
            row.context_start = row
        if row.session_id != self._session_at_hand:
            self._session_at_hand, self._histories = row.session_id, {}
        if row.recorded:
            before = History() if anew else self._history(row.parent)
            history = before.after([*row.input_messages, reply_message(row)])
            row.history_hash = history.name
            self._histories[row.pk] = history
        row.save(update_fields=["context_start", "history_hash"])
        _set_times(row, **times)
        self.report.turns += 1

    def _history(self, turn: Turn | None) -> History:
        """Of the conversation up to this turn's reply; read from rows once, then remembered."""
        if turn is None:
            return History()
        if turn.pk not in self._histories:
            messages = [*messages_for(turn, whole=True), reply_message(turn)]
            self._histories[turn.pk] = History().after(messages)
        return self._histories[turn.pk]

    def _own_session(self, name: str) -> ChatSession | None:
        names = self._session_names(name)
        return sessions_of(self.user).filter(public_id__in=names).first()

    def _own_turn(self, name: str, session: ChatSession) -> Turn | None:
        return session.turns.filter(public_id__in=self._turn_names(name, session)).first()

    def _session_names(self, name: str) -> list[str]:
        """What the session may be called here, in the order in which names are given. Under one
        that is erased it would be erased again, and one that is deleted may be had back: the last
        is none of those."""
        names = [name, self._derived("sess", name)]
        deleted = ChatSession.objects.exclude(deleted_at=None)
        while is_buried(SESSION, names[-1]) or deleted.filter(public_id=names[-1]).exists():
            names.append(self._derived("sess", f"{name}\n{len(names)}"))
        return names

    def _turn_names(self, name: str, session: ChatSession) -> list[str]:
        """What the turn may be called in this session. The last is in no other, which may be a
        deleted one that the same file came into; the one before was given by earlier versions."""
        here = self._derived("turn", f"{session.public_id}\n{name}")
        return [name, self._derived("turn", name), here]

    def _free_id(self, model: Any, prefix: str, names: list[str]) -> str:
        """The id as it is in the file, unless it is no id of ours, somebody else's, or of what was
        erased; then the one that nothing else is called."""
        said = names[0]
        ours = re.fullmatch(f"{prefix}-{_UUID}", said)
        if not ours or is_buried(SESSION, said) or model.objects.filter(public_id=said).exists():
            return names[-1]
        return said

    def _derived(self, prefix: str, name: str) -> str:
        digest = hashlib.sha256(f"{self.user.pk} {name}".encode()).digest()
        return f"{prefix}-{uuid.UUID(bytes=digest[:16], version=5)}"


def _session_name(name: str) -> str:
    """The caller's name for a session that upstream called so."""
    plain = f"openclaw:{name}"
    if plain.isprintable() and len(plain) <= 128:
        return plain
    return f"openclaw:{hashlib.sha256(name.encode()).hexdigest()}"


def _sampling(values: dict[str, Any]) -> dict[str, Any]:
    """The parameters as what they are, if they are ones that a reply can be sampled with again."""
    try:
        known = asdict(_SAMPLING.validate_python(values))
    except ValidationError:
        return {}
    return {name: value for name, value in known.items() if name in values}


def _set_times(row: ChatSession | Turn, **times: datetime | None) -> None:
    """Times that the columns would otherwise set to now; those that are not known stay now."""
    known = {name: at for name, at in times.items() if at is not None}
    if known:
        type(row).objects.filter(pk=row.pk).update(**known)
