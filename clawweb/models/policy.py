"""What an admin decides about everybody's training without a new start."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _


class TrainingPolicy(models.Model):
    """When jobs start by themselves, and how they train: one row at most. What is empty is as the
    settings say. "Train now" and the API go by the method alone, unless they are given another."""

    batch = models.PositiveSmallIntegerField(
        _("ratings that start a training"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("Of each user, counted since the last one. Empty: CLAWWEB_BATCH."),
    )
    method = models.CharField(
        _("method"), max_length=24, blank=True, help_text=_("Empty: combine.")
    )
    quiet_from = models.TimeField(
        _("quiet from"),
        null=True,
        blank=True,
        help_text=_("UTC. No training starts by itself from then on, and none that runs is ended."),
    )
    quiet_until = models.TimeField(
        _("quiet until"),
        null=True,
        blank=True,
        help_text=_("UTC; if earlier, next day."),
    )

    class Meta:
        verbose_name = _("training policy")
        verbose_name_plural = _("training policies")
        constraints = [models.CheckConstraint(condition=models.Q(pk=1), name="one_training_policy")]

    def __str__(self) -> str:
        return str(_("For everybody"))

    def save(self, *args: object, **kwargs: object) -> None:
        self.pk = 1
        super().save(*args, **kwargs)  # type: ignore[arg-type]  # handed on as they came

    def clean(self) -> None:
        if (self.quiet_from is None) != (self.quiet_until is None):
            raise ValidationError(_("Quiet hours need a beginning and an end, or neither."))
        if self.quiet_from is not None and self.quiet_from == self.quiet_until:
            raise ValidationError(_("Quiet hours of a whole day: pause learning instead."))
