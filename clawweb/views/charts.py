"""What the charts of a job's page draw: few points for the eye, all of them as a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.cache import get_conditional_response, patch_cache_control
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from clawweb.figures import CHARTS, figures
from clawweb.models import TrainingJob, User
from clawweb.selectors.charts import (
    COMPARED,
    TABLED,
    Window,
    compared_jobs,
    marks_of,
    series,
    series_version,
)
from clawweb.selectors.learning import job_number, metric_points, visible_jobs

OFFERED = 30  # newest other jobs that a page offers to compare with


@login_required
@require_safe
def job_series(request: HttpRequest, job_id: str) -> HttpResponse:
    """The points to draw: `after` a step, `from` and `to` a step, `with` other jobs. The same
    request has the same answer, and 304 when the browser holds it."""
    jobs = _jobs(request, job_id)
    now = timezone.now()
    marks = marks_of(jobs)
    etag = series_version(jobs, marks, request.GET.urlencode(), now)
    response = get_conditional_response(request, etag)
    if response is None:
        response = JsonResponse(series(request.user, jobs, marks, _window(request), now))
    response["ETag"] = etag
    patch_cache_control(response, private=True, no_cache=True)
    return response


@login_required
@require_safe
def job_csv(request: HttpRequest, job_id: str) -> HttpResponse:
    """Every point and every value that was measured, in full precision; `with` other jobs."""
    rows = [(job, point) for job in _jobs(request, job_id) for point in metric_points(job)]
    names = list(dict.fromkeys(name for _job, point in rows for name in point))
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["job", *names])
    for job, point in rows:
        table.writerow([job.public_id, *(_plain(point.get(name)) for name in names)])
    response = HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{job_id}.csv"'
    response["Cache-Control"] = "private, no-store"
    return response


def job_or_404(user: User, public_id: str) -> TrainingJob:
    """A job that the user may look at; another's is as if it were not there."""
    try:
        return visible_jobs(user).get(public_id=public_id)
    except TrainingJob.DoesNotExist:
        raise Http404(_("You have no job with that address.")) from None


def charts_context(request: HttpRequest, job: TrainingJob) -> dict[str, Any]:
    """For the job's page: the figures in words, a table that needs no script, and the points."""
    user = request.user
    compared = compared_jobs(user, job, ",".join(request.GET.getlist("with")))
    jobs = [job, *compared]
    data = series(user, jobs, marks_of(jobs), Window(), timezone.now())
    charts = figures(data["words"], data["jobs"][0]["traces"])
    return {
        "charts": charts,
        "unmeasured": [chart["title"] for chart in charts if not chart["measured"]],
        "rows": data["rows"],
        "left_out": data["points"] > TABLED,
        "others": _others(user, job, compared),
        "compared_most": COMPARED - 1,
        "series": data,
        "alerts": data["alerts"],
        "columns": CHARTS,
    }


def _jobs(request: HttpRequest, job_id: str) -> list[TrainingJob]:
    job = job_or_404(request.user, job_id)
    names = ",".join(request.GET.getlist("with"))
    return [job, *compared_jobs(request.user, job, names)]


def _window(request: HttpRequest) -> Window:
    def step(name: str) -> int | None:
        value = request.GET.get(name, "")
        return int(value) if value.isdecimal() and len(value) < 10 else None

    after = step("after")
    return Window(after=-1 if after is None else after, low=step("from"), high=step("to"))


def _others(user: User, job: TrainingJob, compared: Sequence[TrainingJob]) -> list[dict[str, Any]]:
    """Jobs to compare with: those that are compared, then the newest that measured something."""
    rows = visible_jobs(user).exclude(pk=job.pk).filter(metrics__isnull=False).distinct()
    newest = list(rows.order_by("-pk")[:OFFERED])
    chosen = {row.pk for row in compared}
    return [
        {
            # By its number where that is plain, by its id among several people's
            "name": job_number(row) if row.user_id == job.user_id else row.public_id,
            "number": job_number(row),
            "method": row.method,
            "owner": row.user.get_username() if row.user_id != user.pk else "",
            "chosen": row.pk in chosen,
        }
        for row in {row.pk: row for row in [*compared, *newest]}.values()
    ]


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value
