"""`manage.py generate`: run a generator until SIGTERM. More of them share the work."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import uvloop
from django.core.management.base import BaseCommand

from clawweb.generator import Generator


class Command(BaseCommand):
    help = "Answer pending turns until stopped."

    def handle(self, *args: Any, **options: Any) -> None:
        uvloop.run(_run())  # what the web server runs on, too


async def _run() -> None:
    generator = Generator()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, generator.stopping.set)
    await generator.run()
