"""Staff tables. Texts of chats and ratings are nobody's to read here: those rows show ids only."""

from __future__ import annotations

from typing import Any

from allauth.account.decorators import secure_admin_login
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from allauth.usersessions.models import UserSession
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import UserChangeForm
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet, fields
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _

from clawweb import models
from clawweb.config import config
from clawweb.events import look_again
from clawweb.services import accounts, audit, browsers, erasure, second_factor
from clawweb.services.errors import ServiceError
from clawweb.tables import as_csv
from training.config import METHODS

admin.site.site_header = _("clawweb: admin tables")
admin.site.site_title = "clawweb"
admin.site.site_url = "/chat/"
admin.site.unregister(Group)  # roles say what people may do; groups would say nothing
# One way to sign in: the tables' own would ask for no second factor, and count no tries.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]


def _own_page(request: HttpRequest, extra_context: Any = None) -> HttpResponse:
    """Where tries at the old password are counted, and the change ends other browsers and is
    written down."""
    return redirect("password")


admin.site.password_change = _own_page  # type: ignore[method-assign, assignment]
for _table in (EmailAddress, Authenticator, SocialAccount, SocialApp, SocialToken, UserSession):
    admin.site.unregister(_table)  # secrets, and rows that pages of ours write


# A person's own choices: nobody consents in their place
CHOSEN = ["consent", "prompt_hints", "judge_elsewhere", "reviewers_may_read", "learning_paused"]


class NamedCells(admin.ModelAdmin):
    """Fields that are edited in the list say to a screen reader what they are: the heading above
    them does not."""

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        form = super().get_changelist_form(request, **kwargs)

        class Named(form):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                for field in self.fields.values():
                    field.widget.attrs["aria-label"] = f"{field.label}: {self.instance}"

        return Named


class LookOnly(admin.ModelAdmin):
    """Rows that services write: to be looked at, not edited past their rules."""

    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class IdsOnly(LookOnly):
    """A list without a page per row: the row holds what somebody said."""

    list_display_links = None

    def change_view(self, *args: Any, **kwargs: Any) -> HttpResponse:
        raise Http404

    def history_view(self, *args: Any, **kwargs: Any) -> HttpResponse:
        raise Http404


class Audited(admin.ModelAdmin):
    """Rows that admins change: each change goes into the audit log too, without texts."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        names = [name for name in form.changed_data if _may_be_told(obj, name)]
        before = {name: _plain(form.initial.get(name)) for name in names} if change else {}
        after = {name: _plain(form.cleaned_data.get(name)) for name in names}
        audit.record("change_row" if change else "add_row", obj, before=before, after=after)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        audit.record("delete_row", obj)
        super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for row in queryset:
            self.delete_model(request, row)


def _may_be_told(obj: Any, name: str) -> bool:
    """Choices, numbers and switches; not what somebody wrote, and no password."""
    field = next((field for field in obj._meta.fields if field.name == name), None)
    told = (fields.BooleanField, fields.IntegerField, fields.DateTimeField)
    return isinstance(field, told) or bool(getattr(field, "choices", None))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else str(value)


class PersonForm(UserChangeForm):
    """Another's name in other letters is theirs, as where people are added."""

    def clean_username(self) -> str:
        name: str = self.cleaned_data["username"]
        if "username" in self.changed_data:
            try:
                accounts.refuse_taken(models.User(pk=self.instance.pk, username=name))
            except ServiceError as exc:
                raise forms.ValidationError(str(exc)) from exc
        return name


