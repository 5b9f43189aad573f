"""The form above the list of sessions. What it cannot read asks for nothing."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from clawweb.models import User
from clawweb.selectors.chat import all_reasons
from clawweb.selectors.inspector import Filters, versions_of

VOTES = [("", _("any")), ("liked", _("liked")), ("disliked", _("disliked"))]
RECEIPTS = [
    ("", _("any")),
    ("saved", _("saved")),
    ("counted", _("counted")),
    ("held_back", _("kept aside for tests")),
    ("in_training", _("in training")),
    ("learned", _("learned")),
    ("not_used", _("not used")),
    ("superseded", _("put aside")),
    ("withdrawn", _("taken back")),
]
SOURCES = [("", _("anywhere")), ("ui", _("this site")), ("api", _("API"))]
_DAY = {"type": "date"}


class FilterForm(forms.Form):
    """Each field is a part of the page's address."""

    q = forms.CharField(
        label=_("Words"), max_length=100, required=False, widget=forms.TextInput({"type": "search"})
    )
    vote = forms.ChoiceField(label=_("Rated"), choices=VOTES, required=False)
    reason = forms.ChoiceField(label=_("Reason"), required=False)
    version = forms.TypedChoiceField(label=_("Answered by"), coerce=int, required=False)
    receipt = forms.ChoiceField(label=_("What became of it"), choices=RECEIPTS, required=False)
    source = forms.ChoiceField(label=_("From"), choices=SOURCES, required=False)
    since = forms.DateField(
        label=_("In use since"), required=False, widget=forms.DateInput(_DAY, "%Y-%m-%d")
    )
    until = forms.DateField(
        label=_("Until"), required=False, widget=forms.DateInput(_DAY, "%Y-%m-%d")
    )
    corrected = forms.BooleanField(label=_("Corrected"), required=False)

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        asked = self.data.get("reason", "")  # one in use no more, as an older view has it, counts
        rows = [row for row in all_reasons() if row.active or row.slug == asked]
        slugs = [(row.slug, _(row.label)) for row in rows]
        self.fields["reason"].choices = [("", _("any")), *slugs]  # type: ignore[attr-defined]
        names = [(n, f"v{n}" if n else _("base model")) for n in versions_of(user)]
        self.fields["version"].choices = [("", _("any")), *names]  # type: ignore[attr-defined]

    def filters(self) -> Filters:
        """What is asked for, without the fields that say nothing that can be read."""
        self.is_valid()
        data = self.cleaned_data
        return Filters(
            words=data.get("q", "").strip(),
            vote=data.get("vote", ""),
            reason=data.get("reason", ""),
            version=data["version"] if data.get("version", "") != "" else None,
            receipt=data.get("receipt", ""),
            corrected=data.get("corrected", False),
            source=data.get("source", ""),
            since=data.get("since"),
            until=data.get("until"),
        )

    def query(self) -> str:
        """The fields that ask for something, as they stand in an address."""
        from urllib.parse import urlencode

        kept = [(name, self.data.get(name, "")) for name in self.fields]
        return urlencode([(name, value) for name, value in kept if value])
