"""Ratings: append-only rows, and the sample that the newest one, or a judgement, stands for."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb.config import config
from clawweb.events import changed
from clawweb.models import (
    AdapterVersion,
    Consent,
    DropReason,
    Feedback,
    FeedbackReason,
    Judgement,
    SampleState,
    TrainingSample,
    Turn,
    TurnState,
    User,
)
from clawweb.records import FeedbackLine
from clawweb.selectors.chat import messages_for
from clawweb.selectors.hints import undisputed_samples
from clawweb.services.errors import Contradiction, NothingToRate, NotRecorded, UnknownReason
from clawweb.turn_types import MAIN, SIDE
from rollouts.types import SamplingParams

MAX_COMMENT = 4000
MAX_CORRECTION = 100_000  # as a message: it begins as the reply, which may be long
HELD_BACK_EVERY = 5
HELD_BACK_WINDOW = 8
GIVEN = ("value", "reasons", "comment", "correction")


@transaction.atomic
def rate_turn(
    *, turn: Turn, author: User, changes: dict[str, Any], source: str = "ui"
) -> Feedback | None:
    """Append what was said. A field that is not in `changes` keeps its last value.

    `changes` holds any of value (+1, -1, None), reasons (slugs), comment, correction, final. A
    reason or a correction without a vote is a vote down; a new vote the other way clears what
    explained the old one. The same again, while its sample waits for a reason, prolongs the wait
    and appends nothing; so does nothing at all of a reply that was not rated (None).
    """
    if not turn.recorded:
        raise NotRecorded(
            _("You asked to keep nothing of your chats, so this reply cannot be rated.")
        )
    if not turn.is_finished or not (turn.reply or turn.tool_calls):
        raise NothingToRate(_("There is no finished reply to rate yet."))
    # Two calls at once would both see the same last row (SQLite's writers wait at BEGIN).
    turn = (
        Turn.objects.select_for_update(of=("self",)).select_related("session__user").get(pk=turn.pk)
    )
    rows = list(turn.feedback.order_by("pk"))
    before = rows[-1] if rows else None
    said = _merged(rows, changes, turn.reply.strip())
    says_nothing = before is None and not any(said[name] for name in GIVEN)
    if says_nothing and not turn.samples.exists():  # a judge's is taken back by that
        return None
    is_new = before is None or any(getattr(before, name) != said[name] for name in GIVEN)
    is_new = is_new or _is_put_aside(turn, before)  # said again, it is the newer one
    if before is not None and not is_new and not said["is_final"] and _wait_on(turn):
        return before
    row = Feedback.objects.create(
        turn=turn,
        author=author,
        source=source,
        adapter_name=turn.adapter_name,
        content_hash=hashlib.sha256(turn.reply.encode()).hexdigest(),
        **said,
    )
    if is_new:
        _replace_sample(turn, row)
        count_undisputed(turn.session.user_id)
    elif row.is_final:
        _settle_now(turn)
    changed(turn.session.user_id, "receipt", turn.public_id)
    return row


def take_over(*, turn: Turn, author: User, said: Sequence[FeedbackLine]) -> None:
    """Append what was said elsewhere, oldest first; the last one makes the turn's sample."""
    row = None
    for line in said:
        row = Feedback.objects.create(
            turn=turn,
            author=author,
            value=line.value,
            reasons=[reason.model_dump() for reason in line.reasons],
            comment=line.comment.strip(),
            correction=line.correction.strip(),
            is_final=line.final,
            source=line.source,
            adapter_name=line.adapter,
            content_hash=line.content_hash or hashlib.sha256(turn.reply.encode()).hexdigest(),
        )
        if line.at is not None:
            Feedback.objects.filter(pk=row.pk).update(created_at=line.at)
    if row is not None:
        _replace_sample(turn, row)


