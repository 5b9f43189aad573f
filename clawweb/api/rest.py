"""`/api`: sessions, turns, feedback, jobs and adapters of the caller; others' objects are 404."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from django.core.exceptions import ObjectDoesNotExist, RequestDataTooBig
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from ninja import NinjaAPI, Query, Schema, Status
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.docs import Swagger
from ninja.parser import Parser
from pydantic import ConfigDict, Field

from clawweb import tasks
from clawweb.api import agent, comparisons, data, finish, trials
from clawweb.api.auth import Scoped, caller, commanded, key_of
from clawweb.limits import Refused
from clawweb.logs import route_of
from clawweb.models import AdapterVersion, TrainingJob
from clawweb.models.ids import is_number
from clawweb.problem import problem
from clawweb.records import storable
from clawweb.selectors import chat as chats
from clawweb.selectors import learning
from clawweb.selectors.agent import agent_status
from clawweb.selectors.waiting import replies_before
from clawweb.services import feedback, housekeeping, jobs, retyping, serving, versions
from clawweb.services.errors import ServiceError
from clawweb.services.outage import outage


class Storable(Parser):
    """Bodies whose texts any database can hold."""

    def parse_body(self, request: HttpRequest) -> Any:
        return storable(super().parse_body(request))


class Docs(Swagger):
    """Where calls can also be tried. Whoever is signed in makes them by their session, which needs
    its token: ninja puts that on the page only where all calls are guarded alike."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **names: Any) -> HttpResponse:
        settings = {**self.settings, "url": self.get_openapi_url(api, names)}
        context = {"swagger_settings": json.dumps(settings), "api": api, "add_csrf": True}
        return render(request, self.template, context)


api = NinjaAPI(
    parser=Storable(),
    docs=Docs(),
    title="clawweb",
    version="1",
    description="Chat, rate, train, deploy. Lists are `{items, next}`; times are ISO 8601 UTC.",
    urls_namespace="api",
    docs_url="/docs",
)
api.add_router("/agent", agent.router)
api.add_router("", data.router)
api.add_router("", comparisons.router)
api.add_router("", finish.router)
api.add_router("", trials.router)
PAGE = 100
Cursor = str | None  # `next` of the page before


class FeedbackIn(Schema):
    """What the user says about a reply. A field that is left out keeps its last value."""

    model_config = ConfigDict(extra="forbid")

    value: Literal[1, -1] | None = None
    reasons: list[str] | None = Field(None, max_length=20)
    comment: str | None = Field(None, max_length=feedback.MAX_COMMENT)
    correction: str | None = Field(None, max_length=feedback.MAX_CORRECTION)
    final: bool | None = None


class SessionIn(Schema):
    """What its user makes of a session; a field that is left out stays."""

    model_config = ConfigDict(extra="forbid")

    title: str | None = None
    pinned: bool | None = None
    locked: bool | None = None


class TurnIn(Schema):
    """What its user makes of a turn."""

    model_config = ConfigDict(extra="forbid")

    turn_type: Literal["main", "side"]


class JobIn(Schema):
    """`method`: how to learn from the ratings (docs/algorithms.md, Methods, explains each); left
    out, it is the installation's usual one: "combine", unless an admin chose another. `settings`:
    hyper-parameters by name that are to differ from their defaults in this job; the same page
    lists all, and an error names those that a job may be given. `user`: for whose agent, by
    username; left out, your own. Only who runs the training may name somebody else, and only when
    signed in, not by a key."""

    model_config = ConfigDict(extra="forbid")

    method: Literal["combine", "opd", "binary", "kto", "apo_zero_unpaired"] | None = None
    settings: dict[str, Any] = {}
    user: str | None = None


class RollBackIn(Schema):
    """`user`: whose agent, by username; left out, your own. Only who runs the training may name
    somebody else, and only when signed in, not by a key."""

    model_config = ConfigDict(extra="forbid")

    user: str | None = None


