"""The Django app."""

from django.apps import AppConfig


class ClawwebConfig(AppConfig):
    name = "clawweb"
    verbose_name = "clawweb"

    def ready(self) -> None:
        """Tasks that are queued from any process go to our broker, not to Celery's default one."""
        from clawweb import celery  # noqa: F401  # needs the settings