def _merged(rows: Sequence[Feedback], changes: dict[str, Any], reply: str) -> dict[str, Any]:
    """The new row's fields: the last row's, with what was said now. Who writes the reply itself
    corrects nothing."""
    kept: dict[str, Any] = {"value": None, "reasons": [], "comment": "", "correction": ""}
    if rows:
        kept = {name: getattr(rows[-1], name) for name in GIVEN}
    if "value" in changes and changes["value"] != kept["value"]:
        if kept["value"] is not None:  # what came before the vote explains it
            kept = {"reasons": [], "comment": "", "correction": ""}
        kept["value"] = changes["value"]
    if changes.get("reasons") is not None:
        once = [reason for row in rows for reason in row.reasons]
        kept["reasons"] = _reasons(changes["reasons"], kept["reasons"], once)
    for name, most in (("comment", MAX_COMMENT), ("correction", MAX_CORRECTION)):
        if changes.get(name) is not None:
            kept[name] = changes[name].strip()[:most]
    if (changes.get("correction") or "").strip() == reply != "":  # of a mere call there is no text
        kept["correction"] = ""
    explains = kept["reasons"] or kept["correction"]
    if explains and (kept["value"] is None or "value" not in changes):
        if kept["value"] == 1 and changes.get("comment") is None:
            kept["comment"] = ""  # praise: it explained the thumb up
        kept["value"] = -1
    if explains and kept["value"] == 1:
        raise Contradiction(
            _("A reason or a correction goes with a thumb down, not with a thumb up.")
        )
    kept["is_final"] = bool(changes.get("final")) or bool(explains or kept["comment"])
    return kept


def _reasons(
    slugs: Sequence[str], said: Sequence[dict[str, str]], once: Sequence[dict[str, str]]
) -> list[dict[str, str]]:
    """The chips with the hints they stand for now, so that a later edit does not rewrite history;
    what was `said` before stays as it was, in use by now or not. What was said `once`, and is not
    in use any more, can be had back."""
    every = {row.slug: row for row in FeedbackReason.objects.all()}
    rows = {slug: row for slug, row in every.items() if row.active}
    known = {reason["slug"]: reason for reason in once if reason["slug"] not in rows}
    known |= {reason["slug"]: reason for reason in said}
    unknown = [slug for slug in slugs if slug not in rows and slug not in known]
    if unknown:
        raise UnknownReason(
            _("There is no reason called %(unknown)s; there are %(known)s.")
            % {"unknown": ", ".join(unknown), "known": ", ".join(rows)}
        )
    kept = _newest_poles(slugs, {reason["slug"] for reason in said}, every)
    return [known.get(slug) or {"slug": slug, "hint": rows[slug].hint} for slug in kept]


def _newest_poles(
    slugs: Sequence[str], before: Collection[str], reasons: Mapping[str, FeedbackReason]
) -> list[str]:
    """Without those that another one contradicts: who ticks "too short" has changed their mind
    about "too long". What was said `before` is the older one, then what comes first."""
    lies = {slug: (row.axis, row.pole) for slug, row in reasons.items() if row.axis}
    in_turn = sorted(slugs, key=lambda slug: slug not in before)
    wanted = dict(lies[slug] for slug in in_turn if slug in lies)
    return [
        slug
        for slug in dict.fromkeys(slugs)
        if slug not in lies or wanted[lies[slug][0]] == lies[slug][1]
    ]


def _replace_sample(turn: Turn, row: Feedback) -> None:
    """The newest row decides: an unclaimed sample gives way, a claimed or learned one is marked."""
    # Locked: a job that ends beside this gives its samples back, and this one must be seen so.
    old = turn.samples.select_for_update().order_by("-id").first()
    taken_back = row.value is None and not row.comment
    was_aside = False
    if old is not None:
        unclaimed = TrainingSample.objects.filter(
            pk=old.pk, state__in=[SampleState.WAITING, SampleState.READY]
        )
        gave_way = unclaimed.update(
            state=SampleState.WITHDRAWN if taken_back else SampleState.SUPERSEDED
        )
        old.refresh_from_db()  # a job may have been quicker
        was_aside = bool(gave_way) and (old.held_back or old.was_held_back)
    if taken_back and (old is None or old.state == SampleState.WITHDRAWN):
        return
    if taken_back:
        # A claimed or learned rating cannot be unlearned; the row says that it was taken back.
        new = TrainingSample(turn=turn, user=turn.session.user, feedback=row)
        new.state = SampleState.WITHDRAWN
    else:
        new = _sample(turn, row)
        new.was_held_back = was_aside  # the reply grew old while it was kept for the gate
    new.save()
    if old is not None:
        TrainingSample.objects.filter(pk=old.pk).update(replaced_by=new)