@api.exception_handler(ServiceError)
def _refused(request: HttpRequest, exc: ServiceError) -> HttpResponse:
    answer = problem(request, status=exc.status, title=exc.title, detail=str(exc))
    if exc.retry_after:
        answer["Retry-After"] = str(exc.retry_after)
    return answer


@api.exception_handler(ObjectDoesNotExist)
def _missing(request: HttpRequest, exc: ObjectDoesNotExist) -> HttpResponse:
    detail = _("There is no such thing of yours.")
    return problem(request, status=404, title="not_found", detail=detail)


@api.exception_handler(RequestDataTooBig)
def _too_large(request: HttpRequest, exc: RequestDataTooBig) -> HttpResponse:
    detail = _("The request is larger than %(n)s MB.") % {"n": 4}
    return problem(request, status=413, title="too_large", detail=detail)


@api.exception_handler(AuthenticationError)
def _stranger(request: HttpRequest, exc: AuthenticationError) -> HttpResponse:
    detail = "Sign in, or send a valid key as `Authorization: Bearer <key>`."
    return problem(request, status=401, title="not_signed_in", detail=detail)


@api.exception_handler(Refused)
def _too_often(request: HttpRequest, exc: Refused) -> HttpResponse:
    answer = problem(request, status=429, title="rate_limit_exceeded", detail=str(exc))
    answer["Retry-After"] = exc.headers["Retry-After"]
    return answer


@api.exception_handler(HttpError)
def _http_error(request: HttpRequest, exc: HttpError) -> HttpResponse:
    title = {400: "malformed", 403: "forbidden"}.get(exc.status_code, "error")
    detail = str(exc)
    if isinstance(exc.__cause__, ValueError):  # ninja's words say only that it could not read it
        detail = _('The body is not JSON: send an object in UTF-8, as {"name": "value"}.')
    return problem(request, status=exc.status_code, title=title, detail=detail)


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, exc: ValidationError) -> HttpResponse:
    errors = [{"where": _where(error["loc"]), "what": error["msg"]} for error in exc.errors]
    detail = "; ".join(f"{error['where']}: {error['what']}" for error in errors)
    return problem(request, status=422, title="invalid", detail=detail, errors=errors)


def _where(loc: Sequence[Any]) -> str:
    """`body.value`: ninja says of a body's field also what the call names the body."""
    doubled = loc[:2] == ("body", "body")
    return ".".join(map(str, loc[1:] if doubled else loc))


@api.exception_handler(Exception)
def _broken(request: HttpRequest, exc: Exception) -> HttpResponse:
    import logging

    logging.getLogger(__name__).exception("%s %s failed", request.method, route_of(request))
    if out := outage(exc):
        return _refused(request, out)
    detail = _("Something broke on our side. The request id finds it in the log.")
    return problem(request, status=500, title="internal_error", detail=detail)


def _page(rows: QuerySet[Any], cursor: str | None) -> tuple[list[Any], str | None]:
    """One page of rows with their primary keys falling, and the cursor of the next."""
    if cursor:
        if not is_number(cursor):
            raise HttpError(400, "`cursor` is the `next` of an earlier page.")
        rows = rows.filter(pk__lt=int(cursor))
    found = list(rows.order_by("-pk")[: PAGE + 1])
    return found[:PAGE], str(found[PAGE - 1].pk) if len(found) > PAGE else None


def _listed(items: list[Any], following: str | None = None) -> dict[str, Any]:
    return {"items": items, "next": following}


@api.get("/sessions", auth=Scoped("read"), tags=["chat"])
def list_sessions(request: HttpRequest, cursor: Cursor = None) -> Any:
    rows, following = _page(chats.sessions_of(caller(request)), cursor)
    return _listed([chats.session_json(row) for row in rows], following)


