"""Writes of trials: a version answers a share of its user's chat before it is made live."""

from __future__ import annotations

from django.db import transaction
from django.utils.translation import gettext as _

from clawweb.engine import base_hash
from clawweb.events import changed
from clawweb.models import AdapterState, AdapterVersion, User
from clawweb.services import audit, serving
from clawweb.services.errors import CannotTry


def start_trial(*, adapter: AdapterVersion, share: int) -> None:
    """Let an accepted version answer `share` percent (1 to 50) of its user's chat. What it says can
    be rated and does not train. CannotTry, EngineDown."""
    if adapter.state != AdapterState.STANDBY:
        raise _refused(adapter)
    if adapter.base_hash != base_hash():
        raise CannotTry(
            _("Version %(n)s was trained on another base model than is served now.")
            % {"n": adapter.version}
        )
    serving.serve(adapter)
    with transaction.atomic():
        standby = AdapterVersion.objects.filter(pk=adapter.pk, state=AdapterState.STANDBY)
        if standby.select_for_update().first() is None:  # it went live meanwhile, or its files went
            raise _refused(adapter)
        user = User.objects.filter(pk=adapter.user_id)
        user.update(trial=adapter, trial_share=share)
        audit.record("start_trial", adapter, after={"share": share})
        changed(adapter.user_id, "adapter", adapter.name)


def _refused(adapter: AdapterVersion) -> CannotTry:
    return CannotTry(
        _(
            "Version %(n)s cannot be tried: only a version that passed its tests and does not "
            "answer already can."
        )
        % {"n": adapter.version}
    )


@transaction.atomic
def stop_trial(*, adapter: AdapterVersion) -> None:
    """The live version answers everything again; nothing happens when this one is not on trial."""
    stopped = User.objects.filter(pk=adapter.user_id, trial=adapter)
    if stopped.update(trial=None, trial_share=0):
        audit.record("stop_trial", adapter)
        changed(adapter.user_id, "adapter", adapter.name)