def _settle_now(turn: Turn) -> None:
    """Nothing more is being written about this reply: its sample need not wait."""
    for sample in turn.samples.select_related("user").filter(state=SampleState.WAITING):
        _settle_row(sample)


def _settle_row(sample: TrainingSample) -> bool:
    """Settle it, unless another was quicker: a job may even have claimed it since it was read."""
    settle(sample)
    waiting = TrainingSample.objects.filter(pk=sample.pk, state=SampleState.WAITING)
    return bool(waiting.update(state=sample.state, held_back=sample.held_back))


def _is_put_aside(turn: Turn, before: Feedback) -> bool:
    """Whether a newer rating has put aside what was said last, or a part of it."""
    newest = turn.samples.order_by("-pk").first()
    if newest is None or newest.feedback is None or newest.state == SampleState.WITHDRAWN:
        return False
    is_whole = (newest.hint, newest.correction) == (before.hint, before.correction)
    return newest.state == SampleState.SUPERSEDED or not is_whole


def _wait_on(turn: Turn) -> bool:
    """Somebody is still explaining: a sample that waits for a reason waits anew."""
    return bool(turn.samples.filter(state=SampleState.WAITING).update(settles_at=_settles_at()))


def _settles_at() -> datetime:
    return timezone.now() + timedelta(seconds=config().settle_seconds)


def _sample(turn: Turn, row: Feedback) -> TrainingSample:
    """What the rating gives to training, with the reason when it gives nothing."""
    sample = TrainingSample(
        turn=turn,
        user=turn.session.user,
        feedback=row,
        reward=row.value,
        hint=row.hint,
        correction=row.correction,
    )
    return _decided(sample, turn, waits=row.value == -1 and not row.is_final)


def sample_judgement(turn: Turn, judgement: Judgement) -> TrainingSample:
    """The sample of a reply that a judge scored and nobody has rated. The turn's row is locked."""
    hint, *others = judgement.hints or [""]
    sample = TrainingSample(
        turn=turn,
        user=turn.session.user,
        judgement=judgement,
        reward=judgement.score,
        hint=hint,
        other_hints=others,
    )
    _decided(sample, turn, waits=False).save()
    changed(turn.session.user_id, "receipt", turn.public_id)
    return sample


def _decided(sample: TrainingSample, turn: Turn, *, waits: bool) -> TrainingSample:
    """The sample, unsaved, as it begins: dropped with its reason, waiting, or settled."""
    hinted = sample.teaches
    reason = drop_reason(turn, reward=sample.reward, hinted=hinted)
    if reason:
        sample.state, sample.drop_reason = SampleState.DROPPED, reason
        return sample
    sample.settles_at = _settles_at() if waits else timezone.now()
    sample.state = SampleState.WAITING
    if not waits:
        settle(sample)
    return sample


