"""Who may go where: a line for every route and verb, and Alice's things to try it on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from allauth.usersessions.models import UserSession
from django.core.signals import request_finished
from django.db import close_old_connections, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import get_resolver

from clawweb.config import config
from clawweb.models import AdapterState, Comparison, Role, Transfer, TransferState, User
from clawweb.services import accounts, transfers
from tests.factories import claimed_job, down, make_adapter, make_turn, rated

VERBS = ("GET", "POST", "PATCH", "PUT", "DELETE")
STRANGER, PENDING, OWNER, OTHER = "stranger", "pending", "owner", "other"
REVIEWER, TRAINER, ADMIN = "reviewer", "trainer", "admin"
APPROVED = {OWNER, OTHER, REVIEWER, TRAINER, ADMIN}


@dataclass(frozen=True)
class May:
    """Who is let in by a verb. Who is not, and is signed in, gets `refusal`."""

    who: frozenset[str]
    refusal: int
    scope: str = ""  # that a key needs; "" = keys are of no use
    body: dict[str, Any] = field(default_factory=dict)


def may(who: set[str], refusal: int = 403) -> Any:
    def rule(scope: str = "", **body: Any) -> May:
        return May(frozenset(who), refusal, scope, body)

    return rule


anyone = may({STRANGER, PENDING, *APPROVED})
people = may(APPROVED)
LEADS = people()  # from the address of a form to the page that has it
owner = may({OWNER}, 404)
owner_or_trainer = may({OWNER, TRAINER, ADMIN}, 404)
reviewers = may({REVIEWER, ADMIN})
readers = may({REVIEWER, ADMIN}, 404)  # of a chat whose owner lets them
admins = may({ADMIN})
who_is_not_waiting = may({STRANGER, *APPROVED})
RATING = {"value": 1}

TABLE: dict[str, dict[str, May]] = {
    "": {"GET": who_is_not_waiting()},  # leads to the chat
    "chat/": {"GET": people()},
    "chat/<str:session_id>/": {"GET": owner()},
    "agent/": {"GET": people()},
    "agent/erase/": {"GET": people(), "POST": people()},
    "sessions/": {"GET": people()},
    "sessions/views/": {"GET": LEADS, "POST": people()},
    "sessions/<str:session_id>/": {"GET": owner()},
    "sessions/<session_id>/download.<kind>": {"GET": owner()},
    "jobs/": {"GET": people()},
    "jobs/<str:job_id>/": {"GET": owner_or_trainer()},
    "jobs/<str:job_id>/series/": {"GET": owner_or_trainer()},
    "jobs/<str:job_id>/metrics.csv": {"GET": owner_or_trainer()},
    "adapters/": {"GET": people()},
    "review/": {"GET": reviewers()},
    "review/<str:session_id>/": {"GET": readers()},
    "data/": {"GET": people()},
    "data/import/": {"GET": LEADS, "POST": people()},
    "settings/": {"GET": people()},
    "settings/effective/": {"GET": admins()},
    "settings/delete/": {"GET": LEADS, "POST": people()},
    "settings/consent/": {"GET": LEADS, "POST": people(consent="train")},
    "settings/asking/": {"GET": LEADS, "POST": people()},
    "settings/keys/": {"GET": LEADS, "POST": people(name="k", scopes="chat")},
    # test_nobody_revokes_anothers_key
    "settings/keys/<int:key_id>/revoke/": {"GET": LEADS, "POST": people()},
    "settings/users/": {
        "GET": LEADS,
        "POST": admins(username="new", password="correct horse battery"),
    },
    "settings/security/": {"GET": people()},
    "settings/security/browsers/end/": {"GET": LEADS, "POST": people()},
    "settings/security/browsers/<int:browser_id>/end/": {"GET": LEADS, "POST": owner()},
    "settings/confirm/": {"GET": people(), "POST": people()},
    "settings/confirm/code/": {"GET": people(), "POST": people()},
    "settings/second-factor/": {"GET": people(), "POST": people()},
    "settings/second-factor/remove/": {"GET": owner(), "POST": owner()},  # who has one
    "settings/second-factor/codes/": {"GET": owner()},
    "settings/second-factor/codes/new/": {"GET": people(), "POST": people()},
    "settings/sso/connect/": {"GET": LEADS},  # by POST nobody: not set
    "settings/sso/disconnect/": {"GET": LEADS, "POST": people()},
    "signin/code/": {"GET": who_is_not_waiting(), "POST": who_is_not_waiting()},
    "signin/sso/": {},  # not set: nobody
    "signin/sso/callback/": {},
    "signin/": {"GET": anyone(), "POST": anyone()},
    "signup/": {},  # closed: nobody
    "signin/<str:token>/": {"GET": anyone(), "POST": anyone()},
    "signout/": {"GET": anyone(), "POST": anyone()},
    "password/": {"GET": people(), "POST": people()},
    "jsi18n/": {"GET": anyone()},
    "language/": {"POST": anyone(language="en")},
    "parts/agent/": {"GET": people()},
    "parts/learned/": {"GET": people()},
    "parts/ratings/": {"GET": people()},
    "parts/rechecks/": {"GET": people()},
    "parts/forget/": {"GET": people()},
    "parts/sessions/": {"GET": people()},
    "parts/transfers/": {"GET": people()},
    "parts/jobs/": {"GET": people()},
    "parts/system/": {"GET": people()},
    "parts/replays/<str:comparison_id>/": {"GET": owner()},
    "parts/sessions/<str:session_id>/map/": {"GET": owner()},
    "parts/adapters/served/": {"GET": people()},
    "parts/earlier/<str:turn_id>/": {"GET": owner()},
    "parts/turns/<str:turn_id>/": {"GET": owner()},
    "parts/adapters/": {"GET": people()},
    "parts/jobs/<str:job_id>/head/": {"GET": owner_or_trainer()},
    "parts/jobs/<str:job_id>/tail/": {"GET": owner_or_trainer()},
    "api/openapi.json": {"GET": anyone()},
    "api/docs": {"GET": anyone()},
    "api/sessions": {"GET": people("read")},
    "api/sessions/<path:name>": {
        "GET": owner("read"),
        "PATCH": owner("feedback", title="t"),
        "DELETE": owner("feedback"),
    },
    "api/sessions/<name>/restore": {"POST": owner("feedback")},
    "api/turns/<turn_id>": {"GET": owner("read"), "POST": owner("feedback", turn_type="side")},
    "api/turns/<turn_id>/feedback": {"POST": owner("feedback", **RATING)},
    "api/turns/<turn_id>/compare": {"POST": owner("chat", **{"with": "base"})},
    "api/comparisons/<comparison_id>": {
        "GET": owner("read"),
        "POST": owner("feedback", verdict="tie"),
        "DELETE": owner("feedback"),
    },
    "api/reasons": {"GET": people("feedback")},
    "api/status": {"GET": people("read")},
    "api/jobs": {"GET": people("read"), "POST": people("train")},
    "api/jobs/<job_id>": {"GET": owner("read")},
    "api/jobs/<job_id>/metrics": {"GET": owner("read")},
    "api/jobs/<job_id>/finish": {"POST": owner_or_trainer("train")},
    "api/jobs/<job_id>/cancel": {"POST": owner_or_trainer("train")},
    "api/adapters": {"GET": people("read")},
    "api/adapters/rollback": {"POST": people("train")},
    "api/adapters/<name>/promote": {"POST": owner_or_trainer("train")},
    "api/adapters/<name>/trial": {
        "POST": owner("train", share=20),
        "DELETE": owner("train"),
    },
    "api/adapters/<name>/download": {"GET": owner("export")},
    "api/adapters/<name>": {"DELETE": owner("train")},
    "api/agent": {"GET": people("read")},
    "api/agent/pause": {"POST": people("train", paused=True)},
    "api/agent/rechecks": {"POST": people("chat")},
    "api/agent/chats/<path:name>": {"GET": owner("read")},
    "api/agent/train-without": {"POST": people("train")},
    "api/agent/notes/take-back": {"POST": people("feedback", text="x")},
    "api/exports": {"POST": people("export")},
    "api/exports/<transfer_id>": {"GET": owner("export")},
    "api/exports/<transfer_id>/file": {"GET": owner("export")},
    "api/imports": {"POST": people("export")},
    "api/imports/<transfer_id>": {"GET": owner("export")},
    "api/": {},
    "chat/completions": {},  # under /v1 alone
    "models": {},
    "livez": {"GET": who_is_not_waiting()},
    "readyz": {"GET": who_is_not_waiting()},
    "metrics": {"GET": who_is_not_waiting()},  # from loopback, as here
}
# They look at no verb, and change nothing by any of these
ALIKE = (
    "language/",
    "signin/",
    "signin/code/",
    "password/",
    "api/openapi.json",
    "api/docs",
    "livez",
    "readyz",
    "metrics",
)
# Keys alone get in, in tests of their own below; the admin's tables have one, too.
ELSEWHERE = ("v1", "^v1", "admin/")


def routes() -> Iterator[str]:
    """As Django has them, ninja's included; regular expressions as plain paths."""

    def walk(patterns: Any, before: str = "") -> Iterator[str]:
        for pattern in patterns:
            path = before + re.sub(r"\(\?P(<\w+>).*?\)", r"\1", str(pattern.pattern))
            if hasattr(pattern, "url_patterns"):
                yield from walk(pattern.url_patterns, path)
            else:
                plain = path.replace("^", "").replace("$", "").replace("\\", "")
                yield path if path.startswith("^v1") else plain

    return walk(get_resolver().url_patterns)