@api.post("/sessions/{name}/restore", auth=Scoped("feedback"), tags=["chat"])
def restore_session(request: HttpRequest, name: str) -> Any:
    """Undo a deletion, by the session's own id."""
    user = caller(request)
    housekeeping.restore_session(user.chat_sessions.get(public_id=name))
    return chats.session_json(chats.session_of(user, name))


@api.get("/sessions/{path:name}", auth=Scoped("read"), tags=["chat"])
def get_session(request: HttpRequest, name: str, last: int | None = Query(None, ge=1)) -> Any:
    """One session (by id or by the caller's name for it, slashes and all) with its turns in order,
    or the last ones."""
    session = chats.session_of(caller(request), name)
    only = [row["id"] for row in chats.outline(session)[-last:]] if last else None
    return {**chats.session_json(session), "turns": chats.turns_json(session, only)}


@api.patch("/sessions/{path:name}", auth=Scoped("feedback"), tags=["chat"])
def patch_session(request: HttpRequest, name: str, body: SessionIn) -> Any:
    """Rename a session, pin it, or keep it out of training."""
    user = caller(request)
    housekeeping.edit_session(chats.session_of(user, name), **body.dict(exclude_unset=True))
    return chats.session_json(chats.session_of(user, name))


@api.delete("/sessions/{path:name}", auth=Scoped("feedback"), response={204: None}, tags=["chat"])
def delete_session(request: HttpRequest, name: str) -> Any:
    """Hide a session at once; ten minutes later it is erased. Until then it can be restored."""
    housekeeping.delete_session(chats.session_of(caller(request), name))
    return Status(204, None)


@api.get("/turns/{turn_id}", auth=Scoped("read"), tags=["chat"])
def get_turn(request: HttpRequest, turn_id: str) -> Any:
    """A turn; while it is pending, how many replies are begun before it."""
    turn = chats.turn_of(caller(request), turn_id)
    return {**chats.turn_json(turn), "replies_before": replies_before(turn)}


@api.post("/turns/{turn_id}", auth=Scoped("feedback"), tags=["chat"])
def post_turn(request: HttpRequest, turn_id: str, body: TurnIn) -> Any:
    """Say whether a turn is part of the conversation (main) or a background call (side); its
    rating, if training has not taken it yet, counts or does not count from then on."""
    user = caller(request)
    retyping.set_turn_type(turn=chats.turn_of(user, turn_id), turn_type=body.turn_type)
    turn = chats.turn_of(user, turn_id)
    tasks.after_retyping(turn)
    return chats.turn_json(turn)


@api.post("/turns/{turn_id}/feedback", auth=Scoped("feedback"), tags=["feedback"])
def post_feedback(request: HttpRequest, turn_id: str, body: FeedbackIn) -> Any:
    """Rate a reply; the answer is the rating's receipt."""
    user = caller(request)
    turn = chats.turn_of(user, turn_id)
    source = "api" if key_of(request) else "ui"
    feedback.rate_turn(
        turn=turn, author=user, changes=body.model_dump(exclude_unset=True), source=source
    )
    tasks.after_rating(user)
    found = learning.receipt(chats.turn_of(user, turn_id))
    return found or {**_NO_RECEIPT, "text": _("taken back")}


_NO_RECEIPT = {
    "state": "withdrawn",
    "count": None,
    "drop_reason": None,
    "job": None,
    "adapter": None,
    "judged": False,
}


@api.get("/reasons", auth=Scoped("feedback"), tags=["feedback"])
def list_reasons(request: HttpRequest) -> Any:
    return _listed(
        [{"slug": row.slug, "label": row.label, "hint": row.hint} for row in chats.active_reasons()]
    )


@api.get("/status", auth=Scoped("read"), tags=["learning"])
def get_status(request: HttpRequest) -> Any:
    """Which version answers, and how far the next training is."""
    return agent_status(caller(request))


