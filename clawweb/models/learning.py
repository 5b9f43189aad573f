"""From samples to versions: the rows of learning. Each state change is a compare-and-swap in
services/."""

from __future__ import annotations

from collections.abc import Collection

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from clawweb.models import ids
from clawweb.models.chat import Feedback, Turn
from rollouts.types import lessons
from training.config import METHODS


class SampleState(models.TextChoices):
    """A sample's life; the diagram is in ARCHITECTURE.md."""

    WAITING = "waiting"
    READY = "ready"
    CLAIMED = "claimed"
    TRAINED = "trained"
    DROPPED = "dropped"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"
    ERASED = "erased"


OPEN_SAMPLE = (SampleState.WAITING, SampleState.READY, SampleState.CLAIMED)
# Of a sample: not replaced by a newer one, and of no chat that is deleted or kept out.
HOLDS = Q(replaced_by=None, turn__session__locked=False, turn__session__deleted_at=None)
GONE_SAMPLE = (SampleState.SUPERSEDED, SampleState.WITHDRAWN, SampleState.ERASED)


class DropReason(models.TextChoices):
    """Why a rating is not used, with the sentence that the user reads."""

    NO_SIGNAL = "no_signal", _("There was no vote in it to learn from.")
    SIDE_TURN = "side_turn", _("It rates a background call.")
    BASE_REQUESTED = (
        "base_requested",
        _("The base model, a version by number or one on trial gave it, not your live agent."),
    )
    FALLBACK = "fallback", _("The base model had to answer in your agent's place.")
    NO_LOGPROBS = "no_logprobs", _("The reply's probabilities were not recorded.")
    GREEDY = (
        "greedy",
        _("The reply was not sampled from the plain distribution, and no hint teaches it."),
    )
    TOO_LONG = (
        "too_long",
        _("Your message and the reply are longer than training takes; shorter ones train."),
    )
    STALE = "stale", _("A version more than three behind wrote it.")
    HINT_NO_EFFECT = (
        "hint_no_effect",
        _("What was said asks for nothing that would change the reply: say how you want it."),
    )
    TEMPLATE_CHANGED = "template_changed", _("The model's chat template has changed since.")
    CONSENT = "consent", _("You asked not to train on it.")
    REFUSED = "refused", _("Two versions that learned from it did not pass the gate.")


class JobState(models.TextChoices):
    """A job's life; the diagram is in ARCHITECTURE.md."""

    QUEUED = "queued"
    LOADING = "loading"
    TRAINING = "training"
    GATING = "gating"
    DEPLOYING = "deploying"
    DEPLOYED = "deployed"
    REFUSED = "refused"
    NO_SIGNAL = "no_signal"
    CANCELLED = "cancelled"
    FAILED = "failed"


ACTIVE_JOB = (
    JobState.QUEUED,
    JobState.LOADING,
    JobState.TRAINING,
    JobState.GATING,
    JobState.DEPLOYING,
)


class AdapterState(models.TextChoices):
    CANDIDATE = "candidate"
    REFUSED = "refused"
    LIVE = "live"
    STANDBY = "standby"
    ERASED = "erased"