@dataclass
class World:
    """Alice's things, and a person of each kind."""

    people: dict[str, User | None]
    names: dict[str, Any]

    def path(self, route: str) -> str:
        def fill(match: re.Match[str]) -> str:
            name = match[1].split(":")[-1]
            return str(self.names[f"{route.split('/')[1]}_name" if name == "name" else name])

        return "/" + re.sub(r"<([^>]+)>", fill, route)

    def ask(self, verb: str, route: str, role: str = STRANGER, key: str = "", **body: Any) -> int:
        """The status; what the request changed is undone. 302 only where it leads to sign in."""
        client = Client(raise_request_exception=False)
        if (user := self.people[role]) is not None and not key:
            client.force_login(user)
        sent: dict[str, Any] = {"content_type": "application/json"} if "api/" in route else {}
        if verb != "GET":
            sent["data"] = body
        if key:
            sent["headers"] = {"Authorization": f"Bearer {key}"}
        with transaction.atomic():
            response = getattr(client, verb.lower())(self.path(route), **sent)
            transaction.set_rollback(True)
        close(response)
        return _status(response)


def close(response: Any) -> None:
    """With its file; the test's own connection to the database stays."""
    request_finished.disconnect(close_old_connections)
    response.close()
    request_finished.connect(close_old_connections)


