"""`/api/jobs/{id}/finish`: stop training early and keep what it has learned."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Status

from clawweb.api.auth import Scoped, commanded
from clawweb.models import TrainingJob
from clawweb.selectors import learning
from clawweb.services import finishing

router = Router(tags=["learning"])


@router.post("/jobs/{job_id}/finish", auth=Scoped("train"), response={202: Any})
def finish_job(request: HttpRequest, job_id: str) -> Any:
    """Stop after the step that is being made, and test what was learned by then; 409 when the job
    is not training. To throw it away, cancel it."""
    job = TrainingJob.objects.get(user__in=commanded(request), public_id=job_id)
    finishing.finish_job(job)
    return Status(202, learning.job_json(learning.jobs_of(job.user).get(pk=job.pk)))
