"""Forms of the settings page. They check shapes; services decide."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.utils.translation import gettext_lazy as _

from clawweb.engine import judge_is_elsewhere
from clawweb.models import SCOPES, Consent, ReplyLength, User
from clawweb.services.accounts import MOST_INSTRUCTIONS, MOST_TEMPERATURE, UI_SCOPES

CONSENT_TEXTS = {
    Consent.TRAIN: _("Keep my chats and train my agent on what I rate"),
    Consent.KEEP: _("Keep my chats, but do not train on them"),
    Consent.NOTHING: _("Keep nothing: texts are gone after an hour and cannot be rated"),
}
LENGTH_TEXTS = {
    "": _("As this installation has it"),
    ReplyLength.SHORT: _("Short: a paragraph"),
    ReplyLength.MEDIUM: _("Medium: about 200 words"),
    ReplyLength.LONG: _("Long: what fits"),
}
SCOPE_TEXTS = {
    "chat": _("chat: ask your agent"),
    "feedback": _("feedback: rate its replies"),
    "train": _("train: start jobs, promote and roll back versions"),
    "read": _("read: list sessions, jobs and versions"),
    "export": _("export: take all your data out"),
}


class SignInForm(AuthenticationForm):
    """Django's own, whose German only asks for a name and a password where it refuses them."""

    error_messages = AuthenticationForm.error_messages | {
        "invalid_login": _(
            "No account here has this username with this password. Both mind capital letters."
        )
    }


class ConsentForm(forms.Form):
    consent = forms.ChoiceField(
        label=_("What may happen to your chats"),
        choices=list(CONSENT_TEXTS.items()),
        widget=forms.RadioSelect,
    )
    prompt_hints = forms.BooleanField(
        label=_("Follow my notes at once"),
        help_text=_(
            "What you tick or write under a reply goes into the prompt of the next ones, the four "
            "newest notes at most, until a version has learned it or your thumb on that reply. "
            "Only while your agent trains on what you rate."
        ),
        required=False,
    )
    judge_elsewhere = forms.BooleanField(
        label=_("Let the judge elsewhere read my chats"),
        help_text=_(
            "A model outside this installation then reads each reply with its question, a little "
            "of what came before, and what you said next, and tells whether the reply was what "
            "you wanted. Without your tick nothing leaves, and only your ratings count."
        ),
        required=False,
    )
    reviewers_may_read = forms.BooleanField(
        label=_("Let reviewers read my chats"),
        help_text=_(
            "Reviewers and admins of this installation can then open your chats to see what goes "
            "wrong. Each time is written down, and you see it here."
        ),
        required=False,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not judge_is_elsewhere():
            del self.fields["judge_elsewhere"]  # nobody is asked what does not arise


class Lines(forms.CharField):
    """Lines that end as the browser's box counts them, and as the model is told them: a form sends
    two characters for each."""

    def to_python(self, value: Any) -> str:
        return str(super().to_python(value)).replace("\r\n", "\n")


class AskingForm(forms.Form):
    instructions = Lines(
        label=_("Standing instructions"),
        help_text=_(
            "Your agent reads them above every chat: who you are, how you like to be answered. "
            "They hold from your next message on; a temporary chat keeps no copy."
        ),
        max_length=MOST_INSTRUCTIONS,
        required=False,
        widget=forms.Textarea(
            attrs={"rows": 4, "placeholder": _("For example: I am a nurse. Use metric units.")}
        ),
    )
    reply_length = forms.ChoiceField(
        label=_("How long replies may get"),
        choices=list(LENGTH_TEXTS.items()),
        required=False,
        widget=forms.RadioSelect,
    )
    temperature = forms.FloatField(
        label=_("Temperature"),
        help_text=_(
            "From 0 to 1.5. A low one keeps to what is likely, a high one varies more. At 0 every "
            "reply is the likeliest one: it then teaches your agent only together with a reason, a "
            "sentence or a correction. Empty: 0.7."
        ),
        min_value=0,
        max_value=MOST_TEMPERATURE,
        required=False,
        widget=forms.NumberInput(attrs={"step": "any", "inputmode": "decimal"}),
    )


class EraseForm(forms.Form):
    """Somebody who types their own name means it."""

    name = forms.CharField(widget=forms.TextInput(attrs={"autocomplete": "off"}))

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wanted = user.get_username()
        self.fields["name"].label = _("Type %(name)s to erase it all") % {"name": self.wanted}

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"]).strip()
        if name != self.wanted:
            raise forms.ValidationError(_("That is not your username. Nothing was erased."))
        return name


KEY_LIVES = [
    ("", _("for ever")),
    ("7", _("a week")),
    ("30", _("30 days")),
    ("90", _("90 days")),
    ("365", _("a year")),
]


class KeyForm(forms.Form):
    name = forms.CharField(
        label=_("What is it for?"),
        max_length=80,
        widget=forms.TextInput(attrs={"autocomplete": "off", "placeholder": _("my notebook")}),
    )
    scopes = forms.MultipleChoiceField(
        label=_("What may it do?"),
        choices=[(scope, SCOPE_TEXTS[scope]) for scope in SCOPES],
        initial=list(UI_SCOPES),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": _("Tick at least one.")},
    )
    days = forms.TypedChoiceField(
        label=_("How long does it work?"),
        choices=KEY_LIVES,
        coerce=int,
        empty_value=None,
        required=False,
    )


class UserForm(forms.Form):
    username = forms.CharField(
        label=_("Username"), max_length=150, widget=forms.TextInput(attrs={"autocomplete": "off"})
    )
    password = forms.CharField(
        label=_("Password"),
        strip=False,  # where it is asked for a space counts
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text=_("They can change it once they have signed in."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.auto_id = "new-user-%s"  # the page has other forms
