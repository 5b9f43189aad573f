"""What might outlive an erasure, or a backup that was killed: files, and names in logs."""

from __future__ import annotations

import os
import time

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType

from clawweb import disk
from clawweb.config import config
from clawweb.models import ApiKey, User
from clawweb.services import accounts, erasure, transfers
from tests.factories import make_turn

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


def test_an_export_that_ends_beside_the_erasure_goes_too(alice: User) -> None:
    make_turn(alice)
    row = transfers.queue_export(user=alice, shape="conversations")
    written = transfers.folder() / f"{row.public_id}.jsonl"  # and its worker could not say so
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text("a chat")
    erasure.erase_user(alice)
    erasure.finish()
    assert not User.objects.filter(pk=alice.pk).exists()
    assert not written.exists()


def test_the_admin_pages_log_forgets_what_a_key_was_called(alice: User, admin: User) -> None:
    key, _ = accounts.make_key(user=alice, name="Alice Miller's laptop")
    kind = ContentType.objects.get_for_model(ApiKey)
    LogEntry.objects.create(
        user=admin, content_type=kind, object_id=key.pk, object_repr=str(key), action_flag=2
    )
    erasure.erase_user(alice)
    erasure.finish()
    assert not LogEntry.objects.exists()


def test_the_copy_of_a_backup_that_was_killed_does_not_stay() -> None:
    old, young = (config().var / f".backup-{name}" for name in ("old", "young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "db.sqlite3").write_text("everybody's")
    two_days = time.time() - 2 * disk.SCRATCH_SECONDS
    os.utime(old, (two_days, two_days))
    disk.remove_scratch()
    assert (old.exists(), young.exists()) == (False, True)
    disk.shutil.rmtree(young)
