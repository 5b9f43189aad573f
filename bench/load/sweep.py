"""What the sweep over users costs: so many users with one live version each, and nothing to do.

    PYTHONPATH=. python bench/load/sweep.py --users 100 400

Rows and folders are real, in a database of its own (SQLite); the model server is the scripted one,
so what a real one takes to list its adapters comes on top, once in `reconcile`. (`prune` asks it
only where there is something to delete.)
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from unittest import mock


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, nargs="+", default=[100, 400])
    args = parser.parse_args()
    var = tempfile.mkdtemp(prefix="clawweb-sweep-")
    os.environ |= {"CLAWWEB_VAR": var, "DJANGO_SETTINGS_MODULE": "clawweb.settings"}
    try:
        prepare()
        for users in args.users:
            print(f"{users} users: {measure(users)}", flush=True)
        print(f"load average {os.getloadavg()[0]:.1f}")
    finally:
        shutil.rmtree(var)


def prepare() -> None:
    import django

    django.setup()
    from django.core.management import call_command

    from clawweb.config import config
    from training.tiny import write_tiny

    write_tiny(config().model_folder)
    call_command("migrate", verbosity=0)


def measure(users: int) -> str:
    """Milliseconds of the second round of each; the first one loads."""
    from clawweb import engine as rooms
    from clawweb.models import User
    from clawweb.services import serving
    from rollouts.config import EngineConfig
    from rollouts.engines import build_engine
    from tests.factories import make_adapter

    for number in range(User.objects.count(), users):
        make_adapter(User.objects.create(username=f"user-{number}"), 1, "live")
    scripted = build_engine(EngineConfig(kind="scripted"))
    rooms.get_replicas.cache_clear()
    rooms.get_engine.cache_clear()
    took = {}
    with mock.patch.object(rooms, "build_engine", return_value=scripted):
        for step in (serving.reconcile, serving.prune) * 2:
            started = time.perf_counter()
            step()
            took[step.__name__] = 1000 * (time.perf_counter() - started)
    return ", ".join(f"{name} {ms:.0f} ms" for name, ms in took.items())


if __name__ == "__main__":
    main()