@api.post("/jobs", auth=Scoped("train"), response={202: Any}, tags=["learning"])
def post_job(request: HttpRequest, body: JobIn | None = None) -> Any:
    """Train now from what is ready; 409 says why when nothing is."""
    body = body or JobIn()
    user = commanded(request).get(username=body.user) if body.user else caller(request)
    job = jobs.queue_job(user=user, trigger="manual", method=body.method, chosen=body.settings)
    tasks.enqueue(tasks.run_training_job, job.public_id)
    return Status(202, learning.job_json(job))


@api.get("/jobs", auth=Scoped("read"), tags=["learning"])
def list_jobs(request: HttpRequest, cursor: Cursor = None) -> Any:
    rows, following = _page(learning.jobs_of(caller(request)), cursor)
    return _listed([learning.job_json(row) for row in rows], following)


@api.get("/jobs/{job_id}", auth=Scoped("read"), tags=["learning"])
def get_job(request: HttpRequest, job_id: str) -> Any:
    return learning.job_json(learning.jobs_of(caller(request)).get(public_id=job_id))


@api.get("/jobs/{job_id}/metrics", auth=Scoped("read"), tags=["learning"])
def get_metrics(request: HttpRequest, job_id: str, after: int = -1) -> Any:
    """Metric points after step `after`, exclusive. Keys that were not measured are absent; a value
    that came out as no number is its name: nan, inf or -inf."""
    job = learning.jobs_of(caller(request)).get(public_id=job_id)
    return {"points": learning.metric_points(job, after), "state": job.state}


@api.post("/jobs/{job_id}/cancel", auth=Scoped("train"), response={202: Any}, tags=["learning"])
def cancel_job(request: HttpRequest, job_id: str) -> Any:
    job = TrainingJob.objects.get(user__in=commanded(request), public_id=job_id)
    if not jobs.cancel_job(job):
        raise ServiceError(_("The job is over, and cannot be cancelled any more."))
    return Status(202, learning.job_json(learning.jobs_of(job.user).get(pk=job.pk)))


@api.get("/adapters", auth=Scoped("read"), tags=["learning"])
def list_adapters(request: HttpRequest, cursor: Cursor = None) -> Any:
    rows, following = _page(learning.adapters_of(caller(request)), cursor)
    return _listed([learning.adapter_json(row) for row in rows], following)


@api.post("/adapters/rollback", auth=Scoped("train"), tags=["learning"])
def roll_back(request: HttpRequest, body: RollBackIn | None = None) -> Any:
    """Move `live` to the version before it, finally to the base model; 409 when base answers
    already."""
    whose = body.user if body else None
    user = commanded(request).get(username=whose) if whose else caller(request)
    back = versions.rollback(user)
    return learning.adapter_json(learning.adapters_of(user).get(pk=back.pk)) if back else _BASE_LIVE


_BASE_LIVE = {"id": "base", "name": "base", "version": 0, "state": "live", "gate": []}


@api.post("/adapters/{name}/promote", auth=Scoped("train"), tags=["learning"])
def promote(request: HttpRequest, name: str) -> Any:
    adapter = AdapterVersion.objects.get(user__in=commanded(request), name=name)
    versions.promote(user=adapter.user, adapter=adapter)
    return learning.adapter_json(learning.adapters_of(adapter.user).get(pk=adapter.pk))


@api.get("/adapters/{name}/download", auth=Scoped("export"), tags=["learning"])
def download(request: HttpRequest, name: str) -> Any:
    """The version as a ZIP that `peft` loads elsewhere."""
    adapter = _adapter(request, name)
    name = f"{adapter.name}.zip"
    return data.sent(serving.packed(adapter), name=name, kind="application/zip")


@api.delete("/adapters/{name}", auth=Scoped("train"), response={204: None}, tags=["learning"])
def delete_adapter(request: HttpRequest, name: str) -> Any:
    """Remove a version's files; 409 while it answers, writes or is trained from."""
    versions.delete(adapter=_adapter(request, name))
    return Status(204, None)


def _adapter(request: HttpRequest, name: str) -> AdapterVersion:
    return learning.adapters_of(caller(request)).get(name=name)
