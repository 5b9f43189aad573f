"""`/api`: a version of the caller's that answers a share of their chat on trial."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import ConfigDict, Field

from clawweb.api.auth import Scoped, caller
from clawweb.models import AdapterVersion
from clawweb.selectors.learning import adapter_json, adapters_of
from clawweb.services import trials

router = Router(tags=["learning"])


class TrialIn(Schema):
    """`share`: percent of the chat's turns."""

    model_config = ConfigDict(extra="forbid")

    share: int = Field(20, ge=1, le=50)


@router.post("/adapters/{name}/trial", auth=Scoped("train"))
def post_trial(request: HttpRequest, name: str, body: TrialIn) -> Any:
    """Let it answer a share of the chat; its answers are rated and do not train. It ends when the
    version is made live, is gone, or another one is tried."""
    trials.start_trial(adapter=_own(request, name), share=body.share)
    return adapter_json(_own(request, name))


@router.delete("/adapters/{name}/trial", auth=Scoped("train"))
def delete_trial(request: HttpRequest, name: str) -> Any:
    """The live version answers everything again."""
    trials.stop_trial(adapter=_own(request, name))
    return adapter_json(_own(request, name))


def _own(request: HttpRequest, name: str) -> AdapterVersion:
    return adapters_of(caller(request)).get(name=name)