@admin.register(models.User)
class PersonAdmin(Audited, NamedCells, UserAdmin):
    """Who may do what, and how much."""

    form = PersonForm
    list_display = ["username", "role", "is_active", "is_superuser", "consent", "last_login"]
    list_editable = ["role"]
    list_filter = ["role", "is_active", "is_superuser"]
    fieldsets = (
        (None, {"fields": ["username", "password"]}),
        (_("What they may do"), {"fields": ["role", "is_active", "is_staff", "is_superuser"]}),
        (_("What they chose"), {"fields": CHOSEN}),
        (
            _("How much"),
            {
                "fields": ["tokens_per_day", "training_minutes_per_week"],
                "description": _("Empty: the installation's. 0: no limit."),
            },
        ),
        (_("When"), {"fields": ["last_login", "date_joined"]}),
    )
    readonly_fields = [*CHOSEN, "last_login", "date_joined"]
    actions = ["remove_second_factor"]

    @admin.action(description=_("Remove the second factor of these people, who lost it"))
    def remove_second_factor(self, request: HttpRequest, queryset: QuerySet[models.User]) -> None:
        names = [str(user) for user in queryset if second_factor.remove(user)]
        self.message_user(request, _("Removed: %(names)s") % {"names": ", ".join(names) or "0"})

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change and not (obj.is_superuser and obj.is_active) and erasure.is_last_admin(obj):
            obj.is_superuser = obj.is_active = True
            self.message_user(request, erasure.ONLY_ADMIN, messages.ERROR)
        super().save_model(request, obj, form, change)
        look_again(obj.pk)  # open pages of somebody who is shut out now

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.is_superuser

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Not the rows, of which there are many; that all of them go is what matters. What is in
        the way is told before: Django's page would say afterwards that they are deleted."""
        told = [_("%(name)s, with all chats, ratings and versions") % {"name": row} for row in objs]
        admins = models.User.objects.filter(is_superuser=True, is_active=True)
        is_any_left = admins.exclude(pk__in=[row.pk for row in objs]).exists()
        in_the_way = [] if is_any_left else [erasure.ONLY_ADMIN]
        return told, {}, set(), in_the_way

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        try:
            erasure.erase_user(obj)
        except ServiceError as exc:
            self.message_user(request, str(exc), messages.ERROR)

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        """Django's own page, which saves past `save_model`."""
        response = super().user_change_password(request, id, form_url)
        if request.method == "POST" and response.status_code == 302:
            user = models.User.objects.get(pk=id)
            audit.record("set_password", user)
            own = request.session.session_key if user == request.user else None
            browsers.end_others(user, but=own)
        return response


@admin.register(models.FeedbackReason)
class FeedbackReasonAdmin(Audited, NamedCells):
    list_display = ["label", "slug", "hint", "axis", "pole", "position", "active"]
    list_editable = ["position", "active"]
    prepopulated_fields = {"slug": ["label"]}


