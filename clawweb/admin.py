"""Staff tables. Texts of chats and ratings are nobody's to read here: those rows show ids only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from clawweb import models

admin.site.site_header = _("clawweb: admin tables")
admin.site.site_title = "clawweb"
admin.site.site_url = "/chat/"


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


@admin.register(models.User)
class PersonAdmin(UserAdmin):
    """Deactivate a person instead of deleting: versions and jobs hang on the row."""

    list_display = ["username", "is_active", "is_superuser", "consent", "last_login"]
    choices = ["consent", "prompt_hints", "judge_elsewhere"]
    fieldsets = (*UserAdmin.fieldsets, (_("clawweb"), {"fields": choices}))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(models.FeedbackReason)
class FeedbackReasonAdmin(admin.ModelAdmin):
    list_display = ["label", "slug", "hint", "axis", "pole", "position", "active"]
    list_editable = ["position", "active"]
    prepopulated_fields = {"slug": ["label"]}


@admin.register(models.ApiKey)
class ApiKeyAdmin(LookOnly):
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
