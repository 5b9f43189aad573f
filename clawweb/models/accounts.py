"""Who may do what: users with their consent, API keys, one-time sign-in links."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Consent(models.TextChoices):
    """What may happen to a user's conversations."""

    TRAIN = "train", _("Keep my chats and train my agent on what I rate")
    KEEP = "keep", _("Keep my chats, do not train on them")
    NOTHING = "nothing", _("Keep nothing")


class Role(models.TextChoices):
    """What a user may do beside chatting with their own agent. Admins are `is_superuser`."""

    PENDING = "pending", _("Waits for an admin")
    USER = "user", _("User")
    REVIEWER = "reviewer", _("Reviewer")
    TRAINER = "trainer", _("Trainer")


class ReplyLength(models.TextChoices):
    """How long a reply in the chat may get."""

    SHORT = "short", _("Short")
    MEDIUM = "medium", _("Medium")
    LONG = "long", _("Long")


class User(AbstractUser):
    """A person. Admins are `is_superuser`."""

    role = models.CharField(max_length=8, choices=Role, default=Role.USER)

    consent = models.CharField(max_length=8, choices=Consent, default=Consent.TRAIN)
    prompt_hints = models.BooleanField(
        default=False, help_text="Hints that are not learned yet go into the prompt."
    )
    judge_elsewhere = models.BooleanField(
        default=False, help_text="The judge may be a service outside this installation."
    )
    reviewers_may_read = models.BooleanField(
        default=False, help_text="Reviewers and admins may read the chats; each read is audited."
    )
    learning_paused = models.BooleanField(
        default=False, help_text="No job starts by itself; ratings are counted all the same."
    )
    # How the chat asks; API clients say it themselves
    instructions = models.TextField(
        blank=True, max_length=2000, help_text="Stands above every new conversation of the chat."
    )
    reply_length = models.CharField(
        max_length=6, choices=ReplyLength, blank=True, default=""
    )  # "" = the installation's
    temperature = models.FloatField(null=True, blank=True)  # NULL = the installation's
    # A version that answers some of the chat's turns in place of the live one
    trial = models.ForeignKey(
        "AdapterVersion", models.SET_NULL, null=True, blank=True, related_name="+"
    )
    trial_share = models.PositiveSmallIntegerField(default=0)  # percent of turns
    # Quotas; NULL = the installation's
    tokens_per_day = models.PositiveIntegerField(null=True, blank=True)
    training_minutes_per_week = models.PositiveIntegerField(null=True, blank=True)
    # What quotas count though its rows are erased: of the day, and of the week, that began then
    erased_tokens = models.PositiveBigIntegerField(default=0)
    erased_tokens_since = models.DateField(null=True, blank=True)
    erased_seconds = models.FloatField(default=0.0)  # of training
    erased_seconds_since = models.DateField(null=True, blank=True)
    # Running moments of this user's votes (training.advantages.Baseline)
    reward_mean = models.FloatField(default=0.0)
    reward_variance = models.FloatField(default=1.0)
    reward_count = models.PositiveIntegerField(default=0)

    @property
    def is_pending(self) -> bool:
        """Signed in, and let in by no admin yet."""
        return self.role == Role.PENDING and not self.is_superuser

    @property
    def runs_training(self) -> bool:
        """Sees everybody's jobs, metrics and versions, without texts, and may act on them."""
        return self.is_superuser or self.role == Role.TRAINER

    @property
    def may_review(self) -> bool:
        """Reads the chats of who allows that."""
        return self.is_superuser or self.role == Role.REVIEWER


SCOPES = ("chat", "feedback", "train", "read", "export")


class ApiKey(models.Model):
    """A bearer key of one user. Only its hash is kept; `tail` lets people tell keys apart."""

    user = models.ForeignKey(User, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=80)
    hashed = models.CharField(max_length=64, unique=True)
    tail = models.CharField(max_length=6)
    scopes = models.JSONField(default=list)
    # Limits of this key; NULL = the installation's
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True)
    concurrent = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} …{self.tail}"

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()


class SignInLink(models.Model):
    """A link that signs in once; shown in the terminal, kept as a hash."""

    user = models.ForeignKey(User, models.CASCADE, related_name="+")
    hashed = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"link for {self.user}"
