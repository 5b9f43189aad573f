"""Conversations and what people said about them. Shapes and constraints; the writes are in
services/."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_noop

from clawweb.models import ids


class ChatSession(models.Model):
    """One conversation. `external_id` is the caller's own name for it, unique per user."""

    public_id = models.CharField(max_length=48, unique=True, default=ids.session_id)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="chat_sessions")
    external_id = models.CharField(max_length=128, null=True, blank=True)  # noqa: DJ001  # NULLs are distinct in the unique constraint
    api_key = models.ForeignKey("ApiKey", models.SET_NULL, null=True, blank=True, related_name="+")
    title = models.CharField(max_length=200, blank=True)
    locked = models.BooleanField(default=False)  # kept out of training
    pinned = models.BooleanField(default=False)  # stands above the others
    temporary = models.BooleanField(default=False)  # its texts are never stored
    deleted_at = models.DateTimeField(null=True, blank=True)  # hidden since; erased a while later
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    closed_at = models.DateTimeField(null=True, blank=True)  # nothing more was said, or done
    done = models.BooleanField(default=False)  # its client said so

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "external_id"], name="external_id_unique_per_user"
            )
        ]
        indexes = [models.Index(fields=["user", "-updated_at"])]

    def __str__(self) -> str:
        return self.title or self.public_id


class TurnState(models.TextChoices):
    """A reply's life; the diagram is in ARCHITECTURE.md."""

    PENDING = "pending"
    STREAMING = "streaming"
    COMPLETE = "complete"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


FINISHED = (TurnState.COMPLETE, TurnState.STOPPED, TurnState.INTERRUPTED, TurnState.FAILED)


class OrderedJSON(models.JSONField):
    """JSON whose objects keep the order of their names, on PostgreSQL as a text in the column: its
    jsonb sorts them, and a grammar has a schema's names written in their order."""

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if value and connection.vendor == "postgresql":  # rows without tools are looked for
            value = json.dumps(value)
        return super().get_db_prep_value(value, connection, prepared)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        found = super().from_db_value(value, expression, connection)
        return json.loads(found) if isinstance(found, str) else found  # else of an older row

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs  # the column is no other


class Turn(models.Model):
    """One user message (or more new input messages) and one reply; siblings share a parent."""

    public_id = models.CharField(max_length=48, unique=True, default=ids.turn_id)
    session = models.ForeignKey(ChatSession, models.CASCADE, related_name="turns")
    parent = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="children"
    )
    # Turns before this one are no longer in the prompt; NULL = the whole conversation is.
    context_start = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="+"
    )
    source = models.CharField(max_length=4, default="ui")  # ui | api
    turn_type = models.CharField(max_length=4, default="main")  # main | side
    turn_type_from = models.CharField(max_length=40, blank=True)  # header, body, a rule, its user
    asked = models.CharField(max_length=64, default="agent")  # agent, base or agent@vN
    trial = models.BooleanField(default=False)  # a trial's version answered: rated, not trained
    instructions = models.TextField(blank=True)  # the user's standing ones, as they stood then
    client_id = models.CharField(max_length=64, null=True, blank=True)  # noqa: DJ001  # NULLs are distinct: a re-sent message makes no second turn
    state = models.CharField(max_length=12, choices=TurnState, default=TurnState.PENDING)

    recorded = models.BooleanField(default=True)  # False: the texts are in Valkey for an hour only
    input_messages = models.JSONField(default=list)  # new since the parent's reply
    # Hints that stood in the reply's prompt, and nowhere else in the conversation.
    prompted_hints = models.JSONField(default=list)
    # What the caller asked for beside the messages, as OpenAI writes it; rendered with them.
    tools = OrderedJSON(default=list)
    tool_choice = models.JSONField(null=True)
    response_format = OrderedJSON(null=True)
    request_hash = models.CharField(max_length=64, blank=True, db_index=True)  # finds a re-sent one
    readers = models.PositiveSmallIntegerField(default=1)  # requests that wait for this reply
    reply = models.TextField(blank=True)
    tool_calls = models.JSONField(default=list)  # of the reply
    reasoning = models.TextField(blank=True)  # the model's own, shown in the inspector alone
    history_hash = models.CharField(max_length=64, blank=True, db_index=True)

    adapter = models.ForeignKey(
        "AdapterVersion", models.SET_NULL, null=True, blank=True, related_name="turns"
    )
    adapter_name = models.CharField(max_length=120, blank=True)  # "" = base; outlives the row
    version = models.PositiveIntegerField(default=0)
    fallback = models.CharField(max_length=200, blank=True)  # why base answered instead

    prompt_ids = models.JSONField(null=True)
    response_ids = models.JSONField(null=True)
    logprobs = models.JSONField(null=True)
    # Counted for quotas, also where the ids are not kept; NULL = not known
    prompt_tokens = models.PositiveIntegerField(null=True)
    reply_tokens = models.PositiveIntegerField(null=True)
    sampling = models.JSONField(default=dict)
    template_hash = models.CharField(max_length=64, blank=True)
    finish_reason = models.CharField(max_length=16, blank=True)
    error = models.TextField(blank=True)  # in words
    error_code = models.CharField(max_length=40, blank=True)  # for programs

    stop_requested = models.BooleanField(default=False)
    lease_token = models.CharField(max_length=36, blank=True)
    lease_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    first_token_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["session", "client_id"], name="client_id_unique"),
            models.UniqueConstraint(
                fields=["client_id"], condition=Q(source="api"), name="api_client_id_unique"
            ),
        ]
        indexes = [
            models.Index(
                fields=["state", "id"],
                condition=Q(state__in=["pending", "streaming"]),
                name="unfinished_turns",
            )
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED


class Comparison(models.Model):
    """Two replies to the same words, and which one its user would rather have."""

    BLIND, AGAIN, RECHECK = "blind", "again", "recheck"
    VERDICTS = ("first", "second", "tie", "neither")

    public_id = models.CharField(max_length=48, unique=True, default=ids.comparison_id)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="comparisons")
    # blind: versions hidden until it is decided; again: an answer of a newer version, asked for
    # in the chat; recheck: an old complaint asked anew
    kind = models.CharField(max_length=8, choices=[(k, k) for k in (BLIND, AGAIN, RECHECK)])
    first = models.ForeignKey(Turn, models.CASCADE, related_name="+")  # the older reply
    second = models.ForeignKey(Turn, models.CASCADE, related_name="+")  # its sibling
    swapped = models.BooleanField(default=False)  # the second one is shown first
    verdict = models.CharField(max_length=8, blank=True, choices=[(v, v) for v in VERDICTS])
    created_at = models.DateTimeField(auto_now_add=True)
    decided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.kind}: {self.verdict or 'undecided'}"


