"""The Django app."""

from django.apps import AppConfig


class ClawwebConfig(AppConfig):
    name = "clawweb"
    verbose_name = "clawweb"
