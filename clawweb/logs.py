"""Lines of the logs, and the ids on them that lead from a request to a version.

A turn's id is on the line of the request that asked for it, on its reply's, its ratings', on those
of the job that took it and of the version that learned from it. What is bound by `about` stands on
every line until its block ends, also in threads and tasks that are begun inside. Nobody's texts are
logged, and what looks like a key or a link to sign in is cut out. Knows no models: it is there
before they are.
"""

from __future__ import annotations

import logging
import re
from contextlib import AbstractContextManager
from typing import Any

from django.http import HttpRequest
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.processors import JSONRenderer, TimeStamper, format_exc_info
from structlog.stdlib import ExtraAdder, ProcessorFormatter, add_log_level, add_logger_name
from structlog.typing import EventDict, Processor, WrappedLogger

from clawweb.config import config

# What a call may add by `extra`. Django's own lines carry whole requests there: those stay out.
FIELDS = ("user", "session", "turn", "judgement", "job", "version", "transfer", "tokens")
FIELDS += ("milliseconds",)
# Both can stand in an address or a header that a library logs when a request goes wrong.
_SECRET = re.compile(r"(/signin/|claw-)[A-Za-z0-9_-]{20,}")
# PostgreSQL shows the row that it refuses, and a row may hold somebody's words.
_ROW = re.compile(r"DETAIL:.*?(?=\n\n(?:The above|During handling)|\Z)", re.DOTALL)
# What Celery says a task was given, as the names that others use. Tasks are given ids alone.
_GIVEN = {"job": re.compile(r"job-[0-9a-f-]{36}"), "transfer": re.compile(r"file-[0-9a-f-]{36}")}
_JUDGEMENT = re.compile(r"\d+")


def about(**ids: Any) -> AbstractContextManager[None]:
    """Inside, these ids stand on every line; those without a value on none."""
    return bound_contextvars(**{name: value for name, value in ids.items() if value})


def of_turn(turn: Any) -> dict[str, Any]:
    """A turn's ids; its session comes with it."""
    session = turn.session
    return {"turn": turn.public_id, "session": session.public_id, "user": session.user_id}


def route_of(request: HttpRequest) -> str:
    """What a line says instead of the path, which may hold a link to sign in, or a name that its
    caller gave to a session."""
    match = request.resolver_match
    return f"/{match.route}" if match else "(nothing there)"


def make_formatter() -> logging.Formatter:
    """For the handler of all loggers: lines to read, or JSON (CLAWWEB_LOG_FORMAT)."""
    lines = JSONRenderer(ensure_ascii=False) if config().log_format == "json" else _plain
    before: list[Processor] = [
        merge_contextvars,
        ExtraAdder(allow=FIELDS),
        _of_task,
        _of_request,
        add_log_level,
        add_logger_name,
        TimeStamper(fmt="iso", utc=True, key="at"),
    ]
    after: list[Processor] = [
        ProcessorFormatter.remove_processors_meta,
        format_exc_info,
        _clean,
        lines,
    ]
    return ProcessorFormatter(foreign_pre_chain=before, processors=after)


def _of_task(_: WrappedLogger, __: str, entry: EventDict) -> EventDict:
    """Celery's own lines about a task (received, succeeded, broken) name the rows that it is about;
    else only the id of the message would tell, which nothing else knows."""
    told = getattr(entry["_record"], "data", None)
    if isinstance(told, dict) and str(told.get("name")).startswith("clawweb.tasks."):
        given = str(told.get("args"))
        wanted = {"judgement": _JUDGEMENT} if told["name"].endswith(".judge") else _GIVEN
        for name, shape in wanted.items():
            if found := shape.search(given):
                entry[name] = found[0]
    return entry


def _of_request(_: WrappedLogger, __: str, entry: EventDict) -> EventDict:
    """Django's own lines about a request (not found, forbidden, broken) say its path at their end,
    escaped."""
    request = getattr(entry["_record"], "request", None)
    if isinstance(request, HttpRequest):
        words, path = str(entry["event"]), request.path.encode("unicode_escape").decode()
        if words.endswith(f": {path}"):
            entry["event"] = words.removesuffix(path) + route_of(request)
    return entry


def _clean(_: WrappedLogger, __: str, entry: EventDict) -> EventDict:
    """Without secrets, and without names that have no value. Rows stand by their names."""
    return {
        name: value if isinstance(value, int | float) else _cut(str(value))
        for name, value in entry.items()
        if value is not None
    }


def _cut(text: str) -> str:
    return _ROW.sub("DETAIL: …", _SECRET.sub(r"\1…", text))


def _plain(_: WrappedLogger, __: str, entry: EventDict) -> str:
    """`time LEVEL logger words key=value …`, a traceback below. Names stand in FIELDS' order, the
    rest after them: what is bound comes in no order of its own."""
    at, level, name = entry.pop("at"), entry.pop("level"), entry.pop("logger")
    words, trace = entry.pop("event"), entry.pop("exception", "")
    names = [name for name in FIELDS if name in entry] + sorted(entry.keys() - FIELDS)
    ids = "".join(f" {name}={entry[name]}" for name in names)
    return f"{at} {level.upper()} {name} {words}{ids}" + (f"\n{trace}" if trace else "")