class SavedView(models.Model):
    """Filters of a list under a name."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="saved_views")
    page = models.CharField(max_length=24)  # the route's name
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=2000, blank=True)  # as in the address

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "page", "name"], name="view_name_unique")
        ]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class FeedbackReason(models.Model):
    """A reason chip: what it says to the user, and the hint sentence that the teacher is given."""

    slug = models.SlugField(unique=True)
    label = models.CharField(max_length=60)
    hint = models.TextField(
        help_text="The instruction the agent should have followed, as a sentence."
    )
    axis = models.CharField(max_length=32, blank=True, help_text="Hints on one axis …")
    pole = models.CharField(max_length=32, blank=True, help_text="… with other poles contradict.")
    phrases = models.TextField(
        blank=True,
        help_text="Ways of saying it, one a line: a comment that says one contradicts other poles.",
    )
    position = models.PositiveSmallIntegerField(default=0)
    active = models.BooleanField(default=True)

    class Meta:
        ordering = ["position", "id"]

    def __str__(self) -> str:
        return self.label


# Translated where they are shown; what an admin words stays as it is. The hints stay, too: models
# read them.
SHIPPED_LABELS = (
    gettext_noop("Too long"),
    gettext_noop("Too short"),
    gettext_noop("No lists, please"),
    gettext_noop("Should be a list"),
    gettext_noop("Too formal"),
    gettext_noop("Too casual"),
    gettext_noop("Hard to follow"),
    gettext_noop("Greet me first"),
    gettext_noop("Did not do what I asked"),
    gettext_noop("Not true"),
)


class Feedback(models.Model):
    """What someone said about a reply. Append-only: the newest row (by id) of a turn counts."""

    turn = models.ForeignKey(Turn, models.CASCADE, related_name="feedback")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    value = models.SmallIntegerField(null=True)  # +1, -1; NULL = no vote or taken back
    reasons = models.JSONField(default=list)  # slugs, with the hints they stood for at the time
    comment = models.TextField(blank=True)
    correction = models.TextField(blank=True)
    is_final = models.BooleanField(default=False)  # nothing more is being written
    source = models.CharField(max_length=4, default="ui")
    adapter_name = models.CharField(max_length=120, blank=True)
    content_hash = models.CharField(max_length=64)  # of the reply that was rated
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(value__isnull=True) | Q(value__in=[-1, 1]),
                name="vote_is_plus_or_minus_one",
            )
        ]

    def __str__(self) -> str:
        return f"{self.value} on {self.turn_id}"

    @property
    def hint(self) -> str:
        """What it asks for, in words."""
        hints = [reason["hint"] for reason in self.reasons]
        if self.comment and self.value == -1:  # praise is no instruction
            hints.append(self.comment)
        return " ".join(hints)
