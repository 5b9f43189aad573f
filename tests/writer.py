"""Writes replies at a set rate, for tests of what reads them: `python -m tests.writer --rate 50`.

The real generator in a process of its own, with leases, checkpoints, stops and token log; only
the words come from the scripted engine, which says again what it was told. `make run` has no way
to it."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=50.0, help="words a second")
    rate = parser.parse_args().rate
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawweb.settings")
    import django

    django.setup()
    from clawweb import engine
    from rollouts.engines.scripted import ScriptedEngine

    class LastWords(ScriptedEngine):
        """Reads no more than it says again: a long chat would not fit into a real prompt."""

        async def generate(self, messages: Any, **options: Any) -> Any:
            return await super().generate(messages[-1:], **options)

    paced = LastWords(seconds_per_word=1 / rate)
    engine.build_engine = lambda _: paced  # type: ignore[assignment]
    asyncio.run(write())


async def write() -> None:
    """Until SIGTERM, which interrupts replies as it does a generator's."""
    from clawweb.generator import Generator

    generator = Generator()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, generator.stopping.set)
    await generator.run()


if __name__ == "__main__":
    main()