class AdapterVersion(models.Model):
    """An immutable LoRA folder and the row that says what became of it."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="adapters")
    version = models.PositiveIntegerField()
    name = models.CharField(max_length=120, unique=True)
    state = models.CharField(max_length=12, choices=AdapterState, default=AdapterState.CANDIDATE)
    parent = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="+")
    # Ids of what was live before this went live, newest last: the way back. Empty = to base.
    live_before = models.JSONField(default=list)
    path = models.CharField(max_length=500)  # relative to var
    sha256 = models.CharField(max_length=64)
    size_bytes = models.PositiveBigIntegerField()
    rank = models.PositiveIntegerField()
    base_hash = models.CharField(max_length=64)
    pinned = models.BooleanField(default=False)
    # Since when one of the chats that it, or a parent, learned from is forgotten
    forgot_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    live_at = models.DateTimeField(null=True, blank=True)
    rolled_back_at = models.DateTimeField(null=True, blank=True)
    note = models.TextField(blank=True)  # why it was refused, or could not be loaded

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "version"], name="version_unique_per_user"),
            models.UniqueConstraint(
                fields=["user"], condition=Q(state="live"), name="one_live_version_per_user"
            ),
        ]
        ordering = ["-version"]

    def __str__(self) -> str:
        return self.name


class TrainingJob(models.Model):
    """The making of a user's next version, in one attempt or, where its worker stops or dies,
    several. Its config is kept on the row, the samples it was given in `JobSample`."""

    public_id = models.CharField(max_length=48, unique=True, default=ids.job_id)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="jobs")
    state = models.CharField(max_length=12, choices=JobState, default=JobState.QUEUED)
    method = models.CharField(max_length=24, default=METHODS[0])
    trigger = models.CharField(max_length=8, default="batch")  # batch | manual
    reason = models.TextField(blank=True)  # why it ended as it did, in plain words
    config = models.JSONField(default=dict)
    parent = models.ForeignKey(
        AdapterVersion, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    child = models.OneToOneField(
        AdapterVersion, models.SET_NULL, null=True, blank=True, related_name="job"
    )
    step = models.PositiveIntegerField(default=0)
    steps = models.PositiveIntegerField(default=0)
    phase = models.CharField(max_length=80, blank=True)
    attempt = models.PositiveIntegerField(default=0)
    crashes = models.PositiveSmallIntegerField(default=0)  # attempts that ended without a word
    cancel_requested = models.BooleanField(default=False)
    finish_requested = models.BooleanField(default=False)  # to stop training and gate what there is
    lease_token = models.CharField(max_length=36, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    seen_sample = models.BigIntegerField(null=True, blank=True)  # newest sample when it ended
    timings = models.JSONField(default=dict)  # seconds per phase
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user"],
                condition=Q(state__in=["queued", "loading", "training", "gating", "deploying"]),
                name="one_active_job_per_user",
            )
        ]
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.public_id

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_JOB


class JudgementState(models.TextChoices):
    """A judgement's life; the diagram is in ARCHITECTURE.md."""

    WAITING = "waiting"  # to be asked, or to be asked again
    JUDGED = "judged"
    NO_SIGNAL = "no_signal"  # votes, but a tie, or too few that can be read
    FAILED = "failed"  # the judge could not be asked


class Judgement(models.Model):
    """What a judge made of a reply from its next state. A failure is no vote."""

    turn = models.OneToOneField(Turn, models.CASCADE, related_name="judgement")
    next_turn = models.ForeignKey(Turn, models.CASCADE, related_name="+")  # holds the next state
    state = models.CharField(max_length=12, choices=JudgementState, default=JudgementState.WAITING)
    judge = models.CharField(max_length=120, blank=True)  # who was asked
    votes = models.JSONField(default=list)  # as they came: score, hint, text, or an error
    score = models.SmallIntegerField(null=True)  # -1, 0, +1; NULL = no signal
    hints = models.JSONField(default=list)  # at most three candidates, no two alike
    attempts = models.PositiveSmallIntegerField(default=0)
    try_at = models.DateTimeField(null=True, blank=True)
    lease_token = models.CharField(max_length=36, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    judged_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["try_at"], condition=Q(state="waiting"), name="judgements_to_make")
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"judgement of {self.turn_id}: {self.state}"


