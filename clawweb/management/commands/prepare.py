"""`manage.py prepare`: fetch and convert the base model, start nothing."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from clawweb.config import config
from clawweb.stack.model import prepare_model
from clawweb.stack.terminal import StackError, say


class Command(BaseCommand):
    help = "Prepare the base model's folder, so that a later start need not."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            say(f"model: {prepare_model(config())}")
        except StackError as error:
            say(f"clawweb is not prepared: {error}")
            sys.exit(1)
