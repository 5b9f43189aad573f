"""`/api`: two replies to the same words, and which one the caller would rather have."""

from __future__ import annotations

from typing import Any, Literal

from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import ConfigDict, Field

from clawweb.api.auth import Scoped, caller
from clawweb.models import Comparison
from clawweb.selectors.chat import turn_of
from clawweb.selectors.comparisons import comparison_json, comparisons_of
from clawweb.services import comparisons

router = Router(tags=["comparisons"])


class CompareIn(Schema):
    """`with`: "agent@vN", "base", "previous", "live", or "other": one of them by chance."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    other: str = Field(comparisons.OTHER, alias="with", max_length=40)
    kind: Literal["blind", "again", "recheck"] = "blind"


class VerdictIn(Schema):
    """`first` is the older reply, `second` the one that was asked for beside it."""

    model_config = ConfigDict(extra="forbid")

    verdict: Literal["first", "second", "tie", "neither"]


@router.post("/turns/{turn_id}/compare", auth=Scoped("chat"), response={202: Any})
def post_compare(request: HttpRequest, turn_id: str, body: CompareIn | None = None) -> Any:
    """Ask another version for a second reply; 409 says why when it cannot answer."""
    user = caller(request)
    body = body or CompareIn()
    comparison = comparisons.open_comparison(
        turn=turn_of(user, turn_id), other=body.other, kind=body.kind
    )
    return Status(202, comparison_json(_own(request, comparison.public_id)))


@router.get("/comparisons/{comparison_id}", auth=Scoped("read"))
def get_comparison(request: HttpRequest, comparison_id: str) -> Any:
    """Both replies as they are now; without their versions while a blind one is not decided."""
    return comparison_json(_own(request, comparison_id))


@router.post("/comparisons/{comparison_id}", auth=Scoped("feedback"))
def post_verdict(request: HttpRequest, comparison_id: str, body: VerdictIn) -> Any:
    """Say which one is better, once."""
    comparisons.decide(comparison=_own(request, comparison_id), verdict=body.verdict)
    return comparison_json(_own(request, comparison_id))


@router.delete("/comparisons/{comparison_id}", auth=Scoped("feedback"), response={204: None})
def delete_comparison(request: HttpRequest, comparison_id: str) -> Any:
    """Close it without a verdict: the conversation is as it was."""
    comparisons.close(comparison=_own(request, comparison_id))
    return Status(204, None)


def _own(request: HttpRequest, comparison_id: str) -> Comparison:
    return comparisons_of(caller(request)).get(public_id=comparison_id)