def _status(response: HttpResponse) -> int:
    away = response.status_code == 302 and "/signin/?next=" in response["Location"]
    return response.status_code if response.status_code != 302 or away else 200


def let_in(status: int) -> bool:
    """Also who is told that it cannot be done now: 409, 410, 422, 503."""
    return (status < 500 or status == 503) and status not in (302, 401, 403, 404, 405)


def world_of(alice: User, bob: User, admin: User) -> World:
    """Somebody of each role, and one of everything that is Alice's."""
    roles = {name: User.objects.create_user(name, role=name) for name in (REVIEWER, TRAINER)}
    pending = User.objects.create_user("carol", role=Role.PENDING)
    alice.reviewers_may_read = True
    alice.save()
    make_adapter(alice, 1, AdapterState.LIVE)
    adapter = make_adapter(alice, 2)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (config().var / adapter.path / name).write_bytes(b"{}")
    turn = make_turn(alice, "hello")
    down(turn)
    rated(alice, 1)
    job = claimed_job(alice)
    file = transfers.folder() / "a.jsonl"
    file.write_text("{}\n")
    done = {"user": alice, "shape": "kto", "state": TransferState.DONE}
    export = Transfer.objects.create(kind="export", path=f"transfers/{file.name}", **done)
    pair = Comparison.objects.create(
        user=alice, kind="recheck", first=turn, second=make_turn(alice, session=turn.session)
    )
    key, _ = accounts.make_key(user=alice, name="k")
    TOTP.activate(alice, generate_totp_secret())
    RecoveryCodes.activate(alice)
    browser = UserSession.objects.create(user=alice, session_key="hers", ip="10.0.0.7")
    return World(
        {
            **{STRANGER: None, PENDING: pending, OWNER: alice, OTHER: bob, ADMIN: admin},
            **roles,
        },
        {
            "session_id": turn.session.public_id,
            "sessions_name": turn.session.public_id,
            "agent_name": turn.session.public_id,
            "adapters_name": adapter.name,
            "turn_id": turn.public_id,
            "job_id": job.public_id,
            "kind": "json",
            "comparison_id": pair.public_id,
            "transfer_id": export.public_id,
            "import": Transfer.objects.create(kind="import", **done).public_id,
            "key_id": key.pk,
            "browser_id": browser.pk,
            "token": accounts.make_link(alice).split("/")[2],
        },
    )


def told(world: World) -> Iterator[tuple[str, str, May]]:
    """Each line of the table, with the import in the place of the export where it is about one."""
    export = world.names["transfer_id"]
    for route, verbs in TABLE.items():
        about_import = route.startswith("api/imports")
        world.names["transfer_id"] = world.names["import"] if about_import else export
        for verb, rule in verbs.items():
            yield route, verb, rule
