"""Whatever is done in whichever order, no rating is lost, and no row says what is not so.

Property tests. A user rates, takes back, deletes, keeps out and goes back; a worker claims, drops,
stops early, dies and ends; the two mix. What must hold is asked after each act, and at the end all
that still counts can be learned.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clawweb import deployment
from clawweb.models import (
    ACTIVE_JOB,
    AdapterState,
    AdapterVersion,
    ChatSession,
    Consent,
    DropReason,
    JobState,
    SampleState,
    TrainingJob,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.forgetting import versions_that_learned_from
from clawweb.selectors.hints import undisputed_samples, unlearned_hints
from clawweb.selectors.learning import held_back_samples, receipt
from clawweb.selectors.notes import notes_of
from clawweb.services import accounts, feedback, finishing, housekeeping, jobs, retyping, versions
from clawweb.services.errors import ServiceError
from clawweb.services.forgetting import train_without
from clawweb.services.notes import take_back_note
from tests.factories import hand_over, make_turn, register_version

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_server", "engine")]

SAID: list[dict[str, Any]] = [
    {"value": 1},
    {"value": -1},
    {"value": -1, "final": True},
    {"value": None},
    *({"value": -1, "reasons": [slug]} for slug in ("too_long", "too_short") * 2),
    {"value": -1, "reasons": ["too_long"], "comment": "Use metres."},
    {"value": -1, "comment": "Use metres."},
    {"value": -1, "comment": "Too long."},
    {"value": 1, "comment": "Just right."},
    {"correction": "Six metres."},
    {"reasons": []},
    {"comment": ""},
]
OPPOSITES = [("rate", 0, SAID.index({"value": -1, "reasons": ["too_long"]})),
             ("rate", 1, SAID.index({"value": -1, "reasons": ["too_short"]}))]  # fmt: skip
NUMBER = st.integers(0, 5)
ACTS = st.one_of(
    st.tuples(st.just("rate"), NUMBER, st.integers(0, len(SAID) - 1)),
    st.tuples(st.just("rate"), NUMBER, st.integers(0, len(SAID) - 1)),
    st.tuples(
        st.sampled_from(["delete", "restore", "lock", "unlock", "side", "main"]), NUMBER, st.just(0)
    ),
    st.tuples(
        st.sampled_from(["refuse_consent", "consent", "back", "without", "erase", "settle"]),
        st.just(0),
        st.just(0),
    ),
    st.tuples(
        st.sampled_from(["take_back", "claim", "drop", "stop_early", "end", "again", "promote"]),
        NUMBER,
        st.integers(0, 3),
    ),
    st.tuples(st.sampled_from(["claim", "end"]), NUMBER, st.integers(0, 3)),
)


class Agent:
    """One user's ratings and versions, and the worker that trains them."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.turns = [make_turn(user, f"question {n}") for n in range(4)]
        self.turns += [make_turn(user, "and on", session=self.turns[0].session)]
        self.job: TrainingJob | None = None
        self.erased = False

    def do(self, act: str, number: int, other: int) -> None:
        with suppress(ServiceError):  # it is said why not, and nothing has changed
            getattr(self, act)(number, other)
        self.user.refresh_from_db()

    def turn(self, number: int) -> Turn | None:
        rows = Turn.objects.filter(pk__in=[turn.pk for turn in self.turns])
        rows = rows.filter(session__deleted_at=None).select_related("session__user")
        rows = rows.order_by("pk")
        return rows[number % len(rows)] if rows else None

    def chat(self, number: int, *, deleted: bool = False) -> ChatSession | None:
        rows = ChatSession.objects.filter(user=self.user, deleted_at__isnull=not deleted)
        rows = rows.order_by("pk")
        return rows[number % len(rows)] if rows else None

    # The user

    def rate(self, number: int, said: int) -> None:
        if turn := self.turn(number):
            feedback.rate_turn(turn=turn, author=self.user, changes=SAID[said])

    def take_back(self, number: int, _: int) -> None:
        if notes := notes_of(self.user):
            take_back_note(user=self.user, text=notes[number % len(notes)].text)

    def settle(self, *_: int) -> None:
        TrainingSample.objects.filter(state=SampleState.WAITING).update(
            settles_at=timezone.now() - timedelta(seconds=1)
        )
        feedback.settle_due()

    def delete(self, number: int, _: int) -> None:
        if chat := self.chat(number):
            housekeeping.delete_session(chat)

    def restore(self, number: int, _: int) -> None:
        if chat := self.chat(number, deleted=True):
            housekeeping.restore_session(chat)

    def erase(self, *_: int) -> None:
        for chat in ChatSession.objects.filter(deleted_at__isnull=False):
            at = chat.deleted_at - timedelta(hours=1)
            AdapterVersion.objects.filter(forgot_at=chat.deleted_at).update(forgot_at=at)
            ChatSession.objects.filter(pk=chat.pk).update(deleted_at=at)
        self.erased = bool(housekeeping.erase_deleted()) or self.erased

    def lock(self, number: int, _: int, locked: bool = True) -> None:
        if chat := self.chat(number):
            housekeeping.edit_session(chat, locked=locked)

    def unlock(self, number: int, _: int) -> None:
        self.lock(number, _, locked=False)

    def side(self, number: int, _: int, turn_type: str = "side") -> None:
        if turn := self.turn(number):
            retyping.set_turn_type(turn=turn, turn_type=turn_type)

    def main(self, number: int, _: int) -> None:
        self.side(number, _, "main")

    def refuse_consent(self, *_: int) -> None:
        accounts.set_consent(user=self.user, consent=Consent.KEEP)

    def consent(self, *_: int) -> None:
        accounts.set_consent(user=self.user, consent=Consent.TRAIN, prompt_hints=True)

    def back(self, *_: int) -> None:
        versions.rollback(self.user)

    def without(self, *_: int) -> None:
        self.job = train_without(self.user)[1]
        if self.job:
            self.job = jobs.claim_job(self.job.public_id)

    def promote(self, number: int, _: int) -> None:
        rows = self.user.adapters.filter(state=AdapterState.STANDBY)
        if rows:
            versions.promote(user=self.user, adapter=rows[number % len(rows)])

    # The worker

    def claim(self, number: int, _: int) -> None:
        if self.held():
            return
        self.settle()
        method = ["combine", "opd", "binary", "kto"][number % 4]
        queued = jobs.queue_job(user=self.user, method=method)
        self.job = jobs.claim_job(queued.public_id)
        assert self.job is not None

    def held(self) -> TrainingJob | None:
        """The job while its worker has it."""
        return self.job if self.job and jobs.held(self.job).exists() else None

    def again(self, number: int, _: int) -> None:
        """Its worker is stopped, or dies, and another takes it up."""
        if job := self.held():
            if number % 2:
                jobs.put_back(job)
            else:
                gone = timezone.now() - timedelta(seconds=1)
                TrainingJob.objects.filter(pk=job.pk).update(lease_until=gone)
            self.job = jobs.claim_job(job.public_id)

    def drop(self, number: int, why: int) -> None:
        if job := self.held():
            finishing.leave_out_withdrawn(job)
            rows = jobs.samples_of(job)
            reason = ["hint_no_effect", "too_long", "greedy", "no_logprobs"][why]
            if rows:
                finishing.drop_samples(job, {rows[number % len(rows)].pk: reason})

    def stop_early(self, number: int, _: int) -> None:
        if job := self.held():
            finishing.leave_out_withdrawn(job)
            rows = [row.pk for row in jobs.samples_of(job)]
            finishing.give_back_untrained(job, rows[: 1 + number])
            finishing.note_unheard(job, rows[:number], distils=number % 2 == 0)

    def end(self, number: int, _: int) -> None:
        job = self.held()
        if job is None:
            return
        ends: list[Callable[[TrainingJob], None]] = [
            self._deploy,
            self._deploy,
            self._deploy,
            self._refuse,
            lambda job: jobs.end_job(job, state=JobState.FAILED, reason="why"),
            self._cancel,
        ]
        finishing.leave_out_withdrawn(job)
        for row in jobs.samples_of(job):
            assert row.turn.session.deleted_at is None, f"{row} of a deleted chat trains"
            assert not row.turn.session.locked, f"{row} of a chat kept out trains"
            newest = row.turn.samples.order_by("-pk")[0]
            assert newest.state != SampleState.WITHDRAWN, f"{row} was taken back and trains"
        if not jobs.samples_of(job):
            jobs.end_job(job, state=JobState.NO_SIGNAL, reason="none")
        elif jobs.cancel_wanted(job):
            jobs.end_job(job, state=JobState.CANCELLED, reason="cancelled")
        else:
            ends[number](job)

    def _deploy(self, job: TrainingJob) -> None:
        register_version(job)
        hand_over(job)
        deployment.deploy(job.public_id)

    def _refuse(self, job: TrainingJob) -> None:
        register_version(job, accepted=False)
        jobs.end_job(job, state=JobState.REFUSED, reason="it repeats itself")

    def _cancel(self, job: TrainingJob) -> None:
        jobs.cancel_job(job)
        jobs.end_job(job, state=JobState.CANCELLED, reason="cancelled")

    # What must hold

    def check(self) -> None:
        for row in TrainingSample.objects.select_related("job", "adapter", "turn"):
            self._check_row(row)
        assert not undisputed_samples(self.user.pk), "put aside for what says nothing any more"
        for turn in Turn.objects.filter(pk__in=[turn.pk for turn in self.turns]):
            self._check_turn(turn)
        self._check_marks()
        notes_of(self.user)
        unlearned_hints(self.user)
        held_back_samples(self.user)

    def _check_row(self, row: TrainingSample) -> None:
        state = SampleState(row.state)
        if state == SampleState.CLAIMED:
            assert row.job, f"{row} and no job has it"
            assert row.job.state in ACTIVE_JOB, f"{row} and its job is over"
        if state == SampleState.TRAINED:
            assert row.adapter, f"{row} by nothing"
            assert row.adapter.live_at, f"{row} by what never answered"
        if state in (SampleState.READY, SampleState.WAITING):
            assert row.job_id is None, f"{row} and a job has it"
            assert row.turn.turn_type == "main", f"{row} and is a side turn's"
            assert row.replaced_by_id is None, f"{row} beside a newer one"
            assert self.user.consent == Consent.TRAIN, f"{row} without consent"
        if row.drop_reason == DropReason.REFUSED:
            assert row.refusals >= 2, f"{row} after {row.refusals} refusals"
        if row.held_back:
            assert state not in (SampleState.CLAIMED, SampleState.TRAINED), f"{row} though aside"

    def _check_turn(self, turn: Turn) -> None:
        own = list(turn.samples.order_by("pk"))
        newest = turn.feedback.order_by("-pk").first()
        if not own:
            assert newest is None or not (newest.value or newest.comment), "a rating without a row"
            return
        last = [row for row in own if row.replaced_by_id is None]
        assert last == [own[-1]], "one that counts, the newest"
        said = own[-1].feedback
        assert said
        assert newest
        assert receipt(turn)
        if newest.value is None and not newest.comment:
            assert own[-1].state == SampleState.WITHDRAWN
            return
        for name in ("value", "reasons", "comment", "correction"):
            assert getattr(said, name) == getattr(newest, name), f"{name} is not what was said last"

    def _check_marks(self) -> None:
        learned: set[int] = set()
        for chat in ChatSession.objects.filter(user=self.user, deleted_at__isnull=False):
            found = versions_that_learned_from(chat)
            learned |= {row.pk for row in found}
            for row in found:
                assert row.forgot_at, f"{row} learned from a deleted chat and has no mark"
        marked = self.user.adapters.exclude(forgot_at=None).exclude(state=AdapterState.ERASED)
        if not self.erased:
            assert {row.pk for row in marked} <= learned, "marked for a chat that is there"

    def learn_all(self) -> None:
        """Let it all count again, and train until nothing is left."""
        if self.held():
            self.end(4, 0)
        for job in TrainingJob.objects.filter(state__in=ACTIVE_JOB):
            raise AssertionError(f"{job} is {job.state} and nobody ends it")
        self.consent()
        self.user.refresh_from_db()
        for chat in ChatSession.objects.filter(user=self.user):
            housekeeping.restore_session(chat)
            housekeeping.edit_session(chat, locked=False)
        for turn in Turn.objects.filter(session__user=self.user):
            retyping.set_turn_type(turn=turn, turn_type="main")
        self.check()
        for _ in range(3):
            try:
                self.claim(0, 0)
            except ServiceError:
                break
            self.end(0, 0)
            self.check()
        for turn in Turn.objects.filter(session__user=self.user, samples__isnull=False).distinct():
            row = turn.samples.order_by("-pk")[0]
            if row.state in (SampleState.TRAINED, SampleState.WITHDRAWN):
                continue
            if row.state == SampleState.SUPERSEDED:
                continue  # contradicted, which `check` has looked into
            if row.state == SampleState.READY:
                assert row.held_back, f"{row} is never learned"
                continue
            assert row.state == SampleState.DROPPED, str(row)
            assert row.drop_reason != DropReason.SIDE_TURN, "it is main again"


def mixed(user: User, acts: list[tuple[str, int, int]]) -> None:
    with transaction.atomic():
        accounts.set_consent(user=user, consent=Consent.TRAIN, prompt_hints=True)
        user.refresh_from_db()
        agent = Agent(user)
        for act in acts:
            agent.do(*act)
            agent.check()
        agent.learn_all()
        transaction.set_rollback(True)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(acts=[*OPPOSITES, ("claim", 0, 0), ("delete", 1, 0), ("end", 3, 0), ("restore", 0, 0)])
@example(acts=[*OPPOSITES, ("claim", 0, 0), ("end", 0, 0), ("take_back", 0, 0), ("back", 0, 0)])
@example(acts=[*OPPOSITES, ("claim", 0, 0), ("lock", 0, 0), ("side", 1, 0), ("again", 0, 0)])
@example(acts=[*OPPOSITES, ("claim", 0, 0), ("end", 0, 0), ("delete", 1, 0), ("without", 0, 0)])
@given(acts=st.lists(ACTS, min_size=1, max_size=24))
def test_any_mix_of_acts_loses_no_rating(alice: User, acts: list[tuple[str, int, int]]) -> None:
    mixed(alice, acts)