class TrainingSample(models.Model):
    """What a rated or judged turn gives to training. At most one of a turn waits or is ready (by a
    constraint); beside it there may be one that a job has claimed or a version has learned, when
    its user rated the reply again since."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="samples")
    turn = models.ForeignKey(Turn, models.CASCADE, related_name="samples")
    # Where it comes from: the user's rating, or a judge's reading of the next state
    feedback = models.ForeignKey(Feedback, models.CASCADE, null=True, blank=True, related_name="+")
    judgement = models.ForeignKey(
        Judgement, models.CASCADE, null=True, blank=True, related_name="samples"
    )
    state = models.CharField(max_length=12, choices=SampleState, default=SampleState.WAITING)
    drop_reason = models.CharField(max_length=20, choices=DropReason, blank=True)
    reward = models.SmallIntegerField(null=True)
    hint = models.TextField(blank=True)
    other_hints = models.JSONField(default=list)  # candidates beside it; the trainer chooses
    correction = models.TextField(blank=True)
    held_back = models.BooleanField(default=False)  # kept for the gate, not trained on
    was_held_back = models.BooleanField(default=False)  # until newer ones took its place
    # Of each response token that trained: the hinted teacher's log-prob less the agent's own before
    # that step, in nats; NULL = no hint, or not trained
    token_effects = models.JSONField(null=True, blank=True)
    # Its words trained nothing: they name a kind of request that the model does not tell from
    # others, or the job's method leaves words aside
    by_thumb = models.BooleanField(default=False)
    refusals = models.PositiveSmallIntegerField(default=0)
    settles_at = models.DateTimeField(null=True)
    job = models.ForeignKey(
        TrainingJob, models.SET_NULL, null=True, blank=True, related_name="claimed_samples"
    )
    adapter = models.ForeignKey(
        AdapterVersion, models.SET_NULL, null=True, blank=True, related_name="learned_samples"
    )
    replaced_by = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["turn"],
                condition=Q(state__in=["waiting", "ready"]),
                name="one_unclaimed_sample_per_turn",
            ),
            models.CheckConstraint(
                condition=Q(feedback__isnull=True) ^ Q(judgement__isnull=True),
                name="sample_is_rated_or_judged",
            ),
        ]
        indexes = [models.Index(fields=["user", "state", "held_back"])]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"sample of {self.turn_id}: {self.state}"

    @property
    def teaches(self) -> bool:
        """Whether there is more to it than a thumb."""
        return bool(self.correction or self.lessons)

    @property
    def came_too_late_for(self) -> TrainingSample | None:
        """The turn's earlier one that a job had taken, or a version learned, by then."""
        taken = (SampleState.CLAIMED, SampleState.TRAINED)
        rows = [row for row in self.turn.samples.all() if row.pk < self.pk and row.state in taken]
        return max(rows, key=lambda row: row.pk, default=None)

    @property
    def lessons(self) -> tuple[str, ...]:
        """The hints that teach the reply, as they were said."""
        return lessons(self.hint, self.correction, self.reward, self.followed)

    @property
    def followed(self) -> list[str]:
        """The hints in the reply's prompt that its user still holds."""
        if not self.turn.prompted_hints:
            return []
        said = TrainingSample.saying(self.user_id, self.turn.prompted_hints).order_by()
        holding = set(said.values_list("hint", flat=True).distinct())
        return [hint for hint in self.turn.prompted_hints if hint in holding]

    @classmethod
    def saying(cls, user_id: int, hints: Collection[str]) -> models.QuerySet[TrainingSample]:
        """The user's that say one of these hints. A note that was taken back, reworded, put aside
        for a newer one or found to ask for nothing is no lesson any more, nor what is said in a
        chat that is deleted or kept out."""
        said = cls.objects.filter(HOLDS, user=user_id, hint__in=hints)
        idle = Q(state=SampleState.DROPPED, drop_reason=DropReason.HINT_NO_EFFECT)
        return said.exclude(Q(state__in=GONE_SAMPLE) | idle)


class JobSample(models.Model):
    """A sample's part in a job: trained on anew, replayed, or its prompt answered again."""

    job = models.ForeignKey(TrainingJob, models.CASCADE, related_name="job_samples")
    sample = models.ForeignKey(TrainingSample, models.CASCADE, related_name="job_samples")
    role = models.CharField(
        max_length=8, choices=[("new", "new"), ("replay", "replay"), ("reanswer", "reanswer")]
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "sample", "role"], name="one_role_once_per_job")
        ]

    def __str__(self) -> str:
        return f"{self.role} in {self.job_id}"


class StepMetric(models.Model):
    """What one training step measured. Keys that were not measured are absent, never 0."""

    job = models.ForeignKey(TrainingJob, models.CASCADE, related_name="metrics")
    attempt = models.PositiveIntegerField()
    step = models.PositiveIntegerField()  # counts on through attempts
    values = models.JSONField()
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "step"], name="one_row_per_step")]
        ordering = ["step"]

    def __str__(self) -> str:
        return f"step {self.step} of {self.job_id}"


class GateResult(models.Model):
    """One measure of a version with its limit. `ok` NULL = not judged, `value` NULL = not even
    measured; the text says why."""

    adapter = models.ForeignKey(AdapterVersion, models.CASCADE, related_name="gate")
    measure = models.CharField(max_length=40)
    value = models.FloatField(null=True)
    limit = models.FloatField(null=True)
    ok = models.BooleanField(null=True)
    text = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["adapter", "measure"], name="one_row_per_measure")
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.measure} of {self.adapter_id}"


class Event(models.Model):
    """What happened, in order: a job's steps, a version's moves, an admin's acts. Append-only."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="events")
    kind = models.CharField(max_length=40)
    job = models.ForeignKey(TrainingJob, models.CASCADE, null=True, related_name="events")
    adapter = models.ForeignKey(AdapterVersion, models.CASCADE, null=True, related_name="events")
    text = models.TextField(blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.text}"


class Heartbeat(models.Model):
    """A process that says it is alive. Who has not for a minute is shown as gone."""

    name = models.CharField(max_length=120, unique=True)
    kind = models.CharField(max_length=24)  # as parts are called: generator, worker-gpu, …
    doing = models.CharField(max_length=200, blank=True)
    load = models.JSONField(default=dict)  # cpu (share of a core), rss, gpu …; unmeasured: absent
    at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