@admin.register(models.TrainingPolicy)
class TrainingPolicyAdmin(Audited):
    """For everybody; per person there are limits on the person's page."""

    list_display = ["__str__", "batch", "method", "quiet_from", "quiet_until"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not models.TrainingPolicy.objects.exists()

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name == "method":
            choices = [("", "---------"), *((name, name) for name in METHODS)]
            return forms.ChoiceField(
                label=db_field.verbose_name,
                help_text=db_field.help_text,
                choices=choices,
                required=False,
            )
        if db_field.name == "batch":
            words = _(
                "Of each user, counted since the last one. Empty: %(n)s, as the settings say."
            )
            kwargs["help_text"] = words % {"n": config().batch}
        return super().formfield_for_dbfield(db_field, request, **kwargs)


@admin.register(models.ApiKey)
class ApiKeyAdmin(Audited, LookOnly):
    """Only what a key may ask for is set here; empty means the installation's own limit."""

    limits = ("requests_per_minute", "tokens_per_minute", "concurrent")
    list_display = ["name", "user", "tail", "created_at", "last_used_at", "revoked_at"]
    readonly_fields = ["name", "user", "tail", "scopes", "created_at", "expires_at", "revoked_at"]
    fieldsets = (
        (None, {"fields": readonly_fields}),
        (
            _("Limits"),
            {"fields": limits, "description": _("Empty: the installation's. 0: no limit.")},
        ),
    )

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return admin.ModelAdmin.has_change_permission(self, request, obj)


@admin.register(models.SignInLink)
class SignInLinkAdmin(IdsOnly):
    list_display = ["user", "expires_at", "used_at"]


@admin.register(models.ChatSession)
class ChatSessionAdmin(IdsOnly):
    list_display = ["public_id", "user", "locked", "created_at", "updated_at", "closed_at"]
    search_fields = ["public_id"]


@admin.register(models.Turn)
class TurnAdmin(IdsOnly):
    list_display = ["public_id", "state", "turn_type", "source", "version", "created_at"]
    list_filter = ["state", "turn_type", "source"]
    search_fields = ["public_id"]


@admin.register(models.Feedback)
class FeedbackAdmin(IdsOnly):
    list_display = ["id", "turn", "value", "is_final", "source", "created_at"]
    list_filter = ["value", "source"]


@admin.register(models.Judgement)
class JudgementAdmin(IdsOnly):
    list_display = ["id", "turn", "state", "score", "judge", "attempts", "try_at", "judged_at"]
    list_filter = ["state", "score"]


@admin.register(models.TrainingSample)
class TrainingSampleAdmin(IdsOnly):
    list_display = ["id", "user", "turn", "state", "drop_reason", "held_back", "job", "adapter"]
    list_filter = ["state", "drop_reason", "held_back"]


@admin.register(models.JobSample)
class JobSampleAdmin(IdsOnly):
    list_display = ["id", "job", "role", "sample_id"]
    list_filter = ["role"]


@admin.register(models.TrainingJob)
class TrainingJobAdmin(LookOnly):
    list_display = ["public_id", "user", "state", "step", "steps", "attempt", "created_at"]
    list_filter = ["state", "trigger", "method"]
    exclude = ["lease_token"]


@admin.register(models.StepMetric)
class StepMetricAdmin(LookOnly):
    list_display = ["job", "attempt", "step", "at"]


@admin.register(models.AdapterVersion)
class AdapterVersionAdmin(LookOnly):
    list_display = ["name", "user", "version", "state", "created_at", "live_at"]
    list_filter = ["state"]


@admin.register(models.GateResult)
class GateResultAdmin(LookOnly):
    list_display = ["adapter", "measure", "value", "limit", "ok"]
    list_filter = ["ok"]


@admin.register(models.Event)
class EventAdmin(LookOnly):
    list_display = ["at", "user", "kind", "job", "adapter"]
    list_filter = ["kind"]


@admin.register(models.Heartbeat)
class HeartbeatAdmin(LookOnly):
    list_display = ["name", "kind", "doing", "at"]


@admin.register(models.Tombstone)
class TombstoneAdmin(LookOnly):
    list_display = ["at", "kind", "object_id"]
    list_filter = ["kind"]


@admin.register(models.AuditEvent)
class AuditEventAdmin(LookOnly):
    """To be searched, filtered and taken out; changed by nobody."""

    change_list_template = "admin/audit.html"
    columns = ("at", "actor_name", "action", "kind", "object_id", "before", "after", "request_id")
    list_display = ["at", "actor_name", "action", "kind", "object_id", "subject", "request_id"]
    list_filter = ["action", "kind", "at"]
    list_select_related = ["subject"]
    search_fields = ["actor_name", "action", "object_id", "request_id", "subject__username"]

    def get_urls(self) -> list[URLPattern]:
        download = self.admin_site.admin_view(self.download)
        return [path("csv/", download, name="clawweb_auditevent_csv"), *super().get_urls()]

    def download(self, request: HttpRequest) -> HttpResponseBase:
        """What the list shows with the same search and filters, all pages of it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            rows = self.get_changelist_instance(request).get_queryset(request)
        except IncorrectLookupParameters:  # as the list does with filters that are none
            return redirect("admin:clawweb_auditevent_changelist")
        audit.record("export_audit", request.user)
        return as_csv("clawweb-audit.csv", self.columns, rows.values_list(*self.columns))
