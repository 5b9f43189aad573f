"""The Django app."""

from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class ClawwebConfig(AppConfig):
    name = "clawweb"
    verbose_name = "clawweb"

    def ready(self) -> None:
        """Tasks that are queued from any process go to our broker, not to Celery's default one."""
        from clawweb import celery  # noqa: F401  # needs the settings

        connection_created.connect(_teach_letters)


def _teach_letters(connection: Any, **_: Any) -> None:
    """SQLite's own `lower` knows those of ASCII alone."""
    if connection.vendor == "sqlite":
        connection.connection.create_function("lower_all", 1, _lower, deterministic=True)


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()