def drop_reason(turn: Turn, *, reward: int | None, hinted: bool) -> str:
    """Why this turn does not train; empty when it does."""
    session = turn.session
    if session.user.consent != Consent.TRAIN:
        return DropReason.CONSENT
    if turn.asked != "agent" or turn.trial:
        return DropReason.BASE_REQUESTED
    if turn.turn_type != "main":
        return DropReason.SIDE_TURN
    if turn.fallback:
        return DropReason.FALLBACK
    if reward is None:
        return DropReason.NO_SIGNAL
    if turn.state not in (TurnState.COMPLETE, TurnState.STOPPED) or not turn.response_ids:
        return DropReason.NO_LOGPROBS
    if len(turn.prompt_ids) + len(turn.response_ids) > config().train_tokens and not _follows(turn):
        return DropReason.TOO_LONG  # nothing older can be left out of what trains
    if turn.logprobs is None:
        if SamplingParams.from_json(turn.sampling).keeps_behaviour_logprobs:
            return DropReason.NO_LOGPROBS
        return "" if hinted else DropReason.GREEDY
    if len(turn.logprobs) != len(turn.response_ids):
        return DropReason.NO_LOGPROBS
    return ""


def _follows(turn: Turn) -> bool:
    """Whether its prompt has exchanges before the newest message: training leaves the oldest out
    where all of them are too long for it."""
    return sum(message["role"] == "user" for message in messages_for(turn)) > 1


def settle(sample: TrainingSample) -> None:
    """From waiting to ready, unsaved; every fifth one of a user with a version is kept for the
    gate."""
    sample.state = SampleState.READY
    user = sample.user
    if not AdapterVersion.objects.filter(user=user, live_at__isnull=False).exists():
        return
    rated = TrainingSample.objects.filter(user=user).exclude(
        state__in=[
            SampleState.WAITING,
            SampleState.DROPPED,
            SampleState.WITHDRAWN,
            SampleState.SUPERSEDED,
        ]
    )
    sample.held_back = (rated.count() + 1) % HELD_BACK_EVERY == 0
    if not sample.held_back:
        return
    window = TrainingSample.objects.filter(user=user, state=SampleState.READY, held_back=True)
    kept = list(window.order_by("-id").values_list("pk", flat=True)[: HELD_BACK_WINDOW - 1])
    window.exclude(pk__in=kept).update(held_back=False, was_held_back=True)


@transaction.atomic
def settle_due() -> list[User]:
    """Settle every sample whose time has come; the users who may now have a batch."""
    due = TrainingSample.objects.select_related("user", "turn__session").filter(
        state=SampleState.WAITING, settles_at__lte=timezone.now()
    )
    users: dict[int, User] = {}
    for sample in due:
        if _settle_row(sample):
            users[sample.user_id] = sample.user
            changed(sample.user_id, "receipt", sample.turn.public_id)
    return list(users.values())


def give_back(samples: QuerySet[TrainingSample], *, refused: bool = False) -> None:
    """Samples, asked for by the state they are in, count again, unless a newer rating has replaced
    them, two versions were refused, or their turn, or the one that a judge read them from, became a
    side turn meanwhile."""
    if refused:
        samples.update(refusals=F("refusals") + 1)
    samples.filter(replaced_by__isnull=False).update(state=SampleState.SUPERSEDED, job=None)
    for unwanted, why in (
        (samples.filter(refusals__gte=2), DropReason.REFUSED),
        (samples.exclude(user__consent=Consent.TRAIN), DropReason.CONSENT),
        (samples.exclude(turn__turn_type=MAIN), DropReason.SIDE_TURN),
        (samples.filter(judgement__next_turn__turn_type=SIDE), DropReason.NO_SIGNAL),
    ):
        unwanted.update(state=SampleState.DROPPED, drop_reason=why, job=None)
    samples.update(state=SampleState.READY, job=None)


def count_undisputed(user_id: int) -> None:
    """What a newer rating had put aside counts again, also what it had put aside in part, if that
    one was taken back or dropped."""
    rows = undisputed_samples(user_id)
    if rows:
        for row in rows:
            in_part = TrainingSample.objects.filter(pk=row.pk, state=SampleState.READY)
            in_part.update(hint=row.hint, correction=row.correction)
        aside = TrainingSample.objects.filter(state=SampleState.SUPERSEDED)
        give_back(aside.filter(pk__in=[row.pk for row in rows]))
        changed(user_id, "receipt", *(row.turn.public_id for row in rows))
