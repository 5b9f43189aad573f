"""Writes of saved views: filters of a list under a name."""

from __future__ import annotations

from django.utils.translation import gettext as _

from clawweb.models import SavedView, User
from clawweb.records import storable
from clawweb.services.errors import ServiceError

MOST = 30  # of one page


def save_view(*, user: User, page: str, name: str, query: str) -> SavedView:
    """The view under this name; one of the same name is replaced."""
    name, query = " ".join(storable(name).split())[:60], storable(query)
    if not name:
        raise ServiceError(_("Give the view a name."))
    mine = SavedView.objects.filter(user=user, page=page)
    if mine.exclude(name=name).count() >= MOST:
        raise ServiceError(
            _("There are %(most)d saved views here already. Delete one first.") % {"most": MOST}
        )
    row, _made = SavedView.objects.update_or_create(
        user=user, page=page, name=name, defaults={"query": query[:2000]}
    )
    return row


def delete_view(*, user: User, view_id: int) -> SavedView | None:
    """Delete one of the user's; what it held, so that it can be saved again. None: not there."""
    row = SavedView.objects.filter(user=user, pk=view_id).first()
    if row is not None:
        SavedView.objects.filter(pk=row.pk).delete()
    return row
