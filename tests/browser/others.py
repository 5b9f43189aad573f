"""People whose rows browser tests may change; those of `tests/demo.py` stay as pictures show them.

`manage.py shell --command "from tests.browser.others import main; main()"` writes both, and prints
what `tests.demo` prints, with these people's cookies."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from clawweb.config import config
from clawweb.models import (
    AdapterVersion,
    ChatSession,
    Comparison,
    JobState,
    TrainingJob,
    TrainingSample,
    User,
)
from clawweb.services import feedback
from tests import demo
from tests.factories import make_turn, up, write_weights

ADDRESS = f"https://docs.example/{'a_page_without_any_space_' * 12}"


@transaction.atomic  # one wait for the disk
def main() -> None:
    """In a database without these people."""
    facts = demo.write()
    people = [with_versions("wren"), with_a_version("finch"), failing("mole"), training("owl")]
    facts["noted"] = TrainingSample.objects.exclude(token_effects=None).get().turn.session.public_id
    people += [User.objects.create_user("fledgling"), pasting("heron")]
    facts["cookies"] |= {user.username: demo.cookie(user) for user in people}
    sys.stdout.write(f"{json.dumps(facts)}\n")


def with_versions(name: str) -> User:
    """v1 with files, v2 live and disliked four times of five, v3 refused; v2 won one of two blind
    comparisons."""
    user = User.objects.create_user(name)
    first = demo.version_of(user, days=5)
    for _ in range(2):
        up(make_turn(user, **by(first)))
    live = demo.version_of(user, days=2)
    kept = AdapterVersion.objects.filter(pk=first.pk)
    kept.update(sha256=write_weights(first.path, "weights"))
    (config().var / first.path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    sample = TrainingSample.objects.filter(user=user, adapter=live).first()
    assert sample is not None
    effects = [0.5, -1.2, 0.02, 3.2]
    TrainingSample.objects.filter(pk=sample.pk).update(token_effects=effects)
    sample.turn.response_ids, sample.turn.logprobs = [788, 1041, 28, 2321], [-0.1, -0.9, -2.0, -4.0]
    sample.turn.save()
    answers = [
        make_turn(user, reply=reply, **by(live)) for reply in ("So.", "And?", "Hm.", "Well.")
    ]
    up(answers[0])
    for turn in answers[1:]:
        feedback.rate_turn(turn=turn, author=user, changes={"value": -1, "reasons": ["too_short"]})
    for turn, verdict in zip(answers, ("first", "second"), strict=False):
        other = make_turn(user, reply="Yes.", turn_type="side", session=turn.session, **by(first))
        Comparison.objects.create(
            user=user, kind="blind", first=turn, second=other, verdict=verdict
        )
    demo.refused_job(user, days=1)
    return user


def by(adapter: AdapterVersion) -> dict[str, object]:
    return {"adapter": adapter, "adapter_name": adapter.name, "version": adapter.version}


def with_a_version(name: str) -> User:
    user = User.objects.create_user(name)
    demo.version_of(user, days=1)
    return user


def pasting(name: str) -> User:
    """Asks about an address, and gives one in a comment and in a correction; has more chats than
    the list shows at first."""
    user = User.objects.create_user(name)
    old = [ChatSession(user=user, title=f"Chat {number}") for number in range(70)]
    ChatSession.objects.bulk_create(old)
    said = {"value": -1, "comment": f"Read {ADDRESS}", "correction": ADDRESS, "final": True}
    feedback.rate_turn(turn=make_turn(user, ADDRESS), author=user, changes=said)
    return user


def failing(name: str) -> User:
    """One job failed; its ratings count again."""
    user = User.objects.create_user(name)
    demo.failed_job(user)
    return user


def training(name: str) -> User:
    """One job trains for hours to come, and others have told how long that takes."""
    TrainingJob.objects.filter(state=JobState.DEPLOYED).update(timings={"training": 600.0})
    user = User.objects.create_user(name)
    demo.running_job(user)
    until = timezone.now() + timedelta(hours=9)
    TrainingJob.objects.filter(user=user).update(lease_until=until)
    return user
